"""Batches cut into shorter rows: as long as a training has come to, or as long as a model reads.

Short rows teach what is near; what a model has learned from them, it then uses far away (SkyLadder, arXiv 2503.15450).
Texts that are longer than a model reads are cut into chunks, whose features are then put together again.

Dimensions: B rows of a batch, n their length, l that of the rows cut from them, B' their number; C chunks, s the length
of the longest, d embedding.
"""

import math
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

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


class Chunks(NamedTuple):
    """Texts cut into chunks.

    Attributes:
        tokens: (C, s) token ids, padded on the right.
        text: of which text each chunk is, (C,).
        last: where the </s> of each stands, (C,).
        places: (B, n), the number of the position in C x s at which each token of a text is read. That of <s> and </s>
            is any, and so is that of padding.
        ends: where the </s> of each text stands, (B,).
    """

    tokens: Tensor
    text: Tensor
    last: Tensor
    places: Tensor
    ends: Tensor

    def joined(self, features: Tensor) -> Tensor:
        """Features of the texts, (B, n, d), from those of their chunks, (C, s, d).

        A token has its features in its chunk, <s> and </s> the mean over those of all chunks. Padding has any.
        """
        joined = features.flatten(0, 1)[self.places]
        rows, counts = torch.arange(len(joined), device=joined.device), self.text.bincount(minlength=len(joined))
        for place, here in ((0, self.last * 0), (self.ends, self.last)):
            of_chunks = features[torch.arange(len(features), device=joined.device), here]
            sums = features.new_zeros(joined[:, 0].shape).index_add_(0, self.text, of_chunks)
            joined[rows, place] = sums / counts.unsqueeze(1)
        return joined


def cut_texts(tokens: Tensor, longest: int, pad: int) -> Chunks:
    """Cuts each text that is too long into as few chunks as can be, of one length, each between <s> and </s>.

    Chunks depend on their own text alone, not on the others of the batch.

    Args:
        tokens: (B, n): <s>, text, </s>, and padding on the right.
        longest: of a chunk, with <s> and </s>, at least 3.
        pad: fairseq's index of padding.
    """
    device, columns = tokens.device, torch.arange(tokens.size(1), device=tokens.device)
    ends = tokens.ne(pad).sum(1) - 1  # (B,)
    held = (ends - 1).clamp(min=1)  # tokens between <s> and </s>
    counts = -(-held // (longest - 2))
    sizes = -(-held // counts)
    firsts = counts.cumsum(0) - counts  # the first chunk of each text
    text = torch.repeat_interleave(torch.arange(len(tokens), device=device), counts)
    before = (torch.arange(len(text), device=device) - firsts[text]) * sizes[text]  # tokens in the text's chunks before
    last = torch.minimum(sizes[text], held[text] - before) + 1
    here = torch.arange(int(last.max()) + 1, device=device)  # (s,)
    source = torch.where(here == last.unsqueeze(1), ends[text].unsqueeze(1), before.unsqueeze(1) + here)
    source = source.masked_fill(here == 0, 0).clamp(max=tokens.size(1) - 1)  # (C, s)
    cut = tokens[text.unsqueeze(1), source].masked_fill(here > last.unsqueeze(1), pad)
    inner = (columns - 1).clamp(min=0).minimum(held.unsqueeze(1) - 1)  # (B, n)
    chunk = firsts.unsqueeze(1) + inner // sizes.unsqueeze(1)
    return Chunks(cut, text, last, chunk * len(here) + 1 + inner % sizes.unsqueeze(1), ends)
