"""Windows on a GPU by one kernel, PyTorch's FlexAttention (Dong et al. 2024, arXiv 2412.05496).

``attention/near.py`` and ``attention/longformer.py`` copy, for each block of queries, the keys that it sees. Here every
key stands once, and a mask says who sees it: tiles of scores in which nobody sees anything are left out, and so is the
mask where all see all. Results differ by rounding alone. Nothing here imports fairseq.

It has no dropout on attention weights, and no part where a layer has no window or fetches segments. On a CPU PyTorch
computes all n x s scores, and has no backward pass.

Dimensions: B batch, n sequence length, m rows, g sinks, s keys, h heads, d_h = d / h.
"""

import copy
import logging
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from ..attention.base import Attention
from ..attention.linformer import LinformerAttention, LinformerOptions
from ..attention.longformer import LongformerAttention
from ..attention.near import EVERYWHERE, show
from ..errors import check

logger = logging.getLogger(__name__)

TILE = 128  # queries, and keys, that the kernel takes or leaves out together
LEAST_HEAD = 16  # d_h, below which PyTorch has no kernel
KEPT = 64  # masks of a layer, each for a length of its own
GRAPHS = 64  # of the kernel: a length or two, with padding and without, in training and not; beyond them it is slow


class Sight(NamedTuple):
    """What the queries of a layer attend to, and by what rule.

    Attributes:
        queries: (B, h, n, d_h).
        keys, values: (B, h, s, d_h).
        size, beside: queries of a block, and positions on either side of it that are near.
        places: gives who sees which key, (B, s), as ``Near.places`` has it.
        possible: gives that for a text without padding in which no key is hidden that a shorter one might show.
    """

    queries: Tensor
    keys: Tensor
    values: Tensor
    size: int
    beside: int
    places: Callable[[], Tensor]
    possible: Callable[[], Tensor]


See: TypeAlias = Callable[[Any, Tensor, Tensor | None, Tensor | None], Sight]


def _see_linformer(
    attention: LinformerAttention, x: Tensor, padding_mask: Tensor | None, first_values: Tensor | None
) -> Sight:
    """Text, rows, sinks: so tiles of keys begin where those of queries do."""
    shown = show(attention, x, padding_mask, first_values)
    near, rows = shown.near, shown.all_rows()
    keys = [shown.turned.transpose(1, 2), shown.keys, near.first(shown.contents).transpose(1, 2)]
    values = [shown.own_values.transpose(1, 2), shown.values, near.first(shown.own_values).transpose(1, 2)]
    return Sight(
        attention.split_heads(attention.rotated(attention.q_proj(x))),
        torch.cat(keys, dim=2),
        torch.cat(values, dim=2),
        near.size,
        near.beside,
        partial(near.places, rows, shown.real),
        # In a shorter text other rows may be those of one position.
        partial(near._replace(averages=False).places, torch.ones_like(rows), torch.ones_like(shown.real)),
    )


def _see_longformer(
    attention: LongformerAttention, x: Tensor, padding_mask: Tensor | None, first_values: Tensor | None
) -> Sight:
    real = attention.real_positions(x, padding_mask)

    def places(shown: Tensor) -> Tensor:
        position = torch.arange(x.size(1), device=x.device)
        return torch.where(position < attention.global_tokens, -EVERYWHERE, position + 1) * shown

    queries, keys, values = map(attention.split_heads, attention.project(x, first_values))
    possible = partial(places, torch.ones_like(real))
    return Sight(queries, keys, values, 1, attention.reach, partial(places, real), possible)


class Flex:
    """The heads of a layer's attention, by the kernel.

    It keeps what the mask of a length is computed of, as padding does not change which tiles matter.
    """

    def __init__(self, see: See):
        self.see = see
        self.masks: dict[Any, tuple[BlockMask, Tensor, Tensor]] = {}

    def __call__(
        self, attention: Attention, x: Tensor, padding_mask: Tensor | None, first_values: Tensor | None
    ) -> Tensor:
        """(B, n, d) -> (B, h, n, d_h); the arguments are those of ``Attention.forward``."""
        sight = self.see(attention, x, padding_mask, first_values)
        # Under autocast means are float32.
        queries, keys, values = (in_tiles(own.to(sight.queries.dtype), dim=2) for own in sight[:3])
        kernel = cast(Callable[..., Tensor], flex_attention if queries.is_cpu else _compiled())
        heads = kernel(queries, keys, values, block_mask=self.mask(sight, padding_mask is not None))
        return heads.narrow(2, 0, x.size(1))

    def mask(self, sight: Sight, padded: bool) -> BlockMask:
        """Who sees which key. Without padding that is known from the sizes."""
        batch, length, device = sight.queries.size(0), sight.queries.size(2), sight.queries.device
        known = (None if padded else batch, length, sight.keys.size(2), device)
        if known not in self.masks:
            if len(self.masks) >= KEPT:
                self.masks.pop(next(iter(self.masks)))
            with torch.inference_mode(False):  # whose tensors a later training could not use
                query = torch.arange(length + -length % TILE, device=device, dtype=torch.int32)
                start = query // sight.size * sight.size
                low, high = (start - sight.beside).clamp(min=0), start + sight.size + sight.beside
                places = in_tiles((sight.possible if padded else sight.places)().int(), dim=1)
                mask = tiled(places[0], low, high, whole=not padded)
            mask.mask_mod = sees(places, low, high)
            self.masks[known] = mask, low, high
        mask, low, high = self.masks[known]
        if padded:
            mask = copy.copy(mask)
            mask.mask_mod = sees(in_tiles(sight.places().int(), dim=1), low, high)
        return mask


def in_tiles(x: Tensor, dim: int) -> Tensor:
    """With zeros after the end of a dimension, up to a whole tile: (..., n, ...) -> (..., ceil(n / TILE) TILE, ...).

    At the edge of a tile PyTorch's kernels have had errors: https://github.com/pytorch/pytorch/issues/153799.
    """
    beyond = -x.size(dim) % TILE
    return nn.functional.pad(x, (0, 0) * (x.dim() - 1 - dim) + (0, beyond)) if beyond else x


def sees(places: Tensor, low: Tensor, high: Tensor) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """The rule by which a query sees a key, as FlexAttention asks for it.

    Tensors alone, no numbers: layers and lengths have one graph.

    Args:
        places: (B, s), as ``Near.places`` has them.
        low, high: (n,): near a query are the places above the one, up to the other.
    """

    def mask_mod(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        place = places[b, kv]
        near = (place.abs() > low[q]) & (place.abs() <= high[q])
        return torch.where(place > 0, near, (place < 0) & ~near)

    return mask_mod


def tiled(places: Tensor, low: Tensor, high: Tensor, whole: bool) -> BlockMask:
    """Which tiles matter, computed without n x s numbers.

    Args:
        places, low, high: those of ``sees``, for one text, in whole tiles: (s,), (n,), (n,).
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


@cache
def _compiled() -> Callable[..., Tensor]:
    compiled = cast(Callable[..., Tensor], torch.compile(flex_attention))

    def kernel(*inputs: Tensor, block_mask: BlockMask) -> Tensor:
        # The kernel for few queries is another one, of which a short text has no need. Within DistributedDataParallel
        # PyTorch would cut the graph by parameters, of which there are none, and refuses to where there is this kernel.
        options = {"FORCE_USE_FLEX_ATTENTION": True}
        with torch._dynamo.config.patch(recompile_limit=GRAPHS, optimize_ddp=False):
            return compiled(*inputs, block_mask=block_mask, kernel_options=options)

    return kernel


def attach(attention: Attention) -> bool:
    """Lets a layer attend by the kernel where it can; whether it can."""
    if isinstance(attention, LongformerAttention):
        attention.flex = Flex(_see_longformer)
    elif isinstance(attention, LinformerAttention) and attention.window and not attention.fetch:
        attention.flex = Flex(_see_linformer)
    return attention.flex is not None


def use_flex(layers: Iterable[nn.Module]) -> None:
    """Lets the layers of an encoder attend by the kernel, those that can and where there is a GPU; logs which."""
    if not torch.cuda.is_available():
        logger.info("flex_attention: without a GPU all layers attend as without it")
        return
    numbers = [str(number) for number, layer in enumerate(layers) if attach(cast(Attention, layer.self_attn))]
    logger.info(
        f"flex_attention: in layers {', '.join(numbers)}; others have no window, or fetch, and attend as without"
    )


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
        layers = zip(options.linformer_window, options.linformer_fetch, strict=True)
        able = any(window and not fetch for window, fetch in layers)
    allowed = "false where no layer is longformer's or has a linformer_window without linformer_fetch"
    check("flex_attention", True, able, allowed)
    for name, value in (("attention_dropout", 0.0), ("compile_layers", False)):
        given = getattr(config, name)
        check("flex_attention", True, given == value, f"false with {name}={given}")
    check("flex_attention", True, config.positions != "alibi", "false with positions=alibi")
    size = config.encoder_embed_dim // config.encoder_attention_heads
    check("flex_attention", True, size >= LEAST_HEAD, f"false with d_h={size}: heads need {LEAST_HEAD} dimensions")
