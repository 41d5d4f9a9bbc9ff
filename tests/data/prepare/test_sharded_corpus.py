"""A corpus in shards: what each folder holds, what a training reads, what is made again and what is refused."""

import json
import re
import shutil
from pathlib import Path

import pytest

from fairseq_linformer.data.prepare import sharded_corpus
from fairseq_linformer.data.prepare.sharded_corpus import divide, prepare_shards
from fairseq_linformer.data.shards import data_paths
from fairseq_linformer.data.tokenizer import load_tokenizer
from fairseq_linformer.data.unknown_pieces import Unknown
from fairseq_linformer.errors import UserError
from fairseq_linformer.training.masked_lm import DynamicMaskedLMConfig, DynamicMaskedLMTask
from linformer_cli.command import parser_of
from tests.helpers.commands import run, with_hydra
from tests.helpers.inputs import sentences, train_without_bytes

SHARDS = 3
FOLDERS = [f"shard{number}" for number in range(1, SHARDS + 1)]


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> Path:
    """Five files to train on and one to validate on."""
    folder = tmp_path_factory.mktemp("texts")
    for number in range(5):
        (folder / f"{number}.txt").write_text(sentences(60 + 20 * number, seed=number))
    (folder / "valid.txt").write_text(sentences(30, seed=9))
    return folder


def prepare(texts, out, shards=SHARDS, shard=None, **vocabulary):
    files = [texts / f"{number}.txt" for number in range(5)]
    vocabulary = vocabulary or {"vocab_size": 286}
    prepare_shards(files, [texts / "valid.txt"], out, shards, shard, workers=1, **vocabulary)


@pytest.fixture(scope="module")
def prepared(texts, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("prepared") / "corpus"
    prepare(texts, out)
    return out


def tree(folder) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_every_line_is_in_one_shard_and_the_first_holds_valid(texts, prepared):
    assert sorted(path.name for path in prepared.iterdir()) == [*FOLDERS, "shards.json"]
    counts = [json.loads((prepared / name / "corpus.json").read_text()) for name in FOLDERS]
    assert [sorted(count) for count in counts] == [["train", "valid"], ["train"], ["train"]]
    assert sum(count["train"]["lines"] for count in counts) == sum(60 + 20 * number for number in range(5))
    named = json.loads((prepared / "shards.json").read_text())["shards"]
    assert sorted(re.sub(r", \d+ bytes$", "", file) for part in named for file in part) == [
        f"{n}.txt" for n in range(5)
    ]
    models = {(prepared / name / "sentencepiece.bpe.model").read_bytes() for name in FOLDERS}
    assert len(models) == 1, "one vocabulary"
    assert load_tokenizer(prepared).dictionary.symbols == load_tokenizer(prepared / "shard3").dictionary.symbols


def test_a_text_of_any_shard_that_is_validated_on_is_warned_of(texts, tmp_path, capsys):
    files = [texts / f"{number}.txt" for number in range(2)]  # the larger one is the first shard
    prepare_shards(files, [files[0]], tmp_path / "out", 2, 1, workers=1, vocab_size=286)
    assert "warning: to train and to validate on: 0.txt; its loss" in capsys.readouterr().out


@pytest.mark.slow
def test_shards_made_one_by_one_are_those_made_at_once(texts, prepared, tmp_path, capsys):
    """In another order, and one of them again after an interruption; the last one prints what all hold."""
    out = tmp_path / "corpus"
    with pytest.raises(UserError, match="shard 1/3 comes first: it makes the vocabulary"):
        prepare(texts, out, shard=3)
    for shard in (1, 3, 3):
        prepare(texts, out, shard=shard)
    with pytest.raises(UserError, match=r"of 3 shards linformer prepare corpus has not completed --shard 2"):
        data_paths(str(out))
    assert "all 3 shards" not in capsys.readouterr().out
    before = (out / "shard3" / "train.bin").stat().st_mtime_ns
    prepare(texts, out)
    printed = capsys.readouterr().out
    assert re.search(r"all 3 shards:\ntrain: \d+ documents, 500 lines, ", printed) and printed.count("complete") == 2
    assert (out / "shard3" / "train.bin").stat().st_mtime_ns == before
    assert tree(out) == tree(prepared)


def test_shards_of_an_earlier_version_go_on_with_its_vocabulary(texts, tmp_path):
    """It did not write how that was made. Characters that it lacks are counted as unknown in every shard."""
    train_without_bytes(sentences(60, seed=1).splitlines(), tmp_path / "old.model", 28)
    files = [texts / f"{number}.txt" for number in range(4)]
    files.append(tmp_path / "strange.txt")
    files[-1].write_text("the 漢 runs\n" * 300)  # the largest: of the first shard
    files[0] = tmp_path / "more.txt"
    files[0].write_text("the 字 runs\n" * 250)
    out, valid = tmp_path / "corpus", [texts / "valid.txt"]
    first = prepare_shards(files, valid, out, SHARDS, 1, workers=1, tokenizer=tmp_path / "old.model")
    listed = json.loads((out / "shards.json").read_text())
    (out / "shards.json").write_text(json.dumps({"shards": listed["shards"]}))
    rest = prepare_shards(files, valid, out, SHARDS, workers=1, vocab_size=286)
    assert {(out / name / "sentencepiece.bpe.model").read_bytes() for name in FOLDERS} == {
        (tmp_path / "old.model").read_bytes()
    }
    assert {**first.characters, **rest.characters} == {"漢": 300, "字": 250}


def test_another_vocabulary_or_valid_than_the_first_shard_has_is_refused(texts, tmp_path):
    """The defaults may be written out, and the vocabulary named wherever it lies."""
    out, changed = tmp_path / "corpus", shutil.copytree(texts, tmp_path / "changed")
    with pytest.raises(UserError, match="too large, the text supports at most"):
        prepare(texts, out, vocab_size=99_999)
    prepare(texts, out, shard=1)
    other = f"^{out} has a vocabulary made with --vocab-size 286 --sample-characters 10000000 --seed 1, not "
    with pytest.raises(UserError, match=f"{other}--vocab-size 290 --sample-characters 10000000 --seed 5: repeat what"):
        prepare(texts, out, vocab_size=290, seed=5)
    train_without_bytes(sentences(60, seed=1).splitlines(), tmp_path / "old.model", 28)
    with pytest.raises(UserError, match=f"^{out} has another vocabulary than {tmp_path}/old.model: repeat what it was"):
        prepare(texts, out, tokenizer=tmp_path / "old.model")
    (changed / "valid.txt").write_text(sentences(40, seed=9))
    held_out = r"valid\.txt, \d+ bytes"
    with pytest.raises(UserError, match=rf"^{out} validates on other text \({held_out}\), not {held_out}: repeat what"):
        prepare(changed, out)
    assert not (out / "shard2").exists()
    prepare(texts, out, shard=2, vocab_size=286, sample_characters=10_000_000, seed=1)
    prepare(texts, out, shard=3, tokenizer=out)
    given = tmp_path / "given"
    prepare(texts, given, shard=1, tokenizer=tmp_path / "old.model")
    with pytest.raises(UserError, match="given has a vocabulary made with --tokenizer, not --vocab-size 286 --sample-"):
        prepare(texts, given)
    prepare(texts, given, shard=2, tokenizer=given / "shard1" / "sentencepiece.bpe.model")


def test_shards_of_two_vocabularies_are_refused(texts, prepared, tmp_path):
    """The first was removed and made anew, with a vocabulary of another size; training checks folders of any origin."""
    out = shutil.copytree(prepared, tmp_path / "corpus")
    shutil.rmtree(out / "shard1")
    with pytest.raises(UserError, match=f"^{out}/shard2 has another vocabulary than {out}/shard1: remove it, and rep"):
        prepare(texts, out, vocab_size=287)
    config = DynamicMaskedLMConfig(data=f"{out}/shard1:{out}/shard2", tokens_per_sample=32)
    task = DynamicMaskedLMTask.setup_task(config)
    with pytest.raises(UserError, match=f"^{out}/shard2 has another vocabulary than {out}/shard1: prepare it again"):
        task.state_dict()
    shutil.rmtree(out / "shard2")
    with pytest.raises(UserError, match="shard3 has another vocabulary"):
        prepare(texts, out, vocab_size=287)
    shutil.rmtree(out / "shard3")
    prepare(texts, out, vocab_size=287)


@pytest.mark.parametrize("name", ["train.bin", "train.idx", "corpus.json"])
def test_a_training_does_not_begin_without_a_file_of_a_shard(prepared, tmp_path, name):
    out = shutil.copytree(prepared, tmp_path / "corpus")
    (out / "shard2" / name).unlink()
    with pytest.raises(UserError, match=f"^{out} is not whole: of 3 shards linformer prepare .* completed --shard 2$"):
        data_paths(str(out))


@pytest.mark.slow
def test_a_training_takes_the_shards_by_turns(prepared, tmp_path):
    """One per epoch, by the name of the folder that holds them; a run resumes within the second."""
    batch = ["dataset.batch_size=16", "checkpoint.save_interval_updates=0"]
    begun = run(*with_hydra(prepared, "run", 10, *batch), cwd=tmp_path)
    goes_on = run(*with_hydra(prepared, "run", 0, *batch, "optimization.max_epoch=4"), cwd=tmp_path)
    assert "Loaded checkpoint run/checkpoint_last.pt (epoch 2 @ 10 updates)" in goes_on
    loaded = [re.findall(rf"examples from: {prepared}/(shard\d)/train", output) for output in (begun, goes_on)]
    assert loaded[0] == FOLDERS[:2] and loaded[1][:3] == [*FOLDERS[1:], FOLDERS[0]]
    assert f"examples from: {prepared}/shard1/valid" in goes_on


def test_files_are_divided_by_size(tmp_path):
    files = []
    for number, size in enumerate([10, 90, 30, 40, 20, 0]):
        files.append(tmp_path / str(number))
        files[-1].write_bytes(bytes(size))
    parts = divide(files, 2)
    assert parts == [files[:2], files[2:]], "100 and 90 bytes"
    assert divide(list(reversed(files)), 6) != parts
    with pytest.raises(UserError, match="--shards 7: the text is 6 files, and a file is not divided"):
        divide(files, 7)


def test_a_folder_to_train_on_may_hold_what_is_to_validate_on(texts, tmp_path, monkeypatch):
    """Which may come as standard input, too: then nothing is left out."""
    monkeypatch.setattr(sharded_corpus, "prepare_corpus", lambda *arguments, **options: Unknown())
    for valid, left in ((texts / "valid.txt", 5), (Path("-"), 6)):
        prepare_shards([texts], [valid], tmp_path / f"{left}", 2, 1)
        shards = json.loads((tmp_path / f"{left}" / "shards.json").read_text())["shards"]
        assert sum(map(len, shards)) == left


def test_what_is_in_the_folder_must_be_the_same_shards(texts, tmp_path, monkeypatch):
    monkeypatch.setattr(sharded_corpus, "prepare_corpus", lambda *arguments, **options: Unknown())
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "novel.txt").write_text("mine")
    with pytest.raises(UserError, match="other exists and holds no shards: nothing was changed"):
        prepare(texts, tmp_path / "other")
    prepare(texts, tmp_path / "out", shard=1)
    with pytest.raises(UserError, match="out is for 3 shards, not 2"):
        prepare(texts, tmp_path / "out", shards=2)
    with pytest.raises(UserError, match=r"out holds shards of other text files, see shards\.json"):
        prepare_shards(sorted(texts.glob("[0-3].txt")), [], tmp_path / "out", SHARDS)
    (tmp_path / "out" / "shards.json").write_text("{}")
    with pytest.raises(UserError, match=r"shards\.json is damaged: its content has no shards"):
        data_paths(str(tmp_path / "out"))


@pytest.mark.parametrize("words", [["--shard", "1"], ["--shards", "2", "--shard", "3"], ["--shards", "1"]])
def test_shards_that_cannot_be(words, capsys):
    with pytest.raises(SystemExit):
        parser_of("prepare corpus").parse_args(["--train", "t", "--valid", "v", "--out", "o", *words])
    assert "is not allowed: it must be" in capsys.readouterr().err
