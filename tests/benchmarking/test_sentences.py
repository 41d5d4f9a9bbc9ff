"""The study sentences: passages that do not hold their query, scores against naive ones, and runs that go on."""

import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarking import passages, sentences
from benchmarking.command import main
from benchmarking.passages import (
    LATE,
    QUERY,
    Passages,
    cut_passages,
    docstrings_apart,
    find_passages,
    module_blocks,
    ranks_of,
    reciprocals,
    word_scores,
)
from benchmarking.sentences import SentenceEncoder, chunk_ranks, measure_sentences
from sklearn.feature_extraction.text import CountVectorizer

from fairseq_linformer.conversion.convert import convert
from fairseq_linformer.errors import UserError
from tests.helpers import inputs
from tests.helpers.benchmarks import options
from tests.helpers.exports import hub_of, write_pretrained, write_vocabulary

LENGTH = 400


def numbered(chance, start=0, paragraphs=80):
    """A document in which no piece is there twice."""
    sizes = chance.integers(5, 200, size=paragraphs)
    ends = start + np.cumsum(sizes)
    pieces = [np.arange(end - size, end, dtype=np.int32) for size, end in zip(sizes, ends, strict=True)]
    return [(own, own) for own in pieces]


def test_a_query_was_late_in_its_passage_and_is_not_in_it():
    chance = np.random.default_rng(0)
    documents = [numbered(chance), numbered(chance, 10**6)]
    data = find_passages(documents, LENGTH, 1000)
    assert len(data.queries) > 20
    for query, passage in zip(data.queries, data.passages, strict=True):
        assert len(passage) == LENGTH and QUERY[0] <= len(query) <= QUERY[1] and not {*query} & {*passage}
        whole = np.sort(np.concatenate([query, passage]))
        assert (np.diff(whole) == 1).all(), "its neighbours, and all between them"
        assert LATE[0] * LENGTH - 1 <= (passage < query[0]).sum() <= LATE[1] * LENGTH
    every = np.concatenate([*data.queries, *data.passages])
    assert len(np.unique(every)) == len(every), "passages share nothing"
    some = find_passages(documents, LENGTH, 5)
    assert [own.tolist() for own in (some.queries[0], some.queries[-1])] == [
        own.tolist() for own in (data.queries[0], data.queries[-1])
    ]
    with pytest.raises(UserError, match=f"the texts give 0 passages of {LENGTH} pieces, but two are needed"):
        find_passages([numbered(chance, paragraphs=2)], LENGTH, 5)


def test_what_a_passage_says_once_more_is_no_query():
    stretches = ((9000, 9200), (0, 50), (1000, 1200), (0, 50), (2000, 2200))
    pieces = [np.arange(*own, dtype=np.int32) for own in stretches]
    queries = [None, None, None, pieces[3], None]
    assert not [*cut_passages([*zip(pieces, queries, strict=True)], LENGTH, np.random.default_rng(0))]
    pieces[1] = pieces[1] + 5000
    assert len([*cut_passages([*zip(pieces, queries, strict=True)], LENGTH, np.random.default_rng(0))]) == 1


SOURCE = '''"""A module."""
def one(): "on its line"
class C:
    """A class."""
    def two(self):
        r"""Says
        two.
        """
        def three():
            'three'
            return "é"
\x0c
async def four():
    """Four."""
'''


def test_docstrings_of_functions_are_taken_out_by_whole_lines(monkeypatch, tmp_path):
    stretches = [*docstrings_apart(SOURCE)]
    assert "\n".join(lines for lines, _ in stretches) == SOURCE
    assert {said: lines for lines, said in stretches if said} == {
        "Says\ntwo.": '        r"""Says\n        two.\n        """',
        "three": "            'three'",
        "Four.": '    """Four."""',
    }
    for name, content in {"a": "def f():\n    'the dog'\n", "b": "x = (\n", "c": "def g():\n    'a cat'\n"}.items():
        (tmp_path / f"{name}.py").write_text(content)
    monkeypatch.setattr(passages, "source_files", lambda: [tmp_path / f"{name}.py" for name in "abc"])
    tokenizer = sentences.load_tokenizer(write_vocabulary(tmp_path))
    found = {split: module_blocks(split, tokenizer) for split in ("valid", "test")}
    texts = {split: [tokenizer.decode([own[1][1]])[0] for own in modules] for split, modules in found.items()}
    assert texts == {"valid": ["the dog"], "test": ["a cat"]}


def test_ranks_and_what_they_are_worth():
    scores = np.array([[0.5, 0.7, 0.1], [0.2, 0.9, 0.1], [0.3, 0.3, 0.3]])
    assert ranks_of(scores) == [2, 1, 3], "of equal scores the others come first"
    assert reciprocals([1, 4, 10, 11]) == [1, 0.25, 0.1, 0]


def test_scores_of_words_are_those_of_the_formulas():
    texts = ["the old dog barks", "the old cat sleeps the day", "a bird sings, the bird flies", "dog dog dog"]
    queries = ["old dog", "bird bird sings", "fish", "the dog"]
    bags = [Counter(text.replace(",", "").split()) for text in texts]
    for bag in bags:
        bag.pop("a", None)  # one letter is no word of scikit-learn's
    holding = Counter(word for bag in bags for word in bag)
    mean = sum(map(Counter.total, bags)) / 4

    def bm25(query, bag, k1, b):
        found = 0.0
        for word in query.split():
            rarity = math.log(1 + (4 - holding[word] + 0.5) / (holding[word] + 0.5))
            slow = k1 * (1 - b + b * bag.total() / mean)
            found += rarity * bag[word] * (k1 + 1) / (bag[word] + slow)
        return found

    vectorizer = CountVectorizer()
    counts = vectorizer.fit_transform(texts)
    counted = (vectorizer.transform(queries), counts)
    scores = word_scores("BM25", *counted, {"k1": 1.2, "b": 0.75})
    np.testing.assert_allclose(scores, [[bm25(query, bag, 1.2, 0.75) for bag in bags] for query in queries])

    def vector(bag):
        weights = {word: n * (1 + math.log(5 / (1 + holding[word]))) for word, n in bag.items() if holding[word]}
        length = math.hypot(*weights.values()) or 1.0
        return {word: weight / length for word, weight in weights.items()}

    expected = [
        [sum(w * vector(bag).get(word, 0) for word, w in vector(Counter(query.split())).items()) for bag in bags]
        for query in queries
    ]
    np.testing.assert_allclose(word_scores("TF-IDF", *counted, {"sublinear_tf": False}), expected, atol=1e-12)


class Hashed:
    """An encoder of which nothing is known but that a row has one vector."""

    def embed(self, rows):
        drawn = [np.random.default_rng(row.tolist()).normal(size=6) for row in rows]
        return np.stack([own / np.linalg.norm(own) for own in drawn])


def test_chunks_are_ranked_as_one_by_one():
    chance = np.random.default_rng(0)
    data = Passages([chance.integers(50, size=5) for _ in range(9)], [chance.integers(50, size=30) for _ in range(9)])
    encoder = Hashed()
    found = chunk_ranks(encoder, data, 14)
    best, mean, first = (np.zeros((9, 9)) for _ in range(3))
    for q, query in enumerate(encoder.embed(data.queries)):
        for p, passage in enumerate(data.passages):
            parts = encoder.embed([passage[:10], passage[10:20], passage[20:]])
            best[q, p] = max(query @ part for part in parts)
            mean[q, p] = query @ parts.sum(0) / np.linalg.norm(parts.sum(0))
            first[q, p] = query @ encoder.embed([passage[:12]])[0]
    assert found == {
        "first 14": ranks_of(first),
        "mean of chunks of 14": ranks_of(mean),
        "best of chunks of 14": ranks_of(best),
    }
    assert [*chunk_ranks(encoder, data, 32)] == ["first 32"]


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    """An encoder, and the same for longer texts: with full attention, and the control, a window and one mean."""
    folder = tmp_path_factory.mktemp("sentences")
    checkpoint = write_pretrained(folder / "original", write_vocabulary(folder), attention="softmax", max_positions=32)
    longer = ["model.max_positions=64"]
    convert(checkpoint, folder / "full", longer)
    control = ["attention=linformer", "projection=mean-pool", "projected_length=1", "linformer_window=4"]
    convert(checkpoint, folder / "control", [*longer, *(f"model.{own}" for own in control)])
    return folder


def with_pooling(folder: Path, checkpoint: Path, *modes: str) -> Path:
    state = torch.load(checkpoint, weights_only=True)
    config = {"word_embedding_dimension": 12, **{f"pooling_mode_{mode}": True for mode in modes}}
    listed = [{"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]
    modules = {"modules.json": json.dumps(listed), "1_Pooling/config.json": json.dumps(config)} if modes else {}
    state["task_state"]["sentence_modules"] = modules
    folder.mkdir()
    for name in ("dict.txt", "sentencepiece.bpe.model"):
        (folder / name).write_bytes((checkpoint.parent / name).read_bytes())
    torch.save(state, folder / "checkpoint.pt")
    return folder


@torch.no_grad()
def test_embeddings_are_pooled_as_the_checkpoint_says(models, tmp_path):
    rows = [np.random.default_rng(size).integers(4, 30, size=size) for size in (5, 9, 5, 1, 62)]
    features = [
        hub_of(models / "full/checkpoint.pt").model(torch.tensor([[0, *row, 2]]), features_only=True)[0] for row in rows
    ]
    cases = {"none": (), "mean": ("mean_tokens",), "first": ("cls_token",)}
    for name, modes in cases.items():
        folder = with_pooling(tmp_path / name, models / "full/checkpoint.pt", *modes)
        found = SentenceEncoder(name, folder, "cpu").embed(rows)
        pooled = [own[0, 0] if name == "first" else own[0].mean(0) for own in features]
        expected = torch.stack([own / own.norm() for own in pooled])
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    both = with_pooling(tmp_path / "both", models / "full/checkpoint.pt", "cls_token", "mean_tokens")
    with pytest.raises(UserError, match="pooling=cls_token, mean_tokens is not allowed"):
        SentenceEncoder("both", both, "cpu")


@pytest.fixture
def texts(tmp_path, monkeypatch) -> list:
    """Tiny GLUE, IMDB and books, as options."""
    monkeypatch.setattr(passages, "QUERY", (3, 30))
    monkeypatch.setattr(sentences, "LEAST_REVIEW", 10)
    inputs.write_sst_2(tmp_path / "glue")
    lines = [line for line in inputs.sentences(60, seed=3).splitlines() if line]
    (tmp_path / "glue/STS-B").mkdir()
    head = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2"
    for split in ("train", "dev", "test"):
        rows = [f"{i}\tg\tf\ty\t0\ts\ts\t{lines[i]}\t{lines[i + 1]}" for i in range(8)]
        scores = [f"\t{i / 2}" for i in range(8)] if split != "test" else [""] * 8
        table = [head + "\tscore" * (split != "test"), *map(str.__add__, rows, scores)]
        (tmp_path / f"glue/STS-B/{split}.tsv").write_text("\n".join(table) + "\n")
    for number, line in enumerate(lines[:12]):
        for folder in ("train/pos", "train/neg", "test/pos", "test/neg"):
            (tmp_path / "aclImdb" / folder).mkdir(parents=True, exist_ok=True)
            (tmp_path / "aclImdb" / folder / f"{number}_{number % 10}.txt").write_text(f"{line} {folder} {line}")
    for seed, split in ((4, "valid"), (5, "test")):
        books = [inputs.sentences(90, seed=seed * 10 + book).replace("\n\n", "\n") for book in range(3)]
        (tmp_path / f"{split}.txt").write_text("\n".join(books))
    found = ["--glue", tmp_path / "glue", "--imdb", tmp_path / "aclImdb"]
    return [*found, "--books", tmp_path / "valid.txt", tmp_path / "test.txt", "--lengths", 64, "--passages", 6]


def test_the_control_and_the_original_beside_themselves(models, texts, tmp_path, monkeypatch):
    named = [f"{name}={models / name}" for name in ("original", "control", "full")]
    words = ["--model", *named, *texts, "--device", "cpu", "--out", tmp_path / "out"]
    said = measure_sentences(options("sentences", *words))
    content = json.loads((tmp_path / "out/results.json").read_text())
    short, reviews, books = content["tables"].values()
    assert [row["model"] for row in short] == ["original", "control", "full"]
    assert short[0] == {**short[2], "model": "original"}, "positions alone were added"
    assert reviews[0]["24 reviews: cosine"] == reviews[2]["24 reviews: cosine"] == "1.000 (1.000 to 1.000)"
    assert reviews[0]["% same neighbour"].startswith("100.0")
    files = {name: next((tmp_path / "out/reviews").glob(f"{name}-*.json")) for name in ("original", "control", "full")}
    original, control, full = (np.array(json.loads(file.read_text())["result"]) for file in files.values())
    np.testing.assert_allclose(full, original, atol=1e-5)
    assert abs(control - original).max() > 1e-5
    (column,) = {next(iter(row)) for row in books}
    ways = ("first", "mean of chunks of", "best of chunks of")
    assert column == "6 passages" and [row[column] for row in books[:8]] == [
        *(f"original, {how} {size}" for size in (16, 32) for how in ways),
        "control, first 64",
        "full, first 64",
    ]
    assert [row[column].split(",")[0] for row in books[8:]] == ["TF-IDF", "BM25"]
    assert content["models"]["control"]["model"] != content["models"]["full"]["model"]
    assert "| original | " in said

    kept = sorted((tmp_path / "out").rglob("control-*.json"))
    assert len(kept) == 3
    kept[0].unlink()
    embedded = []
    embed = SentenceEncoder.embed
    monkeypatch.setattr(SentenceEncoder, "embed", lambda self, rows: embedded.append(self.name) or embed(self, rows))
    assert measure_sentences(options("sentences", *words)) == said, "an interrupted run goes on"
    assert {*embedded} == {"control"}

    embedded.clear()
    dev = tmp_path / "glue/STS-B/dev.tsv"
    head, *rows = dev.read_text().splitlines()
    others = [row.rpartition("\t")[0] + f"\t{number * 3 % 5}.0" for number, row in enumerate(rows)]
    dev.write_text("\n".join([head, *others]) + "\n")
    measure_sentences(options("sentences", *words))
    relabelled = json.loads((tmp_path / "out/results.json").read_text())["tables"]
    assert not embedded and next(iter(relabelled.values()))[0]["STS-B"] != short[0]["STS-B"], "of the new labels"


def test_the_cost_has_all_models_in_turns(models, tmp_path, monkeypatch):
    monkeypatch.setattr(sentences, "SHORT", (8, 32))
    threads = torch.get_num_threads()
    words = ["--model", f"original={models / 'original'}", f"full={models / 'full'}", "--lengths", 64, "--rounds", 3]
    measure_sentences(options("sentences", *words, "--cost", 1, 2, "--device", "cpu", "--out", tmp_path / "out"))
    (rows,) = json.loads((tmp_path / "out/results.json").read_text())["tables"].values()
    cases = [("8", "original"), ("8", "full"), ("32", "original"), ("32", "full"), ("64", "full")]
    assert [(row["n"], row["model"]) for row in rows] == cases
    assert {*rows[0]} == {"n", "model", "ms, threads: 1", "ms, threads: 2", "MiB"}
    assert torch.get_num_threads() == threads


def test_the_cost_of_the_original_is_that_of_the_folder_that_is_named(models, tmp_path, monkeypatch):
    """Of a RoBERTa, whose first position is 2. In another place the same model is not measured again."""
    from transformers import BertConfig, RobertaConfig

    monkeypatch.setattr(sentences, "SHORT", (8,))
    sizes = {"hidden_size": 12, "num_attention_heads": 3, "intermediate_size": 20}
    RobertaConfig(num_hidden_layers=1, **sizes).save_pretrained(tmp_path / "a")
    RobertaConfig(num_hidden_layers=1, **sizes).save_pretrained(tmp_path / "same")
    RobertaConfig(num_hidden_layers=2, **sizes).save_pretrained(tmp_path / "deeper")
    BertConfig(num_hidden_layers=1, **sizes).save_pretrained(tmp_path / "bert")
    words = ["--model", f"own={models / 'original'}", "--lengths", 64, "--rounds", 1, "--cost", 1, "--device", "cpu"]
    for number, name in ((1, "a"), (1, "same"), (2, "deeper"), (3, "bert")):
        measure_sentences(options("sentences", *words, "--transformers", tmp_path / name, "--out", tmp_path / "out"))
        (rows,) = json.loads((tmp_path / "out/results.json").read_text())["tables"].values()
        assert [(row["n"], row["model"]) for row in rows[1:]] == [(n, sentences.THEIRS) for n in ("8", "64")]
        assert len([*(tmp_path / "out").glob("cost-*.json")]) == number


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name what is to be measured: --glue, --imdb, --books, --python or --cost"),
        (["--books", "one.txt"], "it must be two files, of valid and test"),
        (["--model", "a=x", "a=y", "--python"], "NAME=CHECKPOINT with each name once"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_read(tmp_path, words, said):
    with pytest.raises(UserError, match=said):
        measure_sentences(options("sentences", "--model", "a=nowhere", *words, "--out", tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_model_has_a_name(capsys):
    with pytest.raises(SystemExit):
        main(["sentences", "--model", "checkpoint", "--python"])
    assert "checkpoint is not allowed: it must be NAME=CHECKPOINT" in capsys.readouterr().err


def test_models_of_another_vocabulary_are_refused(models, tmp_path):
    other = with_pooling(tmp_path / "other", models / "full/checkpoint.pt")
    state = torch.load(other / "checkpoint.pt", weights_only=True)
    torch.save({**state, "task_state": {}}, other / "checkpoint.pt")  # which knows its vocabulary
    lines = (other / "dict.txt").read_text().splitlines()
    (other / "dict.txt").write_text("\n".join([*lines[::-1], ""]))
    words = ["--model", f"a={models / 'full'}", f"b={other}", "--python", "--out", tmp_path / "out"]
    with pytest.raises(UserError, match="model=b is not allowed: it must be of the same vocabulary as a"):
        measure_sentences(options("sentences", *words))
