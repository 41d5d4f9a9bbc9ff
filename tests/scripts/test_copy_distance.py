"""Perplexity by copy distance compared with its definition in loops."""

import math
import shutil
from types import SimpleNamespace

import copy_distance
import numpy as np
import pytest
import torch
from copy_distance import NO_COPY, ClassLosses, MaskedText, token_stream

from fairseq_linformer.data.prepare.corpus import prepare_corpus
from fairseq_linformer.training.masked_lm import DynamicMaskedLMTask
from fairseq_linformer.training.masked_lm_options import DynamicMaskedLMConfig
from tests.helpers.inputs import sentences

SYMBOLS, BOS, MASK = 50, 0, 49


def test_classes_of_two_models_and_beyond_a_limit():
    distances, sequences = np.array([NO_COPY, 1, 5, 9]), np.array([3, 3, 8, 8])
    one, other = (
        ClassLosses.of_tokens(np.log(x), distances, sequences, [4, 8, 16]) for x in ([7.0, 2, 3, 5], [28.0, 2, 12, 20])
    )
    assert one.names() == ["no copy", "1 to 4", "5 to 8", "9 to 16"]
    assert one.perplexities() == pytest.approx([7, 2, 3, 5])
    both = ClassLosses.of_json((one + other).as_json())
    assert both.perplexities() == pytest.approx([14, 2, 6, 10]), "geometric means"
    beyond = both.merge_beyond(4)
    assert beyond.names() == ["no copy", "1 to 4", "5 to 16"]
    assert beyond.perplexities() == pytest.approx([14, 2, math.sqrt(60)])
    assert beyond.counts.sum() == both.counts.sum()


def test_intervals_resample_whole_sequences():
    """Forty sequences whose tokens share one loss each: the mean of 40 draws has the standard error 1 / sqrt(40)."""
    losses = np.random.default_rng(1).normal(3.0, 1.0, 40)
    sequences = np.repeat(np.arange(40), 50)
    classes = ClassLosses.of_tokens(losses[sequences], np.ones(2000, dtype=int), sequences, [1])
    low, high = np.log(classes.intervals()[:, 1])
    assert (high - low) / 2 == pytest.approx(1.96 * losses.std() / math.sqrt(40), rel=0.1), "not that of 2,000 tokens"


class PositionModel:
    """A model whose loss is log(V - 1 + exp(position)) for any token, and which keeps its inputs."""

    def __init__(self):
        self.inputs, self.model, self.device = [], self, "cpu"
        self.task = SimpleNamespace(mask_idx=MASK, source_dictionary=SimpleNamespace(bos=lambda: BOS))

    def eval(self):
        pass

    def __call__(self, tokens, masked_tokens, padded):
        self.inputs.append(tokens)
        assert tokens[:, 0].eq(BOS).all()
        assert masked_tokens.equal(tokens.eq(MASK))
        logits = torch.zeros(int(masked_tokens.sum()), SYMBOLS)
        logits[:, MASK] = masked_tokens.nonzero()[:, 1].float()
        return logits, {}


@pytest.fixture
def text():
    """1,003 tokens: the last sequence is shorter for every length here, at n = 335 one token."""
    return MaskedText.of_stream(np.random.default_rng(0).integers(4, 40, 1003, dtype=np.uint16))


@pytest.mark.parametrize("length", [16, 64, 335, 2048])
def test_losses_by_class_are_those_of_a_naive_count(text, length, monkeypatch):
    """A copy in another sequence, or a masked one, does not count; a frequent token has no class."""
    monkeypatch.setattr(copy_distance, "MAX_FREQUENCY", 0.028)
    monkeypatch.setattr(copy_distance, "LIMITS", (4, 32))
    model = PositionModel()
    losses = text.class_losses(text.token_losses(model, length), length)
    inputs = torch.cat([tokens[:, 1:].flatten() for tokens in model.inputs])
    assert inputs.equal(text.tokens.masked_fill(text.masked, MASK)), "the same for every length"
    limits = [0, *losses.limits]
    sums, counts = [0.0] * len(limits), [0] * len(limits)
    for index in text.masked.nonzero().flatten().tolist():
        token, start = text.tokens[index], index // (length - 1) * (length - 1)
        if (text.tokens == token).sum() <= 0.028 * 1003:
            same = [x for x in range(start, min(1003, start + length - 1)) if text.tokens[x] == token]
            nearest = min((abs(x - index) for x in same if not text.masked[x]), default=NO_COPY)
            number = next(number for number, limit in enumerate(limits) if nearest <= limit)
            sums[number] += np.logaddexp(math.log(SYMBOLS - 1), index - start + 1)
            counts[number] += 1
    assert 50 < sum(counts) < 200
    assert losses.counts.sum(0).tolist() == counts
    assert losses.sums.sum(0) == pytest.approx(sums, rel=1e-5)


def test_sequences_are_those_of_the_training_task(tmp_path):
    (tmp_path / "text.txt").write_text(sentences(100, seed=1))
    corpus = tmp_path / "data"
    files = [tmp_path / "text.txt"], [shutil.copy(tmp_path / "text.txt", tmp_path / "valid.txt")]
    prepare_corpus(*files, corpus, vocab_size=286, workers=1)
    text = MaskedText.of_stream(token_stream(corpus, "valid"))
    assert text.tokens.tolist() == token_stream(corpus, "valid").tolist()
    for length in (16, 64):
        cfg = DynamicMaskedLMConfig(data=str(corpus), tokens_per_sample=length, sample_break_mode="none", seed=1)
        task = DynamicMaskedLMTask.setup_task(cfg)
        task.load_dataset("valid")
        dataset, pad = task.dataset("valid"), task.source_dictionary.pad()
        items = [dataset[index] for index in range(len(dataset))]
        expected = [torch.where(x["target"].eq(pad), x["net_input.src_tokens"], x["target"])[1:] for x in items]
        sequences = [text.tokens[indices] for batch in text.sequences(length) for indices in batch]
        assert all(one.equal(other) for one, other in zip(sequences, expected, strict=True))
