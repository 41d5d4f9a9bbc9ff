"""Local windows on a GPU by one kernel, PyTorch's FlexAttention (Dong et al. 2024, arXiv 2412.05496).

``local.py`` and ``longformer.py`` copy the keys of each query block. Here every key is stored once, and a mask tells
which blocks attend to it. Hidden tiles of scores are skipped, and so is the mask in fully visible tiles. The formulas
are those of ``linformer.py`` and ``longformer.py``, and results differ by rounding alone. Keys and values take O(B s d)
memory, and scores none.

There is no dropout on attention weights, and no kernel for a layer without a window. On a CPU PyTorch computes all n x
s scores, and has no backward pass.

Dimensions: B batch, n sequence length, m projected keys, g sinks, s keys, d embedding, h heads, d_h = d / h.
"""

import copy
import logging
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from ...errors import check
from ..base import Attention, get_attention
from ..linformer import LinformerAttention, LinformerOptions
from ..local import LocalContext, Visibility
from ..longformer import LongformerAttention

logger = logging.getLogger(__name__)

TILE = 128  # queries, or keys, that the kernel computes or skips together
MIN_HEAD_DIM = 16  # d_h below which PyTorch has no kernel
MAX_CACHED_MASKS = 64  # per layer, each for one length
# Tiles of queries and keys, stages and warps, in 16 bits: on an H200 both passes take about 0.8 times as long as with
# PyTorch's defaults. Its default tiles of 128 for the backward kernel are not in its list for autotuning: they fail.
HOPPER = {"fwd_BLOCK_M": 128, "fwd_BLOCK_N": 64, "fwd_num_stages": 3, "fwd_num_warps": 4}
HOPPER |= {"bwd_BLOCK_M1": 32, "bwd_BLOCK_N1": 64, "bwd_BLOCK_M2": 64, "bwd_BLOCK_N2": 32}
HOPPER |= {"bwd_num_stages": 3, "bwd_num_warps": 4}
RECOMPILE_LIMIT = 64  # compiled graphs of the kernel: one or two lengths, padded or not, training or not


class FlexInputs(NamedTuple):
    """Queries, keys and values of a layer.

    Attributes:
        queries: (B, n, h, d_h).
        keys, values: projected ones and sinks, zeros, then those of the text, as ``lay_out`` orders them, (B, s, h,
            d_h).
        prefix_len, prefix_pad: m + g, and the number of zeros before the text.
    """

    queries: Tensor
    keys: Tensor
    values: Tensor
    prefix_len: int
    prefix_pad: int


class MaskSpec(NamedTuple):
    """Attention mask of a layer.

    Attributes:
        block: queries of a block.
        prefix: visibility of projected keys and sinks, (B or 1, m + g).
        text: visibility of the text's keys, (B or 1, n).
    """

    block: int
    prefix: Visibility
    text: Visibility

    def visibility(self, prefix_pad: int) -> Visibility:
        """Return the visibility of all keys in the order of ``lay_out``: (B or 1, s)."""
        return Visibility(*(lay_out(*parts, prefix_pad) for parts in zip(self.prefix, self.text, strict=True)))


def _linformer_inputs(
    attention: LinformerAttention, x: Tensor, padding_mask: Tensor | None, first_values: Tensor | None
) -> FlexInputs:
    kv = attention.project_windowed_kv(x, padding_mask, first_values)
    context = attention.local_context(x.size(1))
    queries = attention.rotated(attention.q_proj(x)).unflatten(-1, kv.values.shape[2:])

    def prefix(projected: Tensor, positions: Tensor) -> Tensor:
        projected = projected.transpose(1, 2)
        return torch.cat([projected, context.sinks_of(positions)], dim=1) if context.sinks else projected

    prefixes = prefix(kv.projected_keys, kv.unrotated_keys), prefix(kv.projected_values, kv.values)
    return _inputs(queries, prefixes, (kv.rotary_keys, kv.values), context.margin)


def _longformer_inputs(
    attention: LongformerAttention, x: Tensor, padding_mask: Tensor | None, first_values: Tensor | None
) -> FlexInputs:
    heads = (attention.num_heads, attention.head_dim)
    queries, keys, values = (part.unflatten(-1, heads) for part in attention.project(x, first_values))
    return _inputs(queries, (keys[:, :0], values[:, :0]), (keys, values), attention.reach)


def _inputs(queries: Tensor, prefix: tuple[Tensor, Tensor], text: tuple[Tensor, Tensor], margin: int) -> FlexInputs:
    """Lay out keys and values of prefix and text so that each tile of queries has the fewest tiles of local keys."""
    prefix_len = prefix[0].size(1)
    prefix_pad = (margin - prefix_len) % TILE
    keys, values = (lay_out(*parts, prefix_pad) for parts in zip(prefix, text, strict=True))
    return FlexInputs(queries, keys, values, prefix_len, prefix_pad)


def _linformer_mask(attention: LinformerAttention, prefix_len: int, padding: Tensor) -> MaskSpec:
    context = attention.local_context(padding.size(1))
    attended = attention.key_projection.attended_rows(padding)
    if attended is None:
        attended = padding.new_ones((len(padding), prefix_len - min(context.sinks, padding.size(1))))
    return MaskSpec(context.size, context.prefix_visibility(attended, ~padding), context.text_visibility(~padding))


def _longformer_mask(attention: LongformerAttention, prefix_len: int, padding: Tensor) -> MaskSpec:
    # A block is one query. Global tokens keep their positions in the text, and are visible to all.
    text = LocalContext(1, attention.reach, attention.global_tokens, None).text_visibility(~padding)
    is_global = ~padding & (torch.arange(padding.size(1), device=padding.device) < attention.global_tokens)
    text = text._replace(outside=is_global)
    return MaskSpec(1, Visibility(*(part[:, :0] for part in text)), text)


class CachedMask(NamedTuple):
    """Part of a mask that depends on the length alone.

    Attributes:
        mask: its tiles.
        block_starts: (n,), the start of each query's block.
    """

    mask: BlockMask
    block_starts: Tensor


class FlexKernel:
    """FlexAttention of a layer's heads.

    The part of a mask that depends on the length alone is cached, as padding does not change which tiles are computed.

    Args:
        inputs: returns queries and keys of a layer, from the arguments of its ``forward``.
        spec: returns the mask of a layer, from the number of keys before the text and the padding mask (B, n).
    """

    def __init__(self, inputs: Callable[..., FlexInputs], spec: Callable[[Any, int, Tensor], MaskSpec]):
        self.inputs, self.spec = inputs, spec
        # Disabled per kernel: a decorator would import PyTorch's compiler wherever this module is imported.
        self.attend: Callable[..., Tensor] = torch.compiler.disable(self._attend)
        self.cached: dict[tuple[bool, int, int, torch.device], CachedMask] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return FlexKernel, (self.inputs, self.spec)  # without masks, whose functions cannot be pickled

    def __call__(
        self, attention: Attention, x: Tensor, padding_mask: Tensor | None, first_values: Tensor | None
    ) -> Tensor:
        """Return the heads, (B, n, d) -> (B, h, n, d_h); the arguments are those of ``Attention.forward``."""
        return self.attend(attention, self.inputs(attention, x, padding_mask, first_values), padding_mask)

    def _attend(self, attention: Attention, inputs: FlexInputs, padding_mask: Tensor | None) -> Tensor:
        """Attend from all queries: (B, h, n, d_h). A compiled layer leaves this function uncompiled."""
        length = inputs.queries.size(1)
        mask = self.mask(attention, inputs, padding_mask)
        kernel = _flex if inputs.keys.is_cpu else _compiled()
        heads = kernel(_pad_to_tile(inputs.queries), inputs.keys, inputs.values, block_mask=mask)
        # No slice where it would change nothing, as its backward pass copies.
        return (heads if heads.size(1) == length else heads[:, :length]).transpose(1, 2)

    def mask(self, attention: Attention, inputs: FlexInputs, padding_mask: Tensor | None) -> BlockMask:
        """Return the block mask; without padding it depends on sizes alone."""
        length, device = inputs.queries.size(1), inputs.queries.device
        padded, prefix_len = padding_mask is not None, inputs.prefix_len
        cache_key = padded, length, prefix_len, device
        if cache_key not in self.cached:
            if len(self.cached) >= MAX_CACHED_MASKS:
                self.cached.pop(next(iter(self.cached)))
            with torch.inference_mode(False):  # whose tensors training could not use later
                no_padding = torch.zeros((1, length), dtype=torch.bool, device=device)
                spec = self.spec(attention, prefix_len, no_padding)
                self.cached[cache_key] = _length_mask(spec, inputs.prefix_pad, length, padded)
        mask, block_starts = self.cached[cache_key]
        if padding_mask is not None:
            mask = copy.copy(mask)
            spec = self.spec(attention, prefix_len, padding_mask)
            mask.mask_mod = make_mask_mod(spec.visibility(inputs.prefix_pad), block_starts)
        return mask


def _length_mask(spec: MaskSpec, prefix_pad: int, length: int, padded: bool) -> CachedMask:
    query = torch.arange(length + -length % TILE, device=spec.text.start.device, dtype=torch.int32)
    block_starts = query // spec.block * spec.block
    if padded:  # in a shorter text a hidden key may become visible
        zeros = torch.zeros_like(spec.prefix.start)
        spec = spec._replace(prefix=Visibility(zeros, zeros, torch.ones_like(spec.prefix.outside)))
    visibility = spec.visibility(prefix_pad)
    mask = make_block_mask(visibility, block_starts, full_tiles=not padded)
    mask.mask_mod = make_mask_mod(visibility, block_starts)
    return CachedMask(mask, block_starts)


def lay_out(prefix: Tensor, text: Tensor, prefix_pad: int) -> Tensor:
    """Concatenate (B, m + g, ...) and (B, n, ...), with zeros between them and up to a whole tile: (B, s, ...)."""
    end = -(prefix.size(1) + prefix_pad + text.size(1)) % TILE
    zeros, end_zeros = (text.new_zeros(text.size(0), length, *text.shape[2:]) for length in (prefix_pad, end))
    parts = [prefix.to(text.dtype), zeros, text, end_zeros]
    return torch.cat(parts, 1) if prefix.size(1) + prefix_pad + end else text


def _pad_to_tile(queries: Tensor) -> Tensor:
    """Pad queries with zeros to whole tiles: (B, n, h, d_h) -> (B, ceil(n / TILE) TILE, h, d_h).

    PyTorch's kernels have had errors in partial tiles: https://github.com/pytorch/pytorch/issues/153799.
    """
    end = -queries.size(1) % TILE
    return nn.functional.pad(queries, (0, 0, 0, 0, 0, end)) if end else queries


def make_mask_mod(visibility: Visibility, block_starts: Tensor) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Return the visibility, (B or 1, s), as the function of query and key that FlexAttention takes.

    With 32-bit integers that wrap around, the complement of an interval is an interval, too. So one difference and one
    comparison suffice: block start - begin < length for unsigned numbers, or x - 2^31 < y - 2^31 for signed ones. Only
    tensors are captured, no numbers, so that layers and lengths share one graph.
    """
    start, stop, outside = visibility.start.long(), visibility.stop.long(), visibility.outside
    begin, length = torch.where(outside, stop, start), torch.where(outside, 2**32 - stop + start, stop - start)
    begin = ((begin + 2**32) % 2**32 - 2**31).int()
    length = (length.clamp(max=2**32 - 1) - 2**31).int()
    shared = len(outside) == 1  # by all sequences of the batch

    def mask_mod(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        row = 0 if shared else b
        return block_starts[q] - begin[row, kv] < length[row, kv]

    return mask_mod


def make_block_mask(visibility: Visibility, block_starts: Tensor, full_tiles: bool) -> BlockMask:
    """Find the visible tiles without n x s numbers.

    Args:
        visibility: of keys in whole tiles, (1, s).
        block_starts: of queries in whole tiles, (n,).
        full_tiles: also find tiles in which every query attends to every key.
    """
    first, last = block_starts[::TILE, None], block_starts[TILE - 1 :: TILE, None]  # of the queries in each tile
    start, stop, outside = visibility
    any_visible = outside | ((start <= last) & (first < stop))  # (n / TILE, s)
    all_visible = torch.where(outside, start == stop, (start <= first) & (last < stop))
    any_visible, all_visible = any_visible.unflatten(1, (-1, TILE)).any(2), all_visible.unflatten(1, (-1, TILE)).all(2)
    sizes = (TILE * any_visible.size(0), outside.size(1))
    numbers, indices = _dense_to_ordered(any_visible & ~all_visible if full_tiles else any_visible)
    full_numbers, full_indices = _dense_to_ordered(all_visible) if full_tiles else (None, None)
    return BlockMask.from_kv_blocks(numbers, indices, full_numbers, full_indices, TILE, seq_lengths=sizes)


def _dense_to_ordered(tiles: Tensor) -> tuple[Tensor, Tensor]:
    """Return for each row the number of True entries, and their indices first: (N, M) to (1, 1, N) and (1, 1, N, M)."""
    indices = tiles.int().argsort(dim=1, descending=True, stable=True)
    return tiles.sum(1).int()[None, None], indices.int()[None, None]


def _flex(queries: Tensor, keys: Tensor, values: Tensor, **options: Any) -> Tensor:
    """Run PyTorch's kernel on (B, n, h, d_h) and (B, s, h, d_h); return (B, n, h, d_h)."""
    queries, keys, values = (x.transpose(1, 2) for x in (queries, keys, values))
    return flex_attention(queries, keys, values, **options).transpose(1, 2)


def _options(queries: Tensor) -> dict[str, Any]:
    # PyTorch has another kernel for few queries, which decodes token by token; a short text does not need it.
    options: dict[str, Any] = {"FORCE_USE_FLEX_ATTENTION": True}
    if queries.dtype != torch.float32 and queries.size(-1) <= 64 and _is_hopper(queries.device):
        options |= HOPPER
    return options


@cache
def _is_hopper(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) == (9, 0)


@cache
def _compiled() -> Callable[..., Tensor]:
    # _flex transposes within the graph, because PyTorch copies a gradient that is not contiguous.
    compiled = torch.compile(_flex)

    def kernel(*inputs: Tensor, **options: Any) -> Tensor:
        # A setting per thread: autograd's threads recompute layers.
        torch._dynamo.config.recompile_limit = RECOMPILE_LIMIT
        # In DistributedDataParallel PyTorch would split the graph by parameters. This graph has none, and PyTorch does
        # not support splitting this kernel.
        torch._dynamo.config.optimize_ddp = False
        return compiled(*inputs, kernel_options=_options(inputs[0]), **options)

    return kernel


def validate(config: Any) -> None:
    """Reject a configuration in which no layer can use FlexAttention."""
    windowed = config.attention in ("longformer", "alternating")
    if get_attention(config.attention).uses_projection(config):
        windowed = windowed or any(LinformerOptions.read(config).linformer_window)
    check("flex_attention", True, windowed, "false where no layer is longformer's or has a linformer_window")
    dropout = config.attention_dropout
    check("flex_attention", True, dropout == 0, f"false with attention_dropout={dropout}")
    check("flex_attention", True, config.positions != "alibi", "false with positions=alibi")
    size = config.encoder_embed_dim // config.encoder_attention_heads
    check("flex_attention", True, size >= MIN_HEAD_DIM, f"false with d_h={size}: heads need {MIN_HEAD_DIM} dimensions")


def attach(attention: Attention) -> bool:
    """Enable FlexAttention for a layer; return True if it is supported."""
    if isinstance(attention, LongformerAttention):
        attention.kernel = FlexKernel(_longformer_inputs, _longformer_mask)
    elif isinstance(attention, LinformerAttention) and attention.window:
        attention.kernel = FlexKernel(_linformer_inputs, _linformer_mask)
    return attention.kernel is not None


def use_flex(layers: Iterable[nn.Module]) -> None:
    """Enable FlexAttention on a GPU for the layers of an encoder that support it, and log which."""
    if not torch.cuda.is_available():
        logger.info("flex_attention has no effect: there is no GPU")
        return
    numbers = [str(number) for number, layer in enumerate(layers) if attach(cast(Attention, layer.self_attn))]
    logger.info(f"flex_attention: layers {', '.join(numbers)} use it; others have no window")
