"""Selection of segments: each head of a query block attends to the keys of its c best segments.

``score_segments`` chooses candidates by one summary per segment; ``rerank`` scores these by their exact keys.

Dimensions: B batch, n sequence length, b block, N = ceil(n / b) blocks, m segments, w positions of the longest segment,
c segments that a block selects, h heads, d_h their size.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from .blocks import sym_min

CANDIDATES = 8  # candidates per selected segment
MAX_SCORES_PER_CHUNK = 2**20  # on a CPU, so that they fit into its caches; 64 times as many elsewhere


def score_segments(queries: Tensor, summaries: Tensor, attended: Tensor | None) -> Tensor:
    """Score segments for query blocks: sum the weights that a block's queries give to the summaries.

    As in the selection of Native Sparse Attention (Yuan et al. 2025, arXiv 2502.11089, eq. 8 to 10).

    Args:
        queries: (B, h, N, b, d_h), scaled by the root of d_h.
        summaries: (B, h, m, d_h).
        attended: (B, m), False for summaries that are hidden; None for none.

    Returns:
        (B, h, N, m), of which the highest are selected.
    """
    scores = (queries.flatten(2, 3) @ summaries.transpose(2, 3)).unflatten(2, queries.shape[2:4])  # (B, h, N, b, m)
    if attended is not None:
        scores = scores.masked_fill(~attended[:, None, None, None], torch.finfo(scores.dtype).min)
    return scores.softmax(-1).sum(3)


def rerank(queries: Tensor, segments: Tensor, candidates: Tensor, selectable: Tensor) -> Tensor:
    """Score candidates by their exact keys: sum over queries a softmax of each candidate's best key.

    Args:
        queries: (B, h, N, b, d_h), scaled by the root of d_h.
        segments: (B, m, w, h, d_h), keys.
        candidates: (B, h, N, a), of the m segments.
        selectable: (B, h, N, a).

    Returns:
        (B, h, N, a).
    """
    keys = gather_segments(segments, candidates)  # (B, h, N, a w, d_h)
    # Queries last: a maximum over w numbers is faster if these are not contiguous.
    best = (keys @ queries.transpose(3, 4)).unflatten(3, (candidates.size(-1), -1)).amax(4)
    return best.masked_fill(~selectable.unsqueeze(4), torch.finfo(best.dtype).min).softmax(3).sum(4)


def select_segments(
    queries: Tensor, summaries: Tensor, segments: Tensor, selectable: Tensor, attended: Tensor | None, count: int
) -> Tensor:
    """Select c segments per head and query block: score segment summaries, then rerank the best candidates.

    Averaging blurs keys, hence the second step, over ``CANDIDATES`` c segments. No gradients are needed: keys and
    summaries learn from the softmax of attention. Costs B n d (m + CANDIDATES c w), and attention to the selected keys
    2 B n d c w. The B h n max(m, CANDIDATES c w) scores are computed chunk by chunk of blocks.

    Args:
        queries: (B, h, N, b, d_h), scaled by the root of d_h; zeros, whose weights are equal, after the end.
        summaries, segments, attended: as in ``score_segments`` and ``rerank``.
        selectable: (B, N, m), False where a block attends to a whole segment anyway.
        count: c; all m if there are fewer.

    Returns:
        (B, h, N, c).
    """

    def select(queries: Tensor, selectable: Tensor) -> Tensor:
        scores = score_segments(queries, summaries, attended).masked_fill(~selectable, -1.0)
        candidates = scores.topk(sym_min(CANDIDATES * count, summaries.size(2))).indices
        scores = rerank(queries, segments, candidates, selectable.gather(3, candidates))
        return candidates.gather(3, scores.topk(sym_min(count, summaries.size(2))).indices)

    selectable = selectable.unsqueeze(1).expand(-1, queries.size(1), -1, -1)
    if torch.compiler.is_compiling():  # for any length
        return select(queries, selectable)
    scores = queries[:, :, :1, :, 0].numel() * max(summaries.size(2), CANDIDATES * count * segments.size(2))
    size = max(1, (MAX_SCORES_PER_CHUNK if queries.is_cpu else 64 * MAX_SCORES_PER_CHUNK) // scores)
    chunks = zip(queries.split(size, dim=2), selectable.split(size, dim=2), strict=True)
    return torch.cat([select(*chunk) for chunk in chunks], dim=2)


def gather_segments(segments: Tensor, selected: Tensor) -> Tensor:
    """Return the positions of the selected segments of each block.

    Args:
        segments: (B, m, w, h, d_h).
        selected: (B, h, N, c).

    Returns:
        (B, h, N, c w, d_h).
    """
    batch, count, width, heads, size = segments.shape
    table = segments.permute(0, 3, 1, 2, 4).reshape(-1, width * size)  # (B h m, w d_h)
    offsets = count * torch.arange(batch * heads, device=segments.device).view(batch, heads, 1, 1)
    # An embedding, because the backward pass of indexing adds in arbitrary order on a GPU.
    gathered = F.embedding(offsets + selected, table)  # (B, h, N, c, w d_h)
    return gathered.unflatten(-1, (width, size)).flatten(3, 4)
