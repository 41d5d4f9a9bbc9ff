"""Windows on a GPU by one kernel, PyTorch's FlexAttention (Dong et al. 2024, arXiv 2412.05496).

``local.py`` and ``longformer.py`` copy, for each block of queries, the keys that it sees. Here every
key stands once, and a mask says who sees it: tiles of scores in which nobody sees anything are left out, and so is the
mask where all see all. What a layer fetches is added by ``selection.py``. Results differ by rounding alone. Nothing
here imports fairseq.

It has no dropout on attention weights, and no part where a layer has no window. On a CPU PyTorch computes all n x s
scores, and has no backward pass.

Dimensions: B batch, n sequence length, m rows, g sinks, o = m + g, s keys, h heads, d_h = d / h.
"""

import copy
import logging
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from ...errors import check
from ..base import Attention
from ..linformer import LinformerAttention, LinformerOptions
from ..local import EVERYWHERE, near_of, show
from ..longformer import LongformerAttention

logger = logging.getLogger(__name__)

TILE = 128  # queries, and keys, that the kernel takes or leaves out together
LEAST_HEAD = 16  # d_h, below which PyTorch has no kernel
LARGEST_BLOCK = 128  # queries that fetch together: beyond, our kernels spill what registers do not hold
KEPT = 64  # masks of a layer, each for a length of its own
# Tiles of queries and keys, stages and warps, in 16 bits: on an H200 both passes take about 0.8 times as long as with
# PyTorch's own choice, whose backward kernel has the tiles of 128 that its list for autotuning omits because they fail.
HOPPER = {"fwd_BLOCK_M": 128, "fwd_BLOCK_N": 64, "fwd_num_stages": 3, "fwd_num_warps": 4}
HOPPER |= {"bwd_BLOCK_M1": 32, "bwd_BLOCK_N1": 64, "bwd_BLOCK_M2": 64, "bwd_BLOCK_N2": 32}
HOPPER |= {"bwd_num_stages": 3, "bwd_num_warps": 4}
GRAPHS = 64  # of the kernel: a length or two, with padding and without, in training and not; beyond them it is slow


Pair: TypeAlias = tuple[Tensor, Tensor]


class Sight(NamedTuple):
    """What the queries of a layer attend to.

    Attributes:
        queries: of the text, (B, n, h, d_h).
        keys, values: of rows and sinks, zeros, then of the text, as ``joined`` has them, (B, s, h, d_h).
        others, gap: o, and how many zeros stand before the text.
        contents: where the layer fetches, the keys of the text and of its rows, (B, h, m, d_h), by content alone.
    """

    queries: Tensor
    keys: Tensor
    values: Tensor
    others: int
    gap: int
    contents: Pair | None = None


class Rule(NamedTuple):
    """Which keys they see.

    Attributes:
        size, beside: queries of a block, and positions on either side of it that are near.
        others: (B or 1, o), of each key beside the text who sees it, as ``Near.places`` has it.
        text: the same of the text's keys, (B or 1, n).
    """

    size: int
    beside: int
    others: Tensor
    text: Tensor


def _see_linformer(
    attention: LinformerAttention, x: Tensor, padding_mask: Tensor | None, first_values: Tensor | None
) -> Sight:
    shown = show(attention, x, padding_mask, first_values)
    queries = attention.rotated(attention.q_proj(x)).unflatten(-1, shown.contents.shape[2:])

    def others(rows: Tensor, positions: Tensor) -> Tensor:
        rows = rows.transpose(1, 2)
        return torch.cat([rows, shown.near.first(positions)], dim=1) if shown.near.sinks else rows

    beside = others(shown.keys, shown.contents), others(shown.values, shown.own_values)
    contents = (shown.contents, shown.keys.to(queries.dtype)) if attention.fetch else None
    return _sight(queries, beside, (shown.turned, shown.own_values), shown.near.beside, contents)


def _sight(queries: Tensor, others: Pair, text: Pair, beside: int, contents: Pair | None = None) -> Sight:
    """Of keys and values of rows and sinks, and of the text; `beside` as in ``Rule``."""
    number = others[0].size(1)
    gap = gap_before_text(beside, number)
    keys, values = joined(others[0], gap, text[0]), joined(others[1], gap, text[1])
    return Sight(queries, keys, values, number, gap, contents)


def _linformer_rule(attention: LinformerAttention, others: int, padding: Tensor, whole: bool) -> Rule:
    near = near_of(attention, padding.size(1), None if whole else padding)
    shown = None if whole else attention.key_projection.attended_rows(padding)
    if shown is None:
        shown = padding.new_ones((len(padding), others - min(near.sinks, padding.size(1))))
    return Rule(near.size, near.beside, *near.places(shown, ~padding))


def _see_longformer(
    attention: LongformerAttention, x: Tensor, padding_mask: Tensor | None, first_values: Tensor | None
) -> Sight:
    heads = (attention.num_heads, attention.head_dim)
    queries, keys, values = (own.unflatten(-1, heads) for own in attention.project(x, first_values))
    return _sight(queries, (keys[:, :0], values[:, :0]), (keys, values), attention.reach)


def _longformer_rule(attention: LongformerAttention, others: int, padding: Tensor, whole: bool) -> Rule:
    position = torch.arange(padding.size(1), device=padding.device)
    places = torch.where(position < attention.global_tokens, -EVERYWHERE, position + 1) * ~padding
    return Rule(1, attention.reach, places[:, :0], places)


class Known(NamedTuple):
    """What is kept of a length.

    Attributes:
        mask: its tiles.
        start: (n,), where the block of each query begins.
    """

    mask: BlockMask
    start: Tensor


class Flex:
    """The heads of a layer's attention, by the kernel.

    Keys are those beside the text, then those of the text, which begin where a tile of queries sees the fewest tiles of
    them. What is computed of a length alone is kept, as padding does not change which tiles matter.

    Args:
        see: gives what a layer's queries see, by the arguments of its ``forward``.
        rule: gives by what rule, of a layer, the number of keys beside the text, True where a position is padding,
            (B, n), and whether none is.
    """

    def __init__(self, see: Callable[..., Sight], rule: Callable[[Any, int, Tensor, bool], Rule]):
        self.see, self.rule = see, rule
        self.known: dict[Any, Known] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Flex, (self.see, self.rule)  # without masks, whose functions cannot be pickled

    def __call__(
        self, attention: Attention, x: Tensor, padding_mask: Tensor | None, first_values: Tensor | None
    ) -> Tensor:
        """(B, n, d) -> (B, h, n, d_h); the arguments are those of ``Attention.forward``."""
        return self.attend(attention, self.see(attention, x, padding_mask, first_values), padding_mask)

    @torch.compiler.disable
    def attend(self, attention: Any, sight: Sight, padding_mask: Tensor | None) -> Tensor:
        """What the queries make of what they see: (B, h, n, d_h). A layer that is compiled is so around it."""
        length, start = sight.queries.size(1), sight.others + sight.gap
        mask = self.mask(attention, sight, padding_mask)
        near = _near if sight.keys.is_cpu else _compiled()
        given = in_tiles(sight.queries, dim=1), sight.keys, sight.values
        if sight.contents is None:
            return _first(near(*given, block_mask=mask), length, dim=1).transpose(1, 2)
        from torch.nn.attention.flex_attention import AuxRequest  # from PyTorch 2.9 on

        from .selection import fetch  # Triton, which is where a GPU is

        heads, logs = near(*given, block_mask=mask, return_aux=AuxRequest(lse=True))
        texts = (sight.contents[0], 0) if attention.turned else (sight.keys, start), (sight.values, start)
        beside = _first(heads, length, dim=1), _first(logs.lse, length, dim=2)
        found = fetch(attention, sight.queries, *texts, *beside, sight.contents, padding_mask)
        return found.transpose(1, 2)

    def mask(self, attention: Attention, sight: Sight, padding_mask: Tensor | None) -> BlockMask:
        """Who sees which key, without padding as known from the sizes."""
        length, device = sight.queries.size(1), sight.queries.device
        padded, others = padding_mask is not None, sight.others
        about = padded, length, others, device
        if about not in self.known:
            if len(self.known) >= KEPT:
                self.known.pop(next(iter(self.known)))
            with torch.inference_mode(False):  # whose tensors a later training could not use
                none = torch.zeros((1, length), dtype=torch.bool, device=device)
                self.known[about] = _about(self.rule(attention, others, none, True), sight.gap, length, padded)
        mask, start = self.known[about]
        if padding_mask is not None:
            mask = copy.copy(mask)
            mask.mask_mod = sees(self.rule(attention, others, padding_mask, False), start, sight.gap)
        return mask


def _about(rule: Rule, gap: int, length: int, padded: bool) -> Known:
    query = torch.arange(length + -length % TILE, device=rule.text.device, dtype=torch.int32)
    start = query // rule.size * rule.size
    if padded:  # in a shorter text a key may be seen that is hidden here
        rule = rule._replace(others=torch.full_like(rule.others, -EVERYWHERE))
    low, high = (start - rule.beside).clamp(min=0), start + rule.size + rule.beside
    mask = tiled(_in_order(rule, gap)[0], low, high, whole=not padded)
    mask.mask_mod = sees(rule, start, gap)
    return Known(mask, start)


def _in_order(rule: Rule, gap: int) -> Tensor:
    """Who sees which key, of all keys as they stand: (B or 1, s)."""
    return joined(rule.others.int(), gap, rule.text.int())


def gap_before_text(beside: int, others: int) -> int:
    """How many keys of nothing stand there, so that a tile of queries sees the fewest tiles of the text's keys."""
    return (beside - others) % TILE


def joined(others: Tensor, gap: int, text: Tensor) -> Tensor:
    """(B, o, ...) and (B, n, ...), zeros between them and up to a whole tile: (B, s, ...)."""
    batch, rest = text.size(0), text.shape[2:]
    end = -(others.size(1) + gap + text.size(1)) % TILE
    parts = [others.to(text.dtype), text.new_zeros(batch, gap, *rest), text, text.new_zeros(batch, end, *rest)]
    return torch.cat(parts, 1) if others.size(1) + gap + end else text


def _first(x: Tensor, length: int, dim: int) -> Tensor:
    """The first entries of a dimension; where they are all, nothing that a backward pass would copy."""
    return x if x.size(dim) == length else x.narrow(dim, 0, length)


def in_tiles(x: Tensor, dim: int) -> Tensor:
    """With zeros after the end of a dimension, up to a whole tile: (..., n, ...) -> (..., ceil(n / TILE) TILE, ...).

    At the edge of a tile PyTorch's kernels have had errors: https://github.com/pytorch/pytorch/issues/153799.
    """
    beyond = -x.size(dim) % TILE
    return nn.functional.pad(x, (0, 0) * (x.dim() - 1 - dim) + (0, beyond)) if beyond else x


def sees(rule: Rule, start: Tensor, gap: int) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """The rule by which a query sees a key, as FlexAttention asks for it.

    A key is seen by the blocks that begin at one of an interval of places, or of all others, which is an interval, too,
    where numbers of 32 bits go round in a circle. So there is one difference and one comparison, d - 2^31 < s - 2^31 of
    signed numbers being d < s of unsigned ones. Tensors alone, no numbers: layers and lengths have one graph.

    Args:
        rule: which keys are seen.
        start: (n,), where the block of each query begins.
        gap: as in ``Sight``.
    """
    places, span = _in_order(rule, gap).long(), rule.size + 2 * rule.beside
    first = places.abs() - rule.size - rule.beside
    first, number = torch.where(places < 0, first + span, first), torch.where(places < 0, 2**32 - span, span)
    everywhere = places == -EVERYWHERE
    first, number = first.masked_fill(everywhere, 0), number.masked_fill(everywhere, EVERYWHERE) * (places != 0)
    shift = ((first + 2**32) % 2**32 - 2**31).int()  # first + 2^31, round the circle
    bound = (number - 2**31).int()
    one = len(places) == 1

    def mask_mod(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return start[q] - (shift[0, kv] if one else shift[b, kv]) < (bound[0, kv] if one else bound[b, kv])

    return mask_mod


def tiled(places: Tensor, low: Tensor, high: Tensor, whole: bool) -> BlockMask:
    """Which tiles matter, computed without n x s numbers.

    Args:
        places: (s,), who sees which key, in whole tiles.
        low, high: (n,), in whole tiles: near a query are the places above the one, up to the other.
        whole: also find tiles in which every query sees every key.
    """
    first, last = slice(0, None, TILE), slice(TILE - 1, None, TILE)  # queries of each tile: both ends grow with them
    (lowest, low), (high, highest) = ((own[first, None], own[last, None]) for own in (low, high))
    some = (places < 0) | ((places > lowest) & (places <= highest))  # (n / TILE, s)
    every = (places == -EVERYWHERE) | ((places > low) & (places <= high))
    some, every = some.unflatten(1, (-1, TILE)).any(2), every.unflatten(1, (-1, TILE)).all(2)
    sizes = (TILE * some.size(0), places.size(0))
    numbers, listed = _listed(some & ~every if whole else some)
    numbers_full, listed_full = _listed(every) if whole else (None, None)
    return BlockMask.from_kv_blocks(numbers, listed, numbers_full, listed_full, TILE, seq_lengths=sizes)


def _listed(tiles: Tensor) -> tuple[Tensor, Tensor]:
    """Of each row how many are True, and their numbers first: (N, M) to (1, 1, N) and (1, 1, N, M)."""
    numbers = tiles.int().argsort(dim=1, descending=True, stable=True)
    return tiles.sum(1).int()[None, None], numbers.int()[None, None]


def _near(queries: Tensor, keys: Tensor, values: Tensor, **more: Any) -> Any:
    """PyTorch's kernel for (B, n, h, d_h) and (B, s, h, d_h), and what it gives, (B, n, h, d_h)."""
    kernel = cast(Callable[..., Any], flex_attention)  # whose overloads leave out some of what it takes
    found = kernel(*(own.transpose(1, 2) for own in (queries, keys, values)), **more)
    return found.transpose(1, 2) if isinstance(found, Tensor) else (found[0].transpose(1, 2), *found[1:])


def _options(queries: Tensor) -> dict[str, Any]:
    # The kernel for few queries is another one, of which a short text has no need.
    options: dict[str, Any] = {"FORCE_USE_FLEX_ATTENTION": True}
    if queries.dtype != torch.float32 and queries.size(-1) <= 64 and _is_hopper(queries.device):
        options |= HOPPER
    return options


@cache
def _is_hopper(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) == (9, 0)


@cache
def _compiled() -> Callable[..., Any]:
    # With the transpositions, as PyTorch has a gradient copied that does not stand as a tensor by itself would.
    compiled = torch.compile(_near)

    def near(*inputs: Any, **more: Any) -> Any:
        # Of each thread: autograd's computes layers again.
        torch._dynamo.config.recompile_limit = GRAPHS
        # Within DistributedDataParallel PyTorch would cut the graph by parameters, of which there are none, and refuses
        # to where there is this kernel.
        torch._dynamo.config.optimize_ddp = False
        return compiled(*inputs, kernel_options=_options(inputs[0]), **more)

    return near


def attach(attention: Attention) -> bool:
    """Lets a layer attend by the kernel where it can; whether it can."""
    if isinstance(attention, LongformerAttention):
        attention.flex = Flex(_see_longformer, _longformer_rule)
    elif isinstance(attention, LinformerAttention) and attention.window:
        attention.flex = Flex(_see_linformer, _linformer_rule)
    return attention.flex is not None


def use_flex(layers: Iterable[nn.Module]) -> None:
    """Lets the layers of an encoder attend by the kernel, those that can and where there is a GPU; logs which."""
    if not torch.cuda.is_available():
        logger.info("flex_attention: without a GPU all layers attend as without it")
        return
    numbers = [str(number) for number, layer in enumerate(layers) if attach(cast(Attention, layer.self_attn))]
    logger.info(f"flex_attention: in layers {', '.join(numbers)}; others have no window, and attend as without")


def validate_flex(config: Any) -> None:
    """Refuses ``flex_attention`` where it cannot work, or no layer can have it.

    Raises:
        UserError: it is on, and cannot work.
    """
    if not config.flex_attention:
        return
    able = config.attention in ("longformer", "alternating")
    if config.attention == "linformer":
        options = LinformerOptions.read(config)
        able = any(options.linformer_window)
        new = hasattr(torch.nn.attention.flex_attention, "AuxRequest") or not any(options.linformer_fetch)
        check("flex_attention", True, new, f"false with linformer_fetch and PyTorch {torch.__version__}, before 2.9")
        each = zip(options.linformer_window, options.linformer_fetch, strict=True)
        block = max((options.linformer_block or window for window, fetch in each if fetch), default=0)
        allowed = f"at most {LARGEST_BLOCK} with flex_attention and linformer_fetch, such as 32 (0: the window)"
        check("linformer_block", block, block <= LARGEST_BLOCK, allowed)
    allowed = "false where no layer is longformer's or has a linformer_window"
    check("flex_attention", True, able, allowed)
    dropout = config.attention_dropout
    check("flex_attention", True, dropout == 0, f"false with attention_dropout={dropout}")
    check("flex_attention", True, config.positions != "alibi", "false with positions=alibi")
    size = config.encoder_embed_dim // config.encoder_attention_heads
    check("flex_attention", True, size >= LEAST_HEAD, f"false with d_h={size}: heads need {LEAST_HEAD} dimensions")
