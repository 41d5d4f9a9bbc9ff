"""What a run may go on with, and what is another run. The command lines: test_training.py."""

import json
import shutil

import pytest
import torch
from omegaconf import OmegaConf

from fairseq_linformer.checkpoint import read_progress
from fairseq_linformer.checkpoint_files import LAST
from fairseq_linformer.files import digest_folder
from fairseq_linformer.training.provenance import Record, digest_data
from tests.helpers.checkpoints import state
from tests.helpers.configs import composed

pytestmark = pytest.mark.slow


@pytest.fixture
def record(tmp_path):
    """Composes a training; what it is made of is written to a checkpoint where `saved`, else compared with it."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.bin").write_text("text")

    def made(*words, config=("pretrain", "tiny_512"), saved=False):
        folder = tmp_path / "run"
        folder.mkdir(exist_ok=True)
        cfg = composed(*config, f"task.data={tmp_path / 'data'}", f"checkpoint.save_dir={folder}", *words)
        cfg.common.user_dir = ""  # ${hydra:…}: found where --config-dir names the folder
        OmegaConf.resolve(cfg)
        record = Record(cfg)
        if saved:
            # A checkpoint holds plain data, and JSON what its readers understand.
            task_state = {"made_of": json.loads(json.dumps(record.as_state()))}
            torch.save(state(5, task_state=task_state), folder / LAST)
        record.check_same(folder / LAST, read_progress(folder / LAST))

    return made


@pytest.mark.parametrize(
    "words",
    [
        ["optimization.max_update=2000", "optimization.stop_time_hours=1"],
        ["optimization.max_update=2000", "lr_scheduler.total_num_update=3000"],
        ["dataset.validate_interval_updates=7", "dataset.max_valid_steps=3", "dataset.batch_size_valid=3"],
        ["checkpoint.save_interval_updates=7", "checkpoint.keep_interval_updates=3", "task.save_interval_minutes=1"],
        ["common.log_format=json", "common.tensorboard_logdir=elsewhere", "common.log_interval=3", "common.cpu=true"],
        ["dataset.num_workers=5", "model.checkpoint_activations=true"],
        ["dataset.data_buffer_size=5", "model.compile_layers=true"],
        ["distributed_training.distributed_world_size=2", "dataset.batch_size=1"],
        ["dataset.batch_size=1", "optimization.update_freq=[2]", "distributed_training.ddp_backend=legacy_ddp"],
        ["optimizer=adam"],
    ],
)
def test_a_run_goes_on_with(record, words):
    record(saved=True)
    record(*words)


def test_a_run_goes_on_with_another_kernel(record):
    record("model.linformer_window=8", saved=True)
    record("model.linformer_window=8", "model.flex_attention=true")


def test_a_run_goes_on_with_more_to_validate_on(record):
    """The best checkpoint is the best on the first split."""
    record(saved=True)
    record('dataset.valid_subset="valid,test"')
    record("dataset.disable_validation=true")


def test_a_run_of_a_version_that_had_not_an_option_goes_on(record, tmp_path):
    """It trained as with the option's default."""
    record("optimizer=muon", saved=True)
    path = tmp_path / "run" / LAST
    saved = torch.load(path, weights_only=False)
    del saved["task_state"]["made_of"]["configuration"]["optimizer.embedding_lr_multiplier"]
    torch.save(saved, path)
    record("optimizer=muon")
    with pytest.raises(ValueError, match=r"optimizer.embedding_lr_multiplier was 1.0, is 10"):
        record("optimizer=muon", "optimizer.embedding_lr_multiplier=10")


def test_a_run_that_counts_epochs_may_become_longer(record):
    """Its warm-up is a share of its length."""

    def of_epochs(epochs, warmup):
        options = {"max_epoch": epochs, "max_update": 50 * epochs}
        words = [f"optimization.{name}={value}" for name, value in options.items()]
        return [*words, f"lr_scheduler.warmup_updates={warmup}"]

    record(*of_epochs(2, 6), saved=True)
    record(*of_epochs(4, 12))
    record(*of_epochs(2, 7), saved=True)
    with pytest.raises(ValueError, match=r"warmup_updates was 7, is 8"):
        record(*of_epochs(4, 8))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["model.attention=softmax"], "model.attention was linformer, is softmax"),
        (["model.max_positions=1024"], "model.max_positions was 512, is 1024"),
        (["+preset=near_and_far"], r"model.linformer_window was None, is \[128, "),
        (["+preset=fast"], "optimizer._name was adam, is muon"),
        (["optimization.lr=[0.0003]"], r"\(optimization.lr was \[0.001\], is \[0.0003\]\)"),
        (["task.mask_prob=0.4", "optimization.max_update=1210"], r"\(task.mask_prob was 0.15, is 0.4\)"),
        (["common.seed=2"], "common.seed was 1, is 2"),
        (["+precision=bf16"], "common.bf16 was False, is True"),
        (["optimizer.weight_decay=0.1"], "optimizer.weight_decay was 0.01, is 0.1"),
        (["dataset.batch_size=4"], r"rows per update \(.*\) was 2, is 4"),
        (["checkpoint.best_checkpoint_metric=ppl"], "checkpoint.best_checkpoint_metric was loss, is ppl"),
        (["dataset.valid_subset=test"], r"split of the best checkpoint \(.*\) was valid, is test"),
    ],
)
def test_another_run_is_refused(record, words, said):
    """By the option, its value then and now; with what can be done."""
    record(saved=True)
    then = "linformer convert" if words[0].startswith(("model.", "+preset=")) else "checkpoint.restore_file="
    with pytest.raises(ValueError, match=rf"run holds a run with other settings .*{said}.*{then}"):
        record(*words)


def test_replaced_data_is_another_run(record, tmp_path):
    record(saved=True)
    (tmp_path / "data" / "train.bin").write_text("next")
    with pytest.raises(ValueError, match="the data has other content"):
        record()


def test_the_checkpoint_that_it_started_from_is_part_of_a_run(record, tmp_path):
    """Where that is gone, the run goes on, and still knows it."""
    for name in ("one", "other"):
        torch.save(state(3, name=name), tmp_path / f"{name}.pt")
    started = {name: f"checkpoint.finetune_from_model={tmp_path / name}.pt" for name in ("one", "other", "gone")}
    record(started["one"], saved=True)
    record(started["one"])
    for words in ([started["other"]], []):
        with pytest.raises(ValueError, match="the checkpoint that it starts from has other content"):
            record(*words)
    record(started["gone"])
    record(f"checkpoint.restore_file={tmp_path / 'run' / LAST}")


def test_a_teacher_is_what_its_file_holds(record, tmp_path):
    for name in ("one", "other"):
        torch.save(state(3, name=name), tmp_path / f"{name}.pt")
    shutil.copy(tmp_path / "one.pt", tmp_path / "moved.pt")

    def learning_from(name):
        return ["criterion=masked_lm_distillation", f"criterion.teacher={tmp_path / name}.pt"]

    record(*learning_from("one"), saved=True)
    record(*learning_from("moved"))
    with pytest.raises(ValueError, match=r"content of criterion\.teacher was"):
        record(*learning_from("other"))
    saved = torch.load(tmp_path / "run" / LAST, weights_only=False)
    options = saved["task_state"]["made_of"]["configuration"]
    options["criterion.teacher"] = "one.pt"  # as earlier versions recorded it
    del options["content of criterion.teacher"]
    torch.save(saved, tmp_path / "run" / LAST)
    record(*learning_from("moved"))


def test_the_tokens_of_an_update_stay_as_many(record):
    by_tokens = ["dataset.batch_size=null", "dataset.max_tokens=64", "optimization.update_freq=[2]"]
    record(*by_tokens, saved=True)
    record(*by_tokens[:2], "optimization.update_freq=[1]", "distributed_training.distributed_world_size=2")
    with pytest.raises(ValueError, match=r"tokens per update \(.*\) was 128, is 256"):
        record(*by_tokens[:2], "optimization.update_freq=[4]")


def test_rows_and_tokens_of_an_update_stay_as_many(record, tmp_path):
    """Where both are limited, also of a run whose record has the rows alone, as earlier versions wrote it."""
    both = ["dataset.batch_size=8", "dataset.max_tokens=64"]
    halves = ["dataset.batch_size=4", "dataset.max_tokens=32", "optimization.update_freq=[2]"]
    record(*both, saved=True)
    record(*halves)
    with pytest.raises(ValueError, match=r"\(tokens per update \(.*\) was 64, is 128\)"):
        record(*halves, "dataset.max_tokens=64")
    with pytest.raises(ValueError, match=r"dataset.max_tokens was given, is None"):
        record(both[0])
    path = tmp_path / "run" / LAST
    saved = torch.load(path, weights_only=False)
    options = saved["task_state"]["made_of"]["configuration"]
    assert [options.pop(name) for name in list(options) if name.startswith("tokens per update")] == ["64"]
    torch.save(saved, path)
    record(*halves)


def test_a_checkpoint_without_a_record_is_continued(record, tmp_path):
    """One that fairseq alone wrote."""
    (tmp_path / "run").mkdir()
    torch.save(state(5), tmp_path / "run" / LAST)
    record()


def test_a_large_file_counts_by_its_size_and_blocks_of_it(tmp_path, monkeypatch):
    monkeypatch.setattr("fairseq_linformer.files._LARGE", 1000)
    monkeypatch.setattr("fairseq_linformer.files._BLOCK", 10)
    file = tmp_path / "train.bin"
    digests = set()
    for content in (b"1" * 2000, b"1" * 2001, b"2" + b"1" * 1999, b"1" * 1999 + b"2", b"1" * 1000 + b"2" * 1000):
        file.write_bytes(content)
        digests.add(digest_folder(tmp_path))
    assert len(digests) == 5


def test_folders_between_colons_count_in_their_order(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.bin").write_text(name)
    a, b = (str(tmp_path / name) for name in "ab")
    assert digest_data(a) == digest_folder(tmp_path / "a")
    assert len({digest_data(a), digest_data(b), digest_data(f"{a}:{b}"), digest_data(f"{b}:{a}")}) == 4


@pytest.mark.parametrize("mark", ["task.json", "corpus.json", "shards.json", ".lock"])
def test_other_data_and_runs_within_the_folder_of_the_data_do_not_count(mark, tmp_path):
    """Otherwise a training would be refused after tasks were prepared beside its corpus, or its own run is there."""
    (tmp_path / "input0").mkdir()
    for name in ("train.bin", "input0/train.bin"):
        (tmp_path / name).write_text(name)
    before = digest_data(str(tmp_path))
    other = tmp_path / "others" / "other"
    other.mkdir(parents=True)
    for name in (mark, "train.bin"):
        (other / name).write_text(name)
    assert digest_data(str(tmp_path)) == before == digest_folder(tmp_path / ".", [mark]) != digest_folder(tmp_path)
    (tmp_path / "shards.json").write_text("all that it lists")
    assert digest_data(str(tmp_path)) == digest_folder(tmp_path)
