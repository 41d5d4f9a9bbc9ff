"""Losses at the same masked tokens of a text, however long the rows are."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from benchmarking import masked_text
from benchmarking.losses_by_distance import NOWHERE
from benchmarking.masked_text import MaskedText, perplexity, read_split

from fairseq_linformer.training.masked_lm import DynamicMaskedLMConfig, DynamicMaskedLMTask

SYMBOLS, BOS, MASK = 50, 0, 49


class Model:
    """A model whose loss is log(V - 1 + exp(position)) for any token, and keeps what it is given."""

    def __init__(self):
        self.given, self.model, self.device = [], self, "cpu"
        self.task = SimpleNamespace(mask_idx=MASK, source_dictionary=SimpleNamespace(bos=lambda: BOS))

    def eval(self):
        pass

    def __call__(self, inputs, masked_tokens, padded):
        self.given.append(inputs)
        assert inputs[:, 0].eq(BOS).all() and not masked_tokens[:, 0].any()
        assert masked_tokens.equal(inputs.eq(MASK))
        logits = torch.zeros(int(masked_tokens.sum()), SYMBOLS)
        logits[:, MASK] = masked_tokens.nonzero()[:, 1].float()
        return logits, {}

    @property
    def text(self):
        """What it was shown, without <s>."""
        return torch.cat([rows[:, 1:].flatten() for rows in self.given])


@pytest.fixture
def text():
    """1,003 tokens: the last row is a shorter one for every length here, at n = 335 of one token."""
    return MaskedText.of_stream(np.random.default_rng(0).integers(4, 40, 1003, dtype=np.uint16))


def test_every_length_is_shown_the_same_text_with_the_same_tokens_masked(text):
    shown = text.tokens.masked_fill(text.masked, MASK)
    assert 0.2 < text.masked.double().mean() < 0.3
    for length in (16, 64, 335):
        model = Model()
        assert len(text.token_losses(model, length)) == text.masked.sum()
        assert model.text.equal(shown), length
        assert {rows.size(1) for rows in model.given[:-1]} <= {length}


def test_masks_do_not_depend_on_what_else_is_drawn_or_where_the_text_ends(text):
    torch.manual_seed(5)
    again = MaskedText.of_stream(text.tokens[:500].numpy())
    assert again.masked.equal(text.masked[:500]) and again.digest != text.digest


def test_the_text_has_its_most_tokens(monkeypatch):
    monkeypatch.setattr(masked_text, "TOKENS", 100)
    assert len(MaskedText.of_stream(np.arange(4, 200)).tokens) == 100


@pytest.mark.parametrize("length", [16, 64, 512])
def test_perplexity_is_that_of_a_naive_count(text, length):
    places = text.masked.nonzero().flatten().tolist()
    losses = [math.log(SYMBOLS - 1 + math.exp(place % (length - 1) + 1)) for place in places]
    found = perplexity(text.token_losses(Model(), length))
    assert math.log(found) == pytest.approx(sum(losses) / len(losses), rel=1e-6)


@pytest.mark.parametrize("length", [16, 64, 335, 2048])
def test_losses_by_distance_are_those_of_a_naive_count(text, length, monkeypatch):
    """The same token in another row, or masked, is no answer; one that is common has no class."""
    monkeypatch.setattr(masked_text, "COMMONEST", 0.028)
    monkeypatch.setattr(masked_text, "WINDOW", (4, 32))
    found = text.by_distance(text.token_losses(Model(), length), length)
    limits = [0, *found.limits]
    sums, counts = [0.0] * len(limits), [0] * len(limits)
    for place in text.masked.nonzero().flatten().tolist():
        token, row = text.tokens[place], place // (length - 1) * (length - 1)
        if (text.tokens == token).sum() <= 0.028 * 1003:
            others = [x for x in range(row, min(1003, row + length - 1)) if text.tokens[x] == token]
            nearest = min((abs(x - place) for x in others if not text.masked[x]), default=NOWHERE)
            number = next(number for number, limit in enumerate(limits) if nearest <= limit)
            sums[number] += np.logaddexp(math.log(SYMBOLS - 1), place - row + 1)
            counts[number] += 1
    assert 50 < sum(counts) < 200 and found.counts.sum(0).tolist() == counts
    assert found.sums.sum(0) == pytest.approx(sums, rel=1e-5)


def test_a_text_without_masked_or_rare_tokens_has_no_perplexity(text):
    for own in (text, MaskedText.of_stream(np.arange(4, 7))):
        found = own.by_distance(own.token_losses(Model(), 64), 64)
        assert found.limits == (64,) and found.counts.shape == (0, 2)
        assert all(one.share == 0 and math.isnan(one.high) for one in found.classes())


def test_rows_are_those_of_the_training_task(corpus):
    text = MaskedText.of_stream(read_split(corpus, "valid", 64))
    for length in (16, 64):
        cfg = DynamicMaskedLMConfig(data=str(corpus), tokens_per_sample=length, sample_break_mode="none", seed=1)
        task = DynamicMaskedLMTask.setup_task(cfg)
        task.load_dataset("valid")
        dataset, pad = task.dataset("valid"), task.source_dictionary.pad()
        items = [dataset[i] for i in range(len(dataset))]
        tokens = [torch.where(x["target"].eq(pad), x["net_input.src_tokens"], x["target"]) for x in items]
        rows = [text.tokens[row] for places in text.rows(length) for row in places]
        assert len(rows) == len(tokens)
        assert all(own[1:].equal(row) for own, row in zip(tokens, rows, strict=True))
        assert all(own[0] == task.source_dictionary.bos() for own in tokens)


def test_a_split_that_is_missing_or_too_short_is_refused(corpus, tmp_path):
    with pytest.raises(ValueError, match=r"valid has 1,165 tokens, fewer than the longest block, 5,000"):
        read_split(corpus, "valid", 5000)
    with pytest.raises(FileNotFoundError, match=r"there is no dataset .*test"):
        read_split(corpus, "test", 64)
    with pytest.raises(FileNotFoundError, match=r"dict\.txt"):
        read_split(tmp_path, "valid", 64)
