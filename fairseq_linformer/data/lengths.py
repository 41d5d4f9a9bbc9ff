"""Rows that become longer as a training goes on: a batch of long rows, cut into shorter ones.

Short rows teach what is near; what a model has learned from them, it then uses far away (SkyLadder, arXiv 2503.15450).

Dimensions: B rows of a batch, n their length, l that of the rows cut from them, B' how many these are.
"""

import math
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.nn.functional as F

from ..errors import check

Stage = tuple[int, int]  # the length of its rows, in tokens, and the number of its last update


def as_text(given: Any) -> str:
    """Length:share pairs as one text, 512:0.6,2048:0.4, of such a text, a list of such pairs, or a mapping."""
    return str(given).strip("[]{}").replace("'", "").replace(" ", "")


def read_stages(given: str, updates: int, longest: int) -> list[Stage]:
    """The stages of a training.

    Args:
        given: length:share pairs, as ``as_text`` writes them.
        updates: of the training; a stage lasts its share of them.
        longest: what the last length must be, the tokens of a row.

    Raises:
        UserError: they are no such pairs, a length is below 2 or does not divide the next, the last one is not the
            longest, or the shares are not above 0 or do not sum to 1.
    """
    try:
        pairs = [(int(length), float(share)) for length, share in (pair.split(":") for pair in given.split(","))]
    except ValueError:
        pairs = []
    allowed = "LENGTH:SHARE pairs, such as 512:0.6,2048:0.4; in a YAML file {512: 0.6, 2048: 0.4}"  # 512:0.6 is base 60
    check("lengths", given, bool(pairs), allowed)
    lengths, shares = zip(*pairs, strict=True)
    check("lengths", given, lengths[0] >= 2, "of lengths of at least 2 tokens")
    check("lengths", given, lengths[-1] == longest, f"of lengths up to task.tokens_per_sample={longest}")
    rising = all(one < other and other % one == 0 for one, other in pairwise(lengths))
    check("lengths", given, rising, "of rising lengths, each a divisor of the next")
    whole = min(shares) > 0 and math.isclose(sum(shares), 1, abs_tol=1e-6)
    check("lengths", given, whole, "of shares above 0 whose sum is 1")
    return [(length, round(end * updates)) for length, end in zip(lengths, accumulate(shares), strict=True)]


def stage_of(stages: list[Stage], done: int) -> Stage:
    """The stage of the update after so many."""
    return next((stage for stage in stages if done < stage[1]), stages[-1])


def cut_rows(sample: dict[str, Any], length: int, bos: int, pad: int) -> dict[str, Any]:
    """Cuts each row of a batch into rows of `length`; what would be padding alone is left out.

    Each begins with <s>, as all rows do: from the second part of a row on it replaces the first token, which is no
    target then. A part keeps the last token that it has. ``first_positions`` (B',) int64 of ``net_input`` say how far
    into its row each part begins: it keeps the positions of its tokens.

    Where the batch is padded, which rows are left is asked of the device that it is on, and so is where the masked
    tokens are, as some are masked no more.

    Args:
        sample: a batch of ``DescribedBatches``, whose tokens are (B, n). It stays as it is.
        length: l, of the rows to cut.
        bos, pad: fairseq's indices of <s> and padding.

    Returns:
        A batch of (B', l), B' = B n / l where nothing is padded.
    """
    inputs = {name: value for name, value in sample["net_input"].items() if name != "masked_positions"}
    rows, width = inputs["src_tokens"].shape
    parts = -(-width // length)
    if parts == 1:
        return sample
    first = length * torch.arange(parts, device=inputs["src_tokens"].device).repeat(rows)
    lengths = (inputs["src_lengths"].repeat_interleave(parts) - first).clamp(0, length)
    padded = inputs["padded"] or parts * length > width
    kept = lengths > 0 if padded else slice(None)

    def cut(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if value.dim() == 1:  # one for each row
            return value.repeat_interleave(parts)[kept]
        return F.pad(value, (0, parts * length - width), value=pad).view(-1, length)[kept]

    inputs = {name: cut(value) for name, value in inputs.items()}
    first = first[kept]
    begins = F.pad(first.gt(0).unsqueeze(1), (0, length - 1))  # (B', l)
    inputs |= {"src_tokens": inputs["src_tokens"].masked_fill(begins, bos), "src_lengths": lengths[kept]}
    inputs |= {"padded": padded, "first_positions": first}
    own = {name: cut(value) for name, value in sample.items() if name != "net_input"}
    return {**own, "net_input": inputs, "target": own["target"].masked_fill(begins, pad), "nsentences": len(first)}
