"""E and F, or Hedgehog's feature map, fitted to a full-attention model on sample text, by least squares.

Hedgehog's authors fit the weights of attention, by cross-entropy (arXiv 2402.04347), and later, in LoLCATs, its output,
as here (Zhang et al. 2024, arXiv 2410.10254): no n x n matrix is needed.

Dimensions: B batch, n sequence length, d embedding.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from fairseq.data import Dictionary, PrependTokenDataset, TokenBlockDataset, data_utils
from torch import Tensor, nn

from ..attention import Attention
from ..attention.linear import HedgehogMap
from ..attention.projection import LinearProjection
from ..errors import UserError
from ..model.encoder import SentenceEncoder

UPDATES = 200  # of Adam, each on a batch of its own: on fewer the matrices learn these texts by heart
STEP = 0.03  # of the first update, as a part of the root mean square of the matrix; then falling to zero
FITTED = (LinearProjection, HedgehogMap)  # their weight; not a random projection's, which is one of the former's kinds
BATCH_TOKENS = 4096  # at most, unless a row has more


class Errors(NamedTuple):
    """Of each layer's attention: mean squared error divided by the mean square of what it should give."""

    before: list[float]
    after: list[float]


def sample_batches(folder: Path, dictionary: Dictionary, length: int) -> list[Tensor]:
    """Text from all over the split `train` of a prepared corpus: UPDATES + 1 batches of token ids, (B, length).

    Raises:
        FileNotFoundError: there is no such corpus.
        UserError: it is too short.
    """
    try:
        text = data_utils.load_indexed_dataset(str(folder / "train"), dictionary)
    except FileNotFoundError:
        text = None
    if text is None:
        raise FileNotFoundError(f"{folder} is no prepared corpus: it holds no train.idx")
    ends = {"pad": dictionary.pad(), "eos": dictionary.eos(), "break_mode": "none"}
    blocks = PrependTokenDataset(TokenBlockDataset(text, text.sizes, length - 1, **ends), dictionary.bos())
    batches, whole = UPDATES + 1, len(blocks) - 1  # the last one may be short
    if whole < batches:
        raise UserError(f"{folder}: {whole} rows of {length} tokens are too few to fit on: {batches} are needed")
    rows = min(whole // batches, max(1, BATCH_TOKENS // length))
    chosen = [blocks[number * whole // (rows * batches)] for number in range(rows * batches)]
    return list(torch.stack(chosen).long().split(rows))


def fitted_matrices(model: nn.Module) -> list[nn.Parameter]:
    """What there is to fit in a model."""
    return [cast(nn.Parameter, module.weight) for module in model.modules() if type(module) in FITTED]


def fit_attention(teacher: SentenceEncoder, student: SentenceEncoder, batches: Sequence[Tensor]) -> Errors:
    """Trains ``fitted_matrices``, and nothing else, so that each layer's attention gives what the teacher's gives.

    Every layer reads what the teacher's reads, so that errors of lower layers do not add up. The first batch is not
    trained on, but measured with.

    Args:
        teacher, student: in evaluation mode, of equally many layers of one width. Afterwards nothing of the student
            but these requires gradients.
        batches: token ids without padding, (B, n) each.
    """
    held_out, *to_train = batches
    student.requires_grad_(False)
    matrices = fitted_matrices(student)
    steps = [STEP * float(matrix.detach().square().mean().sqrt()) for matrix in matrices]
    groups = [{"params": [matrix.requires_grad_()], "lr": step} for matrix, step in zip(matrices, steps, strict=True)]
    optimizer = torch.optim.Adam(groups)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, len(to_train))
    before = _errors(teacher, student, held_out).tolist()
    for batch in to_train:
        optimizer.zero_grad()
        _errors(teacher, student, batch).sum().backward()
        optimizer.step()
        schedule.step()
    return Errors(before, _errors(teacher, student, held_out).tolist())


def _errors(teacher: SentenceEncoder, student: SentenceEncoder, tokens: Tensor) -> Tensor:
    """(L,), one per layer."""
    with torch.no_grad(), attention_of(teacher) as calls:
        teacher(tokens)
    pairs = zip(student.layers, calls, strict=True)
    differences = [(layer.self_attn(*given) - out, out) for layer, (given, out) in pairs]
    return torch.stack([difference.square().mean() / out.square().mean() for difference, out in differences])


@contextmanager
def attention_of(encoder: SentenceEncoder) -> Iterator[list[tuple[tuple[Any, ...], Tensor]]]:
    """The arguments of each layer's attention and what it gives, (B, n, d), while the body runs the encoder."""
    calls: list[tuple[tuple[Any, ...], Tensor]] = []

    def record(_: nn.Module, given: tuple[Any, ...], out: Tensor) -> None:
        calls.append((given, out))

    attentions = [module for module in encoder.modules() if isinstance(module, Attention)]
    hooks = [attention.register_forward_hook(record) for attention in attentions]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()
