"""What a user can mend is the last line of fairseq's command lines too; what may be a defect keeps its traceback."""

import os
import sys
import traceback
from argparse import Namespace

import numpy as np
import pytest
import torch
from fairseq.checkpoint_utils import load_checkpoint_to_cpu, load_model_ensemble, verify_checkpoint_directory
from fairseq.data.data_utils import batch_by_size
from fairseq.data.iterators import EpochBatchIterator
from fairseq.dataclass.configs import DistributedTrainingConfig
from fairseq.dataclass.utils import merge_with_parent
from fairseq.distributed.utils import infer_init_method
from fairseq.options import get_validation_parser, parse_args_and_arch
from fairseq.tasks.masked_lm import MaskedLMConfig, MaskedLMTask
from fairseq.utils import import_user_module
from fairseq_cli import validate
from omegaconf import OmegaConf
from torch._utils import ExceptionWrapper
from torch.multiprocessing.spawn import ProcessRaisedException
from torch.utils.data import TensorDataset

from fairseq_linformer.checkpoints.files import DamagedCheckpointError
from fairseq_linformer.cli.fairseq_errors import install_excepthook, report
from fairseq_linformer.errors import check
from fairseq_linformer.model.config import LinformerRobertaConfig
from fairseq_linformer.training.text_prediction import TextPredictionConfig, TextPredictionTask
from hydra_plugins.fairseq_linformer_plugin import ProcessLauncher, asks_for_cpu, check_config_name
from tests.helpers import ROOT
from tests.helpers.commands import run
from tests.helpers.configs import composed

HYDRA = ["fairseq-hydra-train", "--config-dir", ROOT / "configs/pretrain", "--config-name"]


def refuse():
    check("k", 3, False, "from 1 to 2")


def from_a_worker():
    """As torch's data loader hands on what its worker raised."""
    try:
        refuse()
    except ValueError:
        ExceptionWrapper(where="in DataLoader worker process 0").reraise()


def while_handling(raised):
    try:
        refuse()
    except ValueError:
        raise raised  # noqa: B904  its __context__ alone leads to ours, as in fairseq


WITHOUT_A_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU")
WRAPPER = Exception("please ensure that the architectures match.")  # fairseq's


def from_a_rank(mistake):
    """As torch hands on what a process that it started raised."""
    try:
        mistake()
    except Exception:
        text = f"\n\n-- Process 1 terminated with the following error:\n{traceback.format_exc()}"
    raise ProcessRaisedException(text, error_index=1, error_pid=1)


def damaged():
    raise DamagedCheckpointError("a.pt is damaged")


def trained_otherwise():
    """What fairseq's trainer asserts of a checkpoint that it goes on from."""
    raise AssertionError("Optimizer does not match; please reset the optimizer (--reset-optimizer). Adam vs Muon")


def merged(group, defaults, **options):
    merge_with_parent(defaults, OmegaConf.create({group: options})[group])


def cut(tmp_path):
    torch.save({"model": {"w": torch.zeros(4096)}}, tmp_path / "whole.pt")
    (tmp_path / "cut.pt").write_bytes((tmp_path / "whole.pt").read_bytes()[:5000])
    load_checkpoint_to_cpu(str(tmp_path / "cut.pt"))


def printed(capsys, mistake):
    """What the hook prints of what `mistake` raises."""
    capsys.readouterr()
    try:
        mistake()
    except Exception:
        report(*sys.exc_info())
    return capsys.readouterr().err.splitlines()


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        (refuse, "k=3 is not allowed: it must be from 1 to 2"),
        (lambda: while_handling(WRAPPER), "k=3 is not allowed"),
        (lambda: from_a_rank(lambda: while_handling(WRAPPER)), "k=3 is not allowed: it must be from 1 to 2"),
        (from_a_worker, "k=3 is not allowed: it must be from 1 to 2"),
        (lambda: from_a_rank(damaged), "a.pt is damaged"),
        (trained_otherwise, "please reset the optimizer (checkpoint.reset_optimizer=true, or --reset-optimizer)"),
        (lambda: batch_by_size(np.arange(1), lambda row: 64, max_tokens=32), "should not exceed max_tokens=32"),
        (
            lambda: infer_init_method(DistributedTrainingConfig(distributed_world_size=99, tpu=False)),
            "world size is 99 but have",
        ),
        (lambda: import_user_module(Namespace(user_dir="nope/x")), "common.user_dir=nope/x: there is no such folder"),
        (lambda: MaskedLMTask.setup_task(MaskedLMConfig(data="gone")), "No such file or directory: 'gone/dict.txt'"),
        (lambda: TextPredictionTask.setup_task(TextPredictionConfig(data="gone")), "data=gone: there is no such fol"),
        (lambda: verify_checkpoint_directory(""), "checkpoint.save_dir is empty: it must be the name of a folder"),
        (lambda: load_model_ensemble(["gone.pt"]), "Model file not found: gone.pt"),
        (lambda: parse_args_and_arch(get_validation_parser(), ["data"]), "--task is missing: it is that of the tr"),
        (
            lambda: EpochBatchIterator(TensorDataset(torch.empty(0)), list, []).first_batch,
            "The dataset is empty. This could indicate that all",
        ),
        (lambda: validate.main(OmegaConf.create(VALIDATION)), "Must specify batch size"),
        (
            lambda: merged("model", LinformerRobertaConfig(), attention="linfomer"),
            "softmax, sparse]; did you mean linformer?",
        ),
        (
            lambda: merged("model", LinformerRobertaConfig(), projected_lenght=3),
            "model.projected_lenght: there is no such option; did you mean model.projected_length?",
        ),
        (lambda: str(OmegaConf.structured(MaskedLMConfig).data), "task.data is missing: pass task.data=VALUE"),
        pytest.param(torch.cuda.profiler.profile().__enter__, "common.profile=true is not", marks=WITHOUT_A_GPU),
    ],
)
def test_what_a_user_can_mend_is_one_line(mistake, said, capsys):
    (line,) = printed(capsys, mistake)
    assert line.startswith("error: ") and said in line


VALIDATION = {"common": {"user_dir": None}, "dataset": {"max_tokens": None, "batch_size": None}}


def test_a_split_that_is_missing_is_one_line(corpus, capsys):
    task = MaskedLMTask.setup_task(MaskedLMConfig(data=str(corpus)))
    assert printed(capsys, lambda: task.load_dataset("test")) == [f"error: Dataset not found: test ({corpus}/test)"]


def test_a_damaged_checkpoint_is_one_line(tmp_path, capsys):
    said = f"error: {tmp_path}/cut.pt is not a complete checkpoint: it is cut short or damaged (File is not a zip file)"
    assert printed(capsys, lambda: cut(tmp_path)) == [said]


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("modle.attention=softmax", "modle.attention: there is no such option; did you mean model.attention?"),
        (
            "model.projected_lenght=3",
            "model.projected_lenght: there is no such option; did you mean model.projected_le",
        ),
        ("projected_length=3", "projected_length: there is no such option; did you mean model.projected_length?"),
        ("qqqq=3", "qqqq: there is no such option"),
        ("model=tiny_521", "model=tiny_521: there is no such choice; did you mean tiny_512? (base_1024, base_2048"),
        ("optimization.max_update=x", "override optimization.max_update=x: Value 'x' of type 'str' could not be conv"),
        ("model.dropout", "Error parsing override 'model.dropout': missing EQUAL"),
    ],
)
def test_what_hydra_refuses_is_one_line(override, said, capsys):
    (line,) = printed(capsys, lambda: composed("pretrain", "tiny_512", "task.data=D", override))
    assert line.startswith("error: ") and said in line


@pytest.mark.parametrize(
    "defect",
    [
        lambda: {}["key"],
        lambda: np.zeros(2) + np.zeros(3),  # a ValueError, but numpy's
        lambda: OmegaConf.structured(MaskedLMConfig).no_such_option,
    ],
)
def test_a_defect_keeps_its_traceback(defect, capsys):
    lines = printed(capsys, defect)
    assert lines[0] == "Traceback (most recent call last):" and "error: " not in lines[-1]


def test_what_a_user_can_mend_comes_last_where_it_led_to_a_defect(capsys):
    lines = printed(capsys, lambda: while_handling(TypeError("a defect")))
    assert "TypeError: a defect" in lines
    assert lines[-1] == "error: k=3 is not allowed: it must be from 1 to 2"


@pytest.fixture
def program(monkeypatch):
    """Makes this process look like a program that starts."""

    def start(path, hook=sys.__excepthook__, full=None):
        monkeypatch.setattr(sys, "argv", [path])
        monkeypatch.setattr(sys, "excepthook", hook)
        monkeypatch.setenv("HYDRA_FULL_ERROR", "")  # so that it is undone
        os.environ.pop("HYDRA_FULL_ERROR") if full is None else monkeypatch.setenv("HYDRA_FULL_ERROR", full)
        install_excepthook()
        return sys.excepthook

    return start


@pytest.mark.parametrize("path", ["/v/bin/fairseq-train", "fairseq-validate", "/v/lib/fairseq_cli/hydra_train.py"])
def test_the_hook_is_for_fairseqs_command_lines(program, path):
    assert program(path) is report
    assert os.environ["HYDRA_FULL_ERROR"] == "1"


def test_the_hook_leaves_other_programs_and_hooks_alone(program):
    for path in ("train.py", "", "/v/bin/pytest", "/v/lib/ipykernel_launcher.py"):
        assert program(path) is sys.__excepthook__
        assert "HYDRA_FULL_ERROR" not in os.environ
    assert program("fairseq-train", hook=print) is print
    assert program("fairseq-train", full="1") is sys.__excepthook__, "who asks Hydra for tracebacks gets them"


@pytest.mark.slow
def test_a_wrong_config_name_lists_the_names(tmp_path):
    last = run(*HYDRA, "tiny_521", "task.data=D", cwd=tmp_path, status=1).splitlines()[-1]
    assert last.startswith("error: --config-name tiny_521: ")
    names = "base_1024, base_2048, base_4096, base_512, continue, large_4096, tiny_512"
    assert last.endswith(f"did you mean tiny_512? ({names})")


def test_a_recipe_that_is_given_as_the_name_is_explained():
    with pytest.raises(SystemExit, match=r"--config-name sst_2: .* --config-name finetune recipe=sst_2$"):
        check_config_name(str(ROOT / "configs/finetune"), "sst_2")


def test_without_a_folder_the_command_that_prints_it_is_named():
    for folder in (None, "nowhere"):
        with pytest.raises(SystemExit, match="linformer configs"):
            check_config_name(folder, "tiny_512")


def test_the_last_word_says_whether_a_run_is_to_see_gpus():
    assert asks_for_cpu(["task.data=d", "common.cpu=true"]) and asks_for_cpu(["+common.cpu=True"])
    assert not asks_for_cpu(["common.cpu=true", "common.cpu=false"]) and not asks_for_cpu(["task.data=common.cpu=true"])


def test_several_jobs_under_torchrun_need_stores_of_their_own(monkeypatch):
    """In one store the second job's processes find the addresses of the first one's."""
    launcher, ran = ProcessLauncher(), []
    monkeypatch.setattr(launcher, "_command", [], raising=False)
    monkeypatch.setattr(launcher, "_added", set(), raising=False)
    monkeypatch.setattr("signal.signal", lambda *given: None)
    monkeypatch.setattr("subprocess.run", lambda *given, **more: ran.append(given) or Namespace(returncode=0))
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    with pytest.raises(SystemExit, match=r"^error: 2 jobs .* TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in the"):
        launcher.launch([["a=1"], ["a=2"]], 0)
    assert not ran
    launcher.launch([["a=1"]], 0)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "False")  # as torchrun has it with that
    launcher.launch([["a=1"], ["a=2"]], 0)
    assert len(ran) == 3


@pytest.mark.exhaustive
def test_hydras_own_help_stays(tmp_path):
    assert "Compose your configuration" in run(*HYDRA, "tiny_512", "--help", cwd=tmp_path)
