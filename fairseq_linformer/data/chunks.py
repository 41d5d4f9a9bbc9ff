"""Texts as a model reads them whose longest is shorter: in chunks, whose features are then put together again.

Dimensions: B texts of a batch, n their length, C chunks, s the length of the longest, d embedding.
"""

from typing import NamedTuple

import torch
from torch import Tensor


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
