"""Texts of mixed lengths from lines, and texts in chunks, against loops over their tokens."""

import numpy as np
import pytest
import torch

from fairseq_linformer.data.corpus_rows import CutLines, MixedTexts, ShuffledBatches
from fairseq_linformer.data.truncation import cut_texts

BOS, PAD, EOS = 0, 1, 2


class Lines(list):
    sizes = property(lambda self: np.array([len(line) for line in self], dtype=np.int32))


def lines_of(documents):
    """Return lines of consecutive numbers. They end with </s>, and documents with a lone </s>."""
    lines, number = Lines(), 10
    for sizes in documents:
        for size in sizes:
            lines.append(torch.tensor([*range(number, number + size), EOS]))
            number += size
        lines.append(torch.tensor([EOS]))
    return lines


def texts_of(lines, shortest, longest, seed=1):
    return MixedTexts(lines, lines.sizes, shortest, longest, BOS, EOS, seed)


def test_texts_begin_with_lines_and_stay_in_their_documents():
    rng = np.random.default_rng(0)
    documents = [rng.integers(1, 40, size).tolist() for size in (1, 30, 0, 200, 2)]
    lines = Lines(lines_of(documents)[:-1])  # the last document may lack its end
    begins = {int(line[0]): number for number, line in enumerate(lines) if len(line) > 1}
    texts = texts_of(lines, 5, 100)
    assert len(texts) > 20
    next_line = 0
    for number in range(len(texts)):
        first, *text, last = texts[number].tolist()
        assert (first, last, len(text) + 2) == (BOS, EOS, texts.sizes[number]) and 5 <= len(text) + 2 <= 100
        assert text == list(range(text[0], text[0] + len(text)))  # in order, without </s> between lines
        line = begins[text[0]]
        assert line >= next_line  # no token twice
        inside = [at for at in range(line, len(lines)) if len(lines[at]) > 1 and lines[at][0] <= text[-1]]
        assert all(len(lines[at]) > 1 for at in range(line, inside[-1] + 1))  # no end of a document within
        next_line = inside[-1] + 1
    again, other = texts_of(lines, 5, 100), texts_of(lines, 5, 100, seed=2)
    assert again.sizes.tolist() == texts.sizes.tolist() != other.sizes.tolist()
    assert len(texts_of(lines_of([[1]]), 5, 9)) == 0


@pytest.mark.parametrize("longest", [3, 7])
def test_lines_that_are_too_long_are_cut(longest):
    """No token is lost, short lines are unchanged, and no part is like the end of a document."""
    lines = lines_of([[1, 2, 3, 6, 7, 50, 4], [], [200]])
    cut = CutLines(lines, longest)
    parts = [cut[number] for number in range(len(cut))]
    assert torch.equal(torch.cat(parts), torch.cat(lines))
    assert [len(part) for part in parts] == cut.sizes.tolist() and max(cut.sizes) <= longest
    assert [len(part) for part in parts if part.tolist() == [EOS]] == [1] * 3
    assert all(any(torch.equal(line, part) for part in parts) for line in lines if len(line) <= longest)


@pytest.mark.parametrize(("shortest", "longest", "share"), [(513, 4096, 0.9), (8, 4096, 0.8), (8, 100, 0.9)])
def test_a_line_that_is_a_document_is_several_texts(shortest, longest, share):
    """They are consecutive, do not overlap, and none has tokens of two lines."""
    lines = lines_of([[size] for size in np.random.default_rng(0).integers(1000, 5000, 60)])
    texts = texts_of(lines, shortest, longest)
    last, begins = 0, [int(line[0]) for line in lines if len(line) > 1]
    for number in range(len(texts)):
        _, *text, _ = texts[number].tolist()
        assert text == list(range(text[0], text[0] + len(text))) and shortest <= len(text) + 2 <= longest
        assert text[0] == last + 1 or text[0] in begins
        first_line, last_line = np.searchsorted(begins, [text[0], text[-1]], side="right")
        assert last < text[0] and first_line == last_line
        last = text[-1]
    assert sum(texts.sizes - 2) > share * sum(lines.sizes - 1)


def test_as_many_texts_of_a_length_as_of_its_double():
    lines = np.append(np.full(40_000, 51), 1)
    sizes = MixedTexts(None, lines, 8, 1023, BOS, EOS, seed=1).sizes
    counts = np.histogram(sizes, [8, 16, 32, 64, 128, 256, 512, 1024])[0]
    assert counts.sum() == len(sizes) and counts.min() > 0.75 * counts.max()


def test_batches_are_shuffled():
    batches = ShuffledBatches(texts_of(lines_of([[30] * 200]), 5, 100)).batch_by_size(np.arange(60), max_sentences=2)
    assert sorted(index for batch in batches for index in batch) == list(range(60))
    assert [batch[0] for batch in batches] != sorted(batch[0] for batch in batches)


def padded(*lengths):
    rows = [torch.tensor([BOS, *range(10, 8 + length), EOS]) for length in lengths]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)


@pytest.mark.parametrize("longest", [3, 4, 7, 12, 60])
def test_chunks_are_few_even_and_between_their_ends(longest):
    tokens = padded(30, 3, 12, 29, 13)
    chunks = cut_texts(tokens, longest, PAD)
    for row, text in enumerate(tokens):
        inner = text[text.ne(PAD)].tolist()[1:-1]
        parts = [chunk[chunk.ne(PAD)].tolist() for chunk in chunks.tokens[chunks.text == row]]
        assert len(parts) == -(-len(inner) // (longest - 2))
        assert all((part[0], part[-1]) == (BOS, EOS) and 3 <= len(part) <= longest for part in parts)
        assert [token for part in parts for token in part[1:-1]] == inner
        alone = cut_texts(text[text.ne(PAD)].unsqueeze(0), longest, PAD).tokens
        assert [part[part.ne(PAD)].tolist() for part in alone] == parts
        assert len({len(part) for part in parts[:-1]}) <= 1


@pytest.mark.parametrize("longest", [3, 7, 12, 60])
def test_features_of_chunks_are_joined_by_their_tokens(longest):
    tokens = padded(30, 3, 12, 29)
    chunks = cut_texts(tokens, longest, PAD)
    features = torch.randn(*chunks.tokens.shape, 4, dtype=torch.float64)
    joined = chunks.joined(features)
    assert joined.shape == (*tokens.shape, 4)
    for row, text in enumerate(tokens):
        of_text = chunks.text == row
        parts = [part[ids.ne(PAD)] for part, ids in zip(features[of_text], chunks.tokens[of_text], strict=True)]
        first, last = (torch.stack([part[index] for part in parts]).mean(0, keepdim=True) for index in (0, -1))
        expected = torch.cat([first, *(part[1:-1] for part in parts), last])
        torch.testing.assert_close(joined[row, text.ne(PAD)], expected)
