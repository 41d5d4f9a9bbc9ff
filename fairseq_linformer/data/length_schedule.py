"""Length schedule of training: short sequences that become longer.

Short sequences teach local dependencies first (SkyLadder, arXiv 2503.15450).

Dimensions: B sequences of a batch, n their length, l that of their parts, B' the number of parts.
"""

import math
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.nn.functional as F

from ..errors import check

Stage = tuple[int, int]  # length of sequences in tokens, number of the last update


def as_text(pairs: Any) -> str:
    """Return length:share pairs, given as text, list of pairs or mapping, as text such as 512:0.6,2048:0.4."""
    return str(pairs).strip("[]{}").replace("'", "").replace(" ", "")


def read_stages(text: str, updates: int, longest: int) -> list[Stage]:
    """Return the stages of a training.

    Args:
        text: length:share pairs, as ``as_text`` returns them.
        updates: updates of the training; a stage lasts its share of them.
        longest: tokens of a sequence, which the last length must equal.

    Raises:
        UserError: the pairs are invalid.
    """
    try:
        pairs = [(int(length), float(share)) for length, share in (pair.split(":") for pair in text.split(","))]
    except ValueError:
        pairs = []
    lengths, shares = [length for length, _ in pairs], [share for _, share in pairs]
    works = bool(pairs) and lengths[0] >= 2 and lengths[-1] == longest and min(shares) > 0
    works = works and all(length < longer and longer % length == 0 for length, longer in pairwise(lengths))
    allowed = (  # without braces YAML reads 512:0.6 as a number of base 60
        "LENGTH:SHARE pairs, such as 512:0.6,2048:0.4 (in a YAML file {512: 0.6, 2048: 0.4}): lengths from 2 tokens to "
        f"task.tokens_per_sample={longest}, each a divisor of the next, and shares above 0 whose sum is 1"
    )
    check("lengths", text, works and math.isclose(sum(shares), 1, abs_tol=1e-6), allowed)
    return [(length, round(end * updates)) for length, end in zip(lengths, accumulate(shares), strict=True)]


def stage_of(stages: list[Stage], done: int) -> Stage:
    """Return the stage of the next update after `done` updates."""
    return next((stage for stage in stages if done < stage[1]), stages[-1])


def cut_rows(sample: dict[str, Any], length: int, bos: int, pad: int) -> dict[str, Any]:
    """Cut each sequence of a batch into parts of `length` tokens; leave out parts of padding alone.

    Each part begins with <s>, which from the second part on replaces a token that then is no target.
    ``first_positions`` (B',) int64 of ``net_input`` are the positions in their sequences at which parts begin, so that
    tokens keep their positions. ``masked_positions`` is left out, as some tokens are no longer masked.

    Args:
        sample: a batch of ``TrainingDataset`` with tokens (B, n), which is not changed.
        length: l.
        bos, pad: fairseq's indices of <s> and padding.

    Returns:
        A batch of (B', l), B' = B n / l if nothing is padded.
    """
    inputs = {name: value for name, value in sample["net_input"].items() if name != "masked_positions"}
    sequences, width = inputs["src_tokens"].shape
    parts = -(-width // length)
    if parts == 1:
        return sample
    first = length * torch.arange(parts, device=inputs["src_tokens"].device).repeat(sequences)
    lengths = (inputs["src_lengths"].repeat_interleave(parts) - first).clamp(0, length)
    padded = inputs["padded"] or parts * length > width
    keep_mask = lengths > 0 if padded else slice(None)

    def cut(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if value.dim() == 1:  # one for each sequence
            return value.repeat_interleave(parts)[keep_mask]
        return F.pad(value, (0, parts * length - width), value=pad).view(-1, length)[keep_mask]

    inputs = {name: cut(value) for name, value in inputs.items()}
    first = first[keep_mask]
    begins = F.pad(first.gt(0).unsqueeze(1), (0, length - 1))  # (B', l)
    inputs |= {"src_tokens": inputs["src_tokens"].masked_fill(begins, bos), "src_lengths": lengths[keep_mask]}
    inputs |= {"padded": padded, "first_positions": first}
    batch = {name: cut(value) for name, value in sample.items() if name != "net_input"}
    return {**batch, "net_input": inputs, "target": batch["target"].masked_fill(begins, pad), "nsentences": len(first)}
