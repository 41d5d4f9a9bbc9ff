"""Analysis of a trained model's attention on text: spectrum, error of low-rank approximations, attention maps.

The output of a head is A V, with an attention matrix A (n, n). For columns of the identity as values a head
returns columns of A, with the effects of windows, projections and feature maps. So every mechanism whose heads are
linear in their values can be analyzed.

Dimensions: R text blocks, L layers, n tokens, d embedding, h heads, d_h = d / h, k projected length, T tokens of maps.
"""

import copy
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure
from omegaconf import open_dict
from torch import Tensor, nn
from tqdm import tqdm

from .attention import Attention, get_attention
from .attention.positions import add_alibi
from .attention.softmax import SoftmaxAttention
from .checkpoint import (
    FINE_TUNED,
    check_vocabulary_of,
    digest_vocabulary,
    find_tokenizer,
    read_checkpoint,
    updates_of_training,
    vocabulary_folder,
)
from .convert import as_checkpoint, attention_of
from .data.dictionaries import with_mask
from .data.prepare.corpus import encode_items
from .data.prepare.text_files import find_files, read_chunks
from .data.subword_models import load_tokenizer
from .data.tokenizer import Tokenizer
from .data.truncation import kept_tokens, max_length_and_method
from .digests import digest_file, digest_folder
from .errors import UserError, check
from .files import staged_folder
from .model.encoder import SentenceEncoder
from .model.hub import LOADED
from .model.roberta import LinformerRobertaModel
from .plotting import legend, picture, scale_lengths, scale_log, style_in_order, style_of
from .sentence_modules import is_of_transformers

RESULTS_FILE = "analysis.json"
SHARES = (0.9, 0.99)  # of the sum of singular values, for the effective rank
PAPERS_INDEX = 128  # index of the singular value in the heat map of the paper (figure 1, right), where n is 512
QUANTILES = {"p5": 0.05, "median": 0.5, "p95": 0.95}
BEST, SEGMENT_MEANS, MODEL = "best of rank k", "Linformer with segment means", "this model"
SMALLEST_RANK = 16
COLUMNS = 4  # panels side by side
MAX_LABELS = 48  # maximum number of tokens as labels of a map

Errors = dict[tuple[str, int | None], Tensor]  # by name and rank of an approximation


@dataclass(frozen=True)
class LoadedModel:
    """Model to analyze, in evaluation mode, on the first GPU or the CPU."""

    encoder: SentenceEncoder
    max_positions: int  # n
    projected_lengths: list[int]  # k of each layer; empty for attention without E and F
    task: Any  # configuration of the task that it was trained on
    tokenizer: Tokenizer
    description: dict[str, Any]  # name, digest, updates and sizes, for JSON


def read_model(source: Path, vocabulary: Path | None = None) -> LoadedModel:
    """Read a model and its tokenizer.

    Args:
        source: a checkpoint, the folder of a run, or a folder of transformers.
        vocabulary: as ``find_tokenizer`` takes it; by default the data that the model was trained on.

    Raises:
        UserError: the attention has no queries and keys, or the vocabulary is another one.
    """
    with as_checkpoint(source) as (checkpoint, _):
        state = read_checkpoint(checkpoint)
        cfg = state["cfg"]
        with open_dict(cfg):
            cfg.model.update(LOADED)  # compiling would take longer than a few sequences
        config = LinformerRobertaModel.resolve(cfg)
        mechanism = get_attention(config.attention)
        allowed = "a mechanism with queries and keys, which softmax attention can be computed from"
        check("attention", config.attention, {"q_proj", "k_proj"} <= {*mechanism.QKV_PROJECTIONS}, allowed)
        folder = vocabulary_folder(checkpoint, cfg) if vocabulary is None else find_tokenizer(vocabulary)
        tokenizer = load_tokenizer(folder)
        digests = digest_vocabulary(tokenizer.dictionary, folder)
        check_vocabulary_of(state, digests, str(folder), str(checkpoint))
        # The vocabulary may be a sentencepiece file without dictionary and <mask>.
        model = LinformerRobertaModel.of_checkpoint(state, with_mask(tokenizer.dictionary))
        digest = digest_folder(source) if is_of_transformers(source) else digest_file(checkpoint)
    encoder = model.eval().to("cuda" if torch.cuda.is_available() else "cpu").encoder.sentence_encoder
    projected_lengths = list(config.projected_length) if mechanism.uses_projection(config) else []
    sizes = ("attention", "encoder_layers", "encoder_attention_heads", "encoder_embed_dim", "max_positions")
    description: dict[str, Any] = {"name": "/".join(source.absolute().parts[-2:]), "sha256": digest}
    description |= {"updates": updates_of_training(state), **{name: getattr(config, name) for name in sizes}}
    description["projected_length"] = projected_lengths
    return LoadedModel(encoder, config.max_positions, projected_lengths, cfg.task, tokenizer, description)


def read_blocks(text: Path, tokenizer: Tokenizer, length: int, count: int) -> Tensor:
    """Cut a text file into blocks of <s> and length - 1 tokens, and return at most `count` of them, evenly spaced.

    Returns:
        Token ids (R, n), with </s> after each line; one shorter block if the text is shorter.

    Raises:
        UserError: the file has no text, or is not UTF-8.
    """
    items = [encode_items(tokenizer, chunk.lines)[0] for chunk in read_chunks(find_files([text]))]
    ids = torch.from_numpy(np.concatenate(items).astype(np.int64))
    width = min(length - 1, len(ids))
    if width < 1:
        raise UserError(f"max_positions={length} leaves no room for text after <s>")
    blocks = ids[: len(ids) // width * width].view(-1, width)
    count = min(count, len(blocks))
    chosen = blocks[torch.arange(count) * len(blocks) // count]
    return F.pad(chosen, (1, 0), value=tokenizer.dictionary.bos())


def read_first_line(text: Path, model: LoadedModel) -> Tensor:
    """Return the first line as input of a fine-tuned model, (n,): <s> if its task has one, tokens, </s>."""
    dictionary = model.tokenizer.dictionary
    line = next(line for chunk in read_chunks(find_files([text])) for line in chunk.lines if line)
    begin = [] if model.task.get("init_token") is None else [dictionary.bos()]
    ids = torch.tensor([*begin, *model.tokenizer.encode([line])[0].tolist(), dictionary.eos()])
    longest, method = max_length_and_method(model.task, model.task.max_positions or model.max_positions)
    return ids[kept_tokens(ids, longest, method, dictionary.bos(), dictionary.eos())]


def token_labels(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Return the text of each token as a short label; special symbols have their names."""
    texts = tokenizer.decode([np.array([token]) for token in ids])
    labels = (text or tokenizer.dictionary[token] for token, text in zip(ids, texts, strict=True))
    return [(label.strip() or "␣").replace("\n", "⏎")[:12] for label in labels]


def attentions_of(encoder: SentenceEncoder) -> list[Attention]:
    return [module for module in encoder.modules() if isinstance(module, Attention)]


def record_inputs(encoder: SentenceEncoder, ids: Tensor) -> list[tuple[Tensor, ...]]:
    """Run the encoder on token ids (n,), and return the inputs of each layer's attention without padding.

    These are x (1, n, d), and in a layer with a value residual the values of the first layer (1, n, d).
    """
    length = int(ids.ne(encoder.padding_idx).sum())
    with attention_of(encoder) as calls:
        encoder(ids.unsqueeze(0).to(encoder.embed_tokens.weight.device))
    return [tuple(states[:, :length] for states in (x, *first_values)) for (x, _, *first_values), _ in calls]


def without_output_projection(attention: Attention) -> Attention:
    """Return a copy of an attention that returns the outputs of its heads."""
    heads = copy.deepcopy(attention)
    heads.add_module("out_proj", nn.Identity())
    return heads


def attention_matrices(attention: Attention, x: Tensor) -> Tensor:
    """Return the attention matrix of each head for a sequence x (1, n, d): (h, n, n).

    Raises:
        UserError: a head is not linear in its values.
    """
    heads = without_output_projection(attention)
    heads.add_value_residual()
    heads.value_mix = nn.Parameter(x.new_tensor([0.0, 1.0]))  # selects `first_values` as values

    def multiply(values: Tensor) -> Tensor:  # by the attention matrix of each head, (1, n, d) -> (h, n, d_h)
        return heads.split_heads(heads(x, None, values))[0]

    length, width = x.size(1), attention.head_dim
    columns = F.pad(torch.eye(length, dtype=x.dtype, device=x.device), (0, -length % width)).split(width, dim=1)
    parts = [multiply(part.repeat(1, attention.num_heads).unsqueeze(0)) for part in columns]
    matrices = torch.cat(parts, dim=2)[..., :length]
    values = torch.randn(x.shape, generator=torch.Generator().manual_seed(0)).to(x)
    expected = multiply(values)
    if (matrices @ attention.split_heads(values)[0] - expected).norm() > 0.001 * expected.norm():
        raise UserError(
            f"attention={attention.name} has no attention matrix here: its heads must be linear in their values, which "
            "long-short, quasiseparable and the projections conv and max-pool are not"
        )
    return matrices


def softmax_matrices(attention: Attention, queries: Tensor, keys: Tensor) -> Tensor:
    """Return softmax(Q K^T / sqrt(d_h)) of each head, with ALiBi if the layer has it: (h, n, d_h) both -> (h, n, n)."""
    scores = queries @ keys.transpose(1, 2) * attention.head_dim**-0.5
    if attention.alibi:
        positions = torch.arange(keys.size(1), device=keys.device)
        scores = scores + add_alibi(None, attention.num_heads, positions, positions).to(scores)
    return scores.softmax(-1)


def heat_map_index(length: int, projected_lengths: Iterable[int]) -> int:
    """Return the number of singular values, at least 1, for the heat map.

    This is 128 as in the paper, or n / 4 if n < 512. For projected attention it is at most k / 2, because its rank is
    nearly k independently of training.
    """
    return max(1, min(PAPERS_INDEX, length // 4, *(k // 2 for k in projected_lengths)))


def describe_spectrum(curves: Tensor, projected_lengths: Sequence[int]) -> dict[str, Any]:
    """Return the data of the pictures of the spectrum, from curves (L, h, n)."""
    index = heat_map_index(curves.size(2), projected_lengths)
    return {
        "cumulative": curves.numpy().round(6).tolist(),
        "heat_map_index": index,
        "heat_map": curves[:, :, index - 1].tolist(),
        # Number of largest values that add up to a share of the sum.
        "effective_rank": {f"{share:g}": ((curves < share).sum(2) + 1).tolist() for share in SHARES},
    }


def ranks_to_try(length: int, projected_length: int = 0) -> list[int]:
    """Return 16, 32, 64, ... up to n / 2, or n / 2 alone for a short sequence; and k if it is at most n."""
    powers = {SMALLEST_RANK * 2**power for power in range(length.bit_length())}
    ranks = {rank for rank in powers if rank <= length // 2} or {max(1, length // 2)}
    return sorted(ranks | {projected_length} & {*range(1, length + 1)})


def relative_errors(approximation: Tensor, exact: Tensor) -> Tensor:
    """Return |approximation - exact| / |exact| of each column of each head: (h, n, d_h) both -> (h, d_h)."""
    return (approximation - exact).norm(dim=1) / exact.norm(dim=1)


def truncation_errors(matrix: Tensor, values: Tensor, ranks: Sequence[int]) -> list[Tensor]:
    """Return the relative errors of A_k V for the best A_k of each rank: A (n, n), V (n, d_h) -> (d_h,) each.

    A_k is the truncated singular value decomposition. A V is a sum over orthogonal singular directions, so the squared
    error is the sum of the squares of the omitted ones.
    """
    _, sizes, right = torch.linalg.svd(matrix)
    squares = (sizes.unsqueeze(1) * (right @ values)).square()
    return [(squares[rank:].sum(0) / squares.sum(0)).sqrt() for rank in ranks]


def segment_means(x: Tensor, count: int) -> Tensor:
    """Average keys or values over segments of the sequence: (h, n, d_h) -> (h, count, d_h)."""
    return F.adaptive_avg_pool1d(x.transpose(1, 2), count).transpose(1, 2)


def approximation_errors(attention: Attention, ranks: Sequence[int], x: Tensor, *first_values: Tensor) -> Errors:
    """Compare approximations with softmax attention over the same queries, keys and values.

    The values V include value residuals. The approximations are the best matrix of each rank; a Linformer that averages
    segments, softmax(Q (E K)^T / sqrt(d_h)) F V, except with rotary and ALiBi positions, which projected keys do not
    have; and the heads of the layer, unless it is softmax attention.

    Returns:
        Relative errors of columns of heads, (h d_h,), by name and rank; the rank of the layer itself is None.
    """
    queries, keys, values = (attention.split_heads(projected)[0] for projected in attention.project(x, *first_values))
    matrices = softmax_matrices(attention, queries, keys)
    exact = matrices @ values
    errors: Errors = {}
    truncated = [truncation_errors(matrix, value, ranks) for matrix, value in zip(matrices, values, strict=True)]
    for rank, columns in zip(ranks, zip(*truncated, strict=True), strict=True):
        errors[BEST, rank] = torch.cat(columns)
        if not (attention.rotary_dim or attention.alibi):
            weights = softmax_matrices(attention, queries, segment_means(keys, rank))
            approximation = weights @ segment_means(values, rank)
            errors[SEGMENT_MEANS, rank] = relative_errors(approximation, exact).flatten()
    if not isinstance(attention, SoftmaxAttention):
        heads = without_output_projection(attention)(x, None, *first_values)
        errors[MODEL, None] = relative_errors(attention.split_heads(heads)[0], exact).flatten()
    return errors


def describe_errors(errors: Mapping[tuple[str, int | None], Sequence[Tensor]]) -> dict[str, list[dict[str, Any]]]:
    """Return quantiles over columns, heads and blocks, as a list over ranks by name."""
    described = defaultdict(list)
    for (name, rank), parts in errors.items():
        columns = torch.cat([*parts]).double()
        quantiles = {label: float(columns.quantile(share)) for label, share in QUANTILES.items()}
        described[name].append({"rank": rank, **quantiles})
    return dict(described)


@torch.no_grad()
def measure(encoder: SentenceEncoder, blocks: Tensor, projected_lengths: Sequence[int] = ()) -> dict[str, Any]:
    """Measure spectrum and errors of low-rank approximations.

    Args:
        encoder: in evaluation mode.
        blocks: token ids (R, n), padded on the right to no more than the same length.
        projected_lengths: k of each layer; empty for attention without E and F.
    """
    attentions = attentions_of(encoder)
    length = int(blocks[0].ne(encoder.padding_idx).sum())
    curves = torch.zeros((len(attentions), attentions[0].num_heads, length), dtype=torch.double)
    errors: list[dict[Any, list[Tensor]]] = [defaultdict(list) for _ in attentions]
    for block in tqdm(blocks, unit="block", disable=None):
        for layer, (attention, inputs) in enumerate(zip(attentions, record_inputs(encoder, block), strict=True)):
            for head, matrix in enumerate(attention_matrices(attention, inputs[0])):
                sizes = torch.linalg.svdvals(matrix).double().cpu()
                curves[layer, head] += sizes.cumsum(0) / sizes.sum() / len(blocks)
            ranks = ranks_to_try(length, projected_lengths[layer] if projected_lengths else 0)
            for key, values in approximation_errors(attention, ranks, *inputs).items():
                errors[layer][key].append(values.cpu())
    return {
        "spectrum": describe_spectrum(curves, projected_lengths),
        "low_rank": [describe_errors(layer) for layer in errors],
    }


@torch.no_grad()
def map_attention(encoder: SentenceEncoder, ids: Tensor, count: int) -> np.ndarray:
    """Return the attention of the first T tokens of a sequence (n,) to each other: (L, h, T, T)."""
    pairs = zip(attentions_of(encoder), record_inputs(encoder, ids), strict=True)
    maps = [attention_matrices(attention, x)[:, :count, :count] for attention, (x, *_) in pairs]
    return torch.stack(maps).cpu().numpy()


def analyze(source: Path, text: Path, out: Path, blocks: int, tokens: int, vocabulary: Path | None = None) -> list[str]:
    """Write pictures and numbers of a model's attention on a text file into a new folder.

    Args:
        source, vocabulary: as in ``read_model``.
        blocks: of n tokens, to average over.
        tokens: T, of the first block, or for a fine-tuned model of the first line.

    Returns:
        The names of the files.

    Raises:
        UserError: model or text cannot be read, the attention has no matrix, or `out` is not empty.
    """
    if not text.is_file():
        raise FileNotFoundError(f"there is no file {text}")
    model = read_model(source, vocabulary)
    with staged_folder(out, RESULTS_FILE) as (folder, stream):
        ids = read_blocks(text, model.tokenizer, model.max_positions, blocks)
        sequence = read_first_line(text, model) if model.task._name in FINE_TUNED else ids[0]
        labels = token_labels(model.tokenizer, sequence[:tokens].tolist())
        maps = map_attention(model.encoder, sequence, tokens)  # fast, so first
        draw_maps(maps, labels, folder / "attention_maps.png")
        measured = measure(model.encoder, ids, model.projected_lengths)
        draw_spectrum(measured["spectrum"], model.projected_lengths, folder / "spectrum.png")
        draw_heat_map(measured["spectrum"], folder / "spectrum_heat.png")
        draw_low_rank(measured["low_rank"], model.projected_lengths, folder / "low_rank.png")
        results = {
            "model": model.description,
            "text": {"sha256": digest_file(text), "blocks": len(ids), "tokens": ids.size(1)},
            **measured,
            "maps": {"tokens": labels, "weights": maps.astype(float).round(5).tolist()},
        }
        stream.write(json.dumps(results, allow_nan=False) + "\n")
        return sorted(path.name for path in folder.iterdir())


def draw_spectrum(spectrum: Mapping[str, Any], projected_lengths: Sequence[int], path: Path) -> None:
    """Draw cumulative singular values of each head, one panel per layer: the paper's figure 1, left."""
    curves = np.array(spectrum["cumulative"])  # (L, h, n)
    index = np.arange(1, curves.shape[2] + 1)
    with _panel_per_layer(path, len(curves), projected_lengths) as (figure, panels):
        for panel, heads in zip(panels, curves, strict=True):
            for head, curve in enumerate(heads):
                label = f"head {head}" if len(heads) <= 8 else None
                panel.plot(index, curve, linewidth=1.2, label=label, **style_in_order(head, len(heads)))
            panel.plot(index, heads.mean(0), linewidth=2.2, label="mean", color=style_of(1)["color"])
            panel.set(ylim=(0, 1.02), xlabel="index of singular value", ylabel="cumulative share")
        legend(figure, panels)


def draw_heat_map(spectrum: Mapping[str, Any], path: Path) -> None:
    """Draw the share of the largest singular values by layer and head: the paper's figure 1, right."""
    values = np.array(spectrum["heat_map"])  # (L, h)
    low = min(0.9, math.floor(10 * values.min()) / 10)  # a narrower scale would emphasize noise
    with picture(path, 1, 1, 2.4 + 0.62 * values.shape[1], 1.9 + 0.42 * values.shape[0]) as (figure, panels):
        panel = panels[0, 0]
        panel.grid(visible=False)
        image = panel.imshow(values, norm=Normalize(low, 1), aspect="auto")
        for (layer, head), value in np.ndenumerate(values):
            color = "black" if value > (low + 1) / 2 else "white"
            panel.text(head, layer, f"{value:.3f}", ha="center", va="center", color=color, fontsize=8)
        panel.set(xticks=range(values.shape[1]), yticks=range(values.shape[0]), xlabel="head", ylabel="layer")
        panel.set_title(f"share of the {spectrum['heat_map_index']} largest singular values")
        figure.colorbar(image, format="%.3g")


def draw_low_rank(layers: Sequence[Mapping[str, Any]], projected_lengths: Sequence[int], path: Path) -> None:
    """Draw the errors of approximations against their rank, one panel per layer: median, and 5 to 95 %."""
    largest = max(point["p95"] for layer in layers for points in layer.values() for point in points)
    smallest = min(point["median"] for layer in layers for point in layer[BEST])
    bottom = min(largest / 1000, max(smallest / 3, 1e-6))  # the best approximation of large rank has nearly no error
    with _panel_per_layer(path, len(layers), projected_lengths) as (figure, panels):
        for panel, errors in zip(panels, layers, strict=True):
            for number, name in enumerate((BEST, SEGMENT_MEANS)):
                parts = ("rank", *QUANTILES)
                ranks, low, median, high = ([point[part] for point in errors.get(name, ())] for part in parts)
                style = style_of(number)
                panel.plot(ranks, median, label=name, **style)
                panel.fill_between(ranks, low, high, color=style["color"], alpha=0.18, linewidth=0)
            for point in errors.get(MODEL, ()):
                color = style_of(2)["color"]
                panel.axhline(point["median"], color=color, label=MODEL)
                panel.axhspan(point["p5"], point["p95"], color=color, alpha=0.12, linewidth=0)
            scale_lengths(panel.xaxis, [point["rank"] for point in errors[BEST]])
            scale_log(panel.yaxis)
            panel.set(xlabel="rank k", ylabel="relative error", ylim=(bottom, 1.5 * largest))
        legend(figure, panels)


def draw_maps(maps: np.ndarray, tokens: Sequence[str], path: Path) -> None:
    """Draw attention maps (L, h, T, T), one row of panels per layer and one column per head."""
    layers, heads, _, _ = maps.shape
    scale = PowerNorm(0.5, 0, float(maps.max()))  # a linear scale would only show the largest weights
    labels = [token.replace("$", r"\$") for token in tokens] if len(tokens) <= MAX_LABELS else []  # $ begins a formula
    fontsize = min(7, 140 / len(tokens))
    options = {"sharex": True, "sharey": True}
    with picture(path, layers, heads, 1.5 + 2.2 * heads, 1.2 + 2.2 * layers, **options) as (figure, panels):
        for (layer, head), panel in np.ndenumerate(panels):
            panel.grid(visible=False)
            image = panel.imshow(np.maximum(maps[layer, head], 0), norm=scale)
            panel.set_title(f"layer {layer}, head {head}", fontsize="small")
            panel.set_xticks(range(len(labels)), labels, rotation=90, fontsize=fontsize)
            panel.set_yticks(range(len(labels)), labels, fontsize=fontsize)
        figure.supxlabel("key")
        figure.supylabel("query")
        figure.colorbar(image, ax=panels, label="weight, negative ones as 0", shrink=0.8, aspect=40)


@contextmanager
def _panel_per_layer(path: Path, count: int, projected_lengths: Sequence[int]) -> Iterator[tuple[Figure, list[Axes]]]:
    """Make a picture with a panel per layer, each with a line at its k if there is one."""
    columns = min(COLUMNS, count)
    rows = math.ceil(count / columns)
    with picture(path, rows, columns, 1 + 3.4 * max(2, columns), 1 + 2.8 * rows) as (figure, grid):
        panels = list(grid.flat)
        for layer, panel in enumerate(panels):
            panel.set_title(f"layer {layer}")
            panel.set_visible(layer < count)
        for panel, k in zip(panels, projected_lengths, strict=False):
            panel.axvline(k, color="black", linestyle=":", label="k of the model")
        yield figure, panels[:count]
