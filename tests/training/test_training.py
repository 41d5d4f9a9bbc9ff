"""Command lines of fairseq and Python on small trainings: resumption, interruption, rejection."""

import os
import re
import shutil
import signal

import pytest
import torch
from fairseq.tasks import setup_task
from quickstart import masked_lm_perplexity

from fairseq_linformer import LinformerRobertaModel
from fairseq_linformer.checkpoint import differing_parts, digest_vocabulary, read_checkpoint
from fairseq_linformer.data.dictionaries import load_dictionary
from tests.helpers import ROOT
from tests.helpers.commands import forked, last_line, run, with_flags, with_hydra
from tests.helpers.processes import wait_until


def parameters(folder, name="checkpoint_last.pt"):
    return torch.load(folder / name, weights_only=True)


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory):
    """A run of six updates, with paths relative to this folder."""
    folder = tmp_path_factory.mktemp("runs")
    shutil.copytree(corpus, folder / "data")
    run(*with_hydra("data", "hydra", 6), cwd=folder)
    return folder


def assert_same_training(a, b):
    assert a["model"].keys() == b["model"].keys()
    assert all(torch.equal(a["model"][name], b["model"][name]) for name in a["model"])
    moments = (state["last_optimizer_state"]["state"] for state in (a, b))
    for one, other in zip(*(list(m.values()) for m in moments), strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)


def resume_in_16_bits(trained, folder, *words):
    """Return the state of a run that never stopped, the same as that of one that did."""
    for name, updates in (("stopped", 3), ("stopped", 6), ("straight", 6)):
        run(*with_hydra(trained / "data", name, updates, "lr_scheduler.total_num_update=6", *words), cwd=folder)
    state = parameters(folder / "straight")
    assert_same_training(parameters(folder / "stopped"), state)
    return state


def test_a_run_with_products_in_bfloat16_resumes_with_its_weights_in_float32(trained, tmp_path):
    state = resume_in_16_bits(trained, tmp_path, "task.bfloat16=yes")
    expected = parameters(trained / "hydra")["model"]
    differences = [(state["model"][name] - weight).abs().max() for name, weight in expected.items()]
    assert 0 < max(differences) < 0.01 and all(weight.dtype == torch.float32 for weight in state["model"].values())


def test_a_run_in_16_bits_resumes_with_its_weights_in_32(trained, tmp_path):
    """To the last bit, with Muon. The weights that fairseq saves are rounded."""
    state = resume_in_16_bits(trained, tmp_path, "optimizer=muon", "common.bf16=true")
    _, matrices = state["last_optimizer_state"]["param_groups"]  # fairseq's copy in 32 bits is one vector by default
    linear = [name for name in state["model"] if re.search(r"layers\.\d+\..*(_proj|fc1|fc2)\.weight", name)]
    assert len(matrices["params"]) == len(linear) > 0


def test_resumed_run_equals_one_that_never_stopped(trained, tmp_path):
    """To the last bit of weights and Adam's moments, with dropout, within an epoch, and by the other command line."""
    run(*with_hydra(trained / "data", "stopped", 3), cwd=tmp_path)
    output = run(*with_flags(trained / "data", "stopped", 6), cwd=tmp_path)
    assert "Loaded checkpoint stopped/checkpoint_last.pt (epoch 1 @ 3 updates)" in output
    assert_same_training(parameters(tmp_path / "stopped"), parameters(trained / "hydra"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="without a GPU fairseq has no other precision than bf16")
@pytest.mark.parametrize("words", [["common.fp16=true"], ["common.amp=true"]], ids=str)
def test_16_bits_train_what_32_bits_train(trained, words, tmp_path):
    """The run resumes with its loss scale, if it has one, and the optimizer's 32 bits."""
    for updates in (3, 6):
        run(*with_hydra(trained / "data", "half", updates, *words, "common.cpu=false"), cwd=tmp_path)
    half, whole = parameters(tmp_path / "half"), parameters(trained / "hydra")
    assert abs(half["extra_state"]["val_loss"] - whole["extra_state"]["val_loss"]) < 0.05
    assert all(value["exp_avg"].dtype == torch.float32 for value in half["last_optimizer_state"]["state"].values())


def test_validate_and_python_agree(trained):
    checkpoint = ("--path", "hydra/checkpoint_last.pt", "--user-dir", ROOT / "fairseq_linformer")
    settings = ("--task", "masked_lm", "--criterion", "masked_lm", "--batch-size", 4, "--cpu")
    settings += ("--required-batch-size-multiple", 1)  # at its default, 8, fairseq-validate leaves rows out
    output = run("fairseq-validate", "data", *checkpoint, *settings, cwd=trained)
    reported = float(re.findall(r"valid on 'valid' subset \| loss ([\d.]+)", output)[-1])

    roberta = LinformerRobertaModel.from_pretrained(str(trained / "hydra"), "checkpoint_last.pt", str(trained / "data"))
    perplexity = masked_lm_perplexity(roberta.model, roberta.task)
    assert 2**reported == pytest.approx(perplexity, rel=1e-3)


def test_hub_interface(trained, monkeypatch):
    """Without naming data or subword model: both are in the folder that the checkpoint names."""
    monkeypatch.chdir(trained)
    roberta = LinformerRobertaModel.from_pretrained("hydra", "checkpoint_last.pt").eval()
    tokens = roberta.encode("the old dog barks today")
    assert tokens[0] == 0 and tokens[-1] == 2 and 3 not in tokens
    assert roberta.decode(tokens) == "the old dog barks today"
    assert roberta.decode(roberta.encode("the old 漢字 barks")) == "the old 漢字 barks"
    assert roberta.extract_features(tokens).shape == (1, len(tokens), 32)
    filled = roberta.fill_mask("the old <mask> barks today", topk=3)
    assert len(filled) == 3 and all(0 < probability < 1 for _, probability, _ in filled)
    roberta.register_classification_head("topic", num_classes=4)
    assert roberta.predict("topic", tokens).exp().sum().item() == pytest.approx(1.0, abs=1e-5)
    with pytest.raises(ValueError, match=r"tokens exceeds maximum length: 33 > 32"):
        roberta.extract_features(torch.full((33,), 5))


FINETUNE = ["fairseq-hydra-train", "--config-dir", ROOT / "configs/finetune", "--config-name", "finetune"]


def test_fine_tuning_without_a_checkpoint_stops(classification, tmp_path):
    """It must not train from scratch in silence."""
    output = run(*FINETUNE, f"task.data={classification}", "model=tiny_512", "common.cpu=true", cwd=tmp_path, status=1)
    assert last_line(output).startswith("error: checkpoint.finetune_from_model=")
    assert not list(tmp_path.rglob("*.pt"))


def test_fine_tuning_from_a_pretrained_checkpoint(trained, classification, tmp_path):
    """It learns the task with the checkpoint's model, resumes, and predicts the names of labels."""
    schedule = ["optimization.lr=[0.01]", "lr_scheduler.warmup_updates=5", "lr_scheduler.total_num_update=60"]
    paths = [f"task.data={classification}", f"checkpoint.finetune_from_model={trained / 'hydra/checkpoint_last.pt'}"]
    command = [*FINETUNE, *schedule, *paths, "common.cpu=true", "dataset.num_workers=0"]
    command += ["checkpoint.save_dir=runs/SST-2"]
    run(*command, "optimization.max_update=20", cwd=tmp_path)
    output = run(*command, "optimization.max_update=60", cwd=tmp_path)
    assert "Loaded checkpoint runs/SST-2/checkpoint_last.pt" in output
    assert float(re.findall(r"valid on .*? accuracy ([\d.]+)", output)[-1]) > 90

    roberta = LinformerRobertaModel.from_pretrained(str(tmp_path / "runs/SST-2")).eval()
    labels = roberta.task.label_dictionary
    for sentence, label in (("the old dog runs today", "1"), ("the young bird sings today", "0")):
        index = roberta.predict("sentence_classification_head", roberta.encode(sentence)).argmax().item()
        assert labels[index + labels.nspecial] == label


def test_a_run_is_not_complete_for_another_configuration(trained, tmp_path):
    """A comparison of attentions would compare one with itself; config.yaml stays that of the training."""
    shutil.copytree(trained / "hydra", tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run").glob("*.*")}
    assert "attention: linformer" in before[tmp_path / "run/config.yaml"].decode()
    output = run(*with_hydra(trained / "data", "run", 6, "task.mask_prob=0.4"), cwd=tmp_path, status=1)
    assert "task.mask_prob was 0.15, is 0.4" in last_line(output) and "linformer convert" in last_line(output)
    assert "Error executing job" not in output, "Hydra's line of all overrides"
    assert {path: path.read_bytes() for path in (tmp_path / "run").glob("*.*")} == before


@pytest.mark.exhaustive
def test_jobs_of_a_multirun_are_independent(trained, tmp_path):
    """In one process the second would keep the first one's best loss, and have no best checkpoint and no curves."""
    run(*with_hydra(trained / "data", "runs/${common.seed}", 2, "common.seed=1,2", "--multirun"), cwd=tmp_path)
    files = [sorted(path.name for path in (tmp_path / "runs" / seed).rglob("*.pt")) for seed in "12"]
    assert files[0] == files[1] and "checkpoint_best.pt" in files[0]
    curves = [sorted(path.parent.name for path in (tmp_path / "runs" / seed).rglob("events.*")) for seed in "12"]
    assert curves[0] == curves[1] == ["train", "train_inner", "valid"]
    run(*with_hydra(trained / "data", "alone", 2, "common.seed=2"), cwd=tmp_path)
    assert_same_training(parameters(tmp_path / "alone"), parameters(tmp_path / "runs/2"))


@pytest.mark.exhaustive
def test_jobs_of_a_multirun_that_fail_are_named(trained, tmp_path):
    words = ["model.attention=linformer,softmax,sparse", "hydra.searchpath=[]", "--multirun"]  # jobs get Hydra's, too
    output = run(*with_hydra(trained / "data", "run", 2, *words), cwd=tmp_path, status=1)
    assert last_line(output) == "error: 2 of 3 jobs failed: model.attention=softmax; model.attention=sparse"
    assert "Traceback" not in output


def test_ctrl_c_saves_and_no_other_process_trains_in_the_folder(trained, tmp_path):
    settings = ["dataset.num_workers=1", "checkpoint.save_interval_updates=9999", "common.log_interval=5"]
    with forked(with_hydra(trained / "data", "run", 5000, *settings), tmp_path / "log") as process:
        wait_until(lambda: "num_updates=10," in (tmp_path / "log").read_text())
        printed = run(*with_hydra(trained / "data", "run", 5000, *settings), cwd=tmp_path, status=1)
        assert last_line(printed) == "error: run: another process is training there"
        os.killpg(process.pid, signal.SIGINT)  # to all of its processes, as a terminal does
        process.join(60)
        assert process.exitcode == 128 + signal.SIGINT
    output = (tmp_path / "log").read_text()
    printed = r"stopped by Ctrl-C after update ([\d,]+): the same command resumes from run/checkpoint_last.pt"
    updates = int(re.fullmatch(printed, last_line(output))[1].replace(",", ""))
    assert "Traceback" not in output
    assert parameters(tmp_path / "run")["optimizer_history"][-1]["num_updates"] == updates


def test_a_model_built_from_a_checkpoints_configuration_is_no_training(trained):
    """Its run is complete: its folder would be locked, and the program would end."""
    cfg = read_checkpoint(trained / "hydra/checkpoint_last.pt")["cfg"]
    cfg.task.data, cfg.checkpoint.save_dir = str(trained / "data"), str(trained / "hydra")
    task = setup_task(cfg.task)
    assert task.build_model(cfg.model) is not None and task.run is None
    roberta = LinformerRobertaModel.from_pretrained(str(trained / "hydra"), "checkpoint_last.pt", str(trained / "data"))
    assert roberta.task.build_model(roberta.cfg.model) is not None and roberta.task.run is None


def test_a_run_is_saved_by_time_without_validation(trained, tmp_path):
    """The best checkpoint, and the options in a checkpoint, must not depend on the clock."""
    settings = ["task.save_interval_minutes=0.0001", "checkpoint.save_interval_updates=100"]
    command = with_hydra(trained / "data", "run", 3, "checkpoint.no_last_checkpoints=true", *settings)
    output = run(*command, cwd=tmp_path)
    assert "(epoch 1 @ 1 updates, score None)" in output and output.count("valid on 'valid' subset") == 1
    (timed,) = (tmp_path / "run").glob("checkpoint_1_*.pt")  # keep_interval_updates=1
    cfg = parameters(tmp_path / "run", timed.name)["cfg"]
    assert (cfg["checkpoint"]["save_interval_updates"], cfg["dataset"]["disable_validation"]) == (100, False)
    kept = sorted((tmp_path / "run").glob("*.pt"))
    printed = last_line(run(*command, cwd=tmp_path, status=1))
    assert "checkpoint.save_dir=run" in printed and kept == sorted((tmp_path / "run").glob("*.pt"))


def test_a_training_that_diverges_is_named(trained, tmp_path):
    settings = ["optimization.lr=[1e9]", "lr_scheduler.warmup_updates=0"]
    output = run(*with_hydra(trained / "data", "run", 6, *settings), cwd=tmp_path, status=1)
    assert re.match(r"error: the training diverged: .* lower optimization\.lr", last_line(output))
    assert len(output.splitlines()) < 40


def test_another_vocabulary_of_equal_size_is_rejected(trained, tmp_path):
    """Masks would be filled from the wrong vocabulary, in silence."""
    shutil.copytree(trained / "data", tmp_path / "data")
    symbols = (tmp_path / "data/dict.txt").read_text().splitlines()
    (tmp_path / "data/dict.txt").write_text("\n".join(reversed(symbols)) + "\n")
    with pytest.raises(ValueError, match="another dictionary"):
        LinformerRobertaModel.from_pretrained(str(trained / "hydra"), "checkpoint_last.pt", str(tmp_path / "data"))
    dictionary, model = load_dictionary(tmp_path / "data/dict.txt"), tmp_path / "data/sentencepiece.bpe.model"
    digests = digest_vocabulary(dictionary, tmp_path / "data")
    model.write_bytes(model.read_bytes() + b" ")
    assert differing_parts(digests, digest_vocabulary(dictionary, tmp_path / "data")) == ["subword model"]
