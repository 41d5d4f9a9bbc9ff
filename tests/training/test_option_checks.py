"""Several ranks: options that cannot work, and two processes beside the mean over their batches in one process."""

import contextlib
from argparse import Namespace

import pytest
import torch
from fairseq.dataclass.configs import FairseqConfig
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.distributed import LegacyDistributedDataParallel
from fairseq.options import get_training_parser, parse_args_and_arch
from omegaconf import OmegaConf, open_dict
from torch import distributed, multiprocessing
from torch.nn.parallel import DistributedDataParallel

from fairseq_linformer.attention import ATTENTIONS
from fairseq_linformer.training.freezing import freeze_lm_head
from fairseq_linformer.training.option_checks import LEAST, TORCHRUN, adapt, check_launch
from tests.helpers.commands import as_flags
from tests.helpers.models import OFFLOADED, RECOMPUTED, small, tokens

RANKS = 2
# What is trained (an option of the model, or the classification head alone, as fine-tuning does), and by which wrapper.
TRAININGS = {
    "pretraining": ({"sharing": "layerwise"}, None, "pytorch_ddp"),
    "pretraining, recomputed": ({"sharing": "layerwise", **RECOMPUTED}, None, "pytorch_ddp"),
    "pretraining, offloaded": ({"sharing": "layerwise", **OFFLOADED}, None, "pytorch_ddp"),
    "fine-tuning, recomputed": ({"sharing": "layerwise", **RECOMPUTED}, "head", "pytorch_ddp"),
    "layerdrop, recomputed": ({"encoder_layerdrop": 0.5, **RECOMPUTED}, None, "find_unused"),
    "layerdrop, legacy": ({"encoder_layerdrop": 0.5, "sharing": "layerwise"}, None, "legacy_ddp"),
}


def model_and_step(options, head, rank):
    """A model, and a function that makes a backward pass with a seed and a batch of that rank through a wrapper."""
    model = small(dropout=0.1, attention_dropout=0.1, encoder_layers=3, **options)
    if head is not None:
        model.register_classification_head(head, num_classes=3)
        freeze_lm_head(model)

    def step(wrapped):
        torch.manual_seed(7 + rank)
        logits = wrapped(tokens(RANKS)[rank : rank + 1], features_only=head is not None, classification_head_name=head)
        logits[0].logsumexp(-1).mean().backward()

    return model, step


def gradients(model):
    return {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in model.named_parameters()}


def train(rank, folder):
    """What a rank does: every training, two backward passes of it; gradients, or the error, are left in the folder."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS)
    results = {}
    for name, (options, head, wrapper) in TRAININGS.items():
        model, step = model_and_step(options, head, rank)
        if wrapper == "legacy_ddp":
            wrapped = LegacyDistributedDataParallel(model, distributed.group.WORLD)
        else:
            wrapped = DistributedDataParallel(model, find_unused_parameters=wrapper == "find_unused")
        try:
            for _ in range(2):
                model.zero_grad()
                step(wrapped)
                if wrapper == "legacy_ddp":
                    wrapped.all_reduce_grads()
            results[name] = gradients(model)
        except RuntimeError as error:
            results[name] = str(error)
    torch.save(results, f"{folder}/{rank}.pt")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The results of the ranks."""
    folder = tmp_path_factory.mktemp("ranks")
    multiprocessing.spawn(train, (folder,), nprocs=RANKS)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(RANKS)]


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAININGS)
def test_gradients_of_two_ranks_are_the_mean_over_their_batches(trained, name):
    """With dropout, and beside a model that keeps its activations: recomputation draws the masks of the first time."""
    options, head, _ = TRAININGS[name]
    kept = {option: value for option, value in options.items() if option not in OFFLOADED}
    alone = []
    for rank in range(RANKS):
        model, step = model_and_step(kept, head, rank)
        step(model)
        alone.append(gradients(model))
    for results in trained:
        assert not isinstance(results[name], str), results[name]
        for parameter, gradient in results[name].items():
            mean = sum(own[parameter] for own in alone) / RANKS
            torch.testing.assert_close(gradient, mean, atol=1e-6, rtol=1e-5, msg=parameter)


@pytest.mark.parametrize("attention", sorted(ATTENTIONS))
def test_every_parameter_has_a_gradient(attention):
    """Else PyTorch's wrapper would wait for it: one step of pretraining, and one of fine-tuning."""
    for head in (None, "head"):
        model = small(attention=attention, attention_dropout=0.0)
        if head is not None:
            model.register_classification_head(head, num_classes=3)
            freeze_lm_head(model)
        logits = model(tokens(), features_only=head is not None, classification_head_name=head)[0]
        logits.logsumexp(-1).mean().backward()
        assert not [name for name, value in model.named_parameters() if value.requires_grad and value.grad is None]


@pytest.fixture
def machine(monkeypatch):
    """Two GPUs and no launcher."""
    for name in ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS", *TORCHRUN):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


def whole(processes=2, task="dynamic_masked_lm", model=None, **options):
    """fairseq's configuration of a training; ``options`` are of distributed_training, and cpu, bf16, … of common."""
    cfg = OmegaConf.structured(FairseqConfig)
    cfg.distributed_training.distributed_world_size = processes
    for name, value in options.items():
        cfg["distributed_training" if name in cfg.distributed_training else "common"][name] = value
    with open_dict(cfg):
        cfg.model, cfg.task = model or {"encoder_layerdrop": 0.0}, {"_name": task}
    return cfg


NAMES = "pytorch_ddp, c10d, legacy_ddp, no_c10d"


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({"ddp_backend": "fully_sharded"}, f"ddp_backend=fully_sharded is not allowed: it must be one of {NAMES}"),
        ({"ddp_backend": "slowmo"}, f"ddp_backend=slowmo is not allowed: it must be one of {NAMES}: each GPU holds"),
        ({"zero_sharding": "os"}, "zero_sharding=os is not allowed: it must be none: each GPU holds"),
        ({"cpu_offload": True}, "cpu_offload=True is not allowed: it must be false: nothing is sharded"),
        ({"use_sharded_state": True}, "use_sharded_state=True is not allowed: it must be false: nothing is sharded"),
        (
            {"model": {"flex_attention": True}, "cpu": True},
            "flex_attention=True is not allowed: it must be false without",
        ),
        ({"pipeline_model_parallel": True}, "pipeline_model_parallel=True is not allowed: it must be false"),
        ({"model_parallel_size": 2}, "common.model_parallel_size=2 is not allowed: it must be 1"),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused_by_name(machine, options, refused):
    with pytest.raises(ValueError, match=refused):
        check_launch(whole(**options))


@pytest.mark.parametrize("name", LEAST)
def test_numbers_that_fairseq_refuses_late_or_takes_for_no_limit(name):
    for value, works in ((LEAST[name], True), (LEAST[name] - 1, False)):
        cfg = whole(1, cpu=True)
        with open_dict(cfg):
            OmegaConf.update(cfg, name, value, force_add=True)
        said = f"^{name}={value} is not allowed: it must be at least {LEAST[name]}$"
        with contextlib.nullcontext() if works else pytest.raises(ValueError, match=said):
            check_launch(cfg)


@pytest.mark.parametrize("betas", [0.9, [0.9], [0.9, 1.0], "(0.9, 0.98", ["a", 0.9]], ids=str)
def test_adam_has_two_betas(betas):
    cfg = whole(1, cpu=True)
    with open_dict(cfg):
        cfg.optimizer = {"_name": "adam", "adam_betas": betas}
    with pytest.raises(ValueError, match=r"^optimizer\.adam_betas=.* it must be two numbers from 0 to below 1"):
        check_launch(cfg)
    cfg.optimizer.adam_betas = "(0.9, 0.98)"  # as fairseq-train has it
    check_launch(cfg)


@pytest.mark.parametrize(
    ("criterion", "metric", "most", "refused"),
    [
        ("masked_lm", "accuracy", True, "best_checkpoint_metric=accuracy is not allowed: it must be one of loss, ppl$"),
        ("masked_lm", "ppl", True, "maximize_best_checkpoint_metric=True .* false with checkpoint.best_.*=ppl$"),
        ("masked_lm", "ppl", False, None),
        ("encoder_distillation", "cosine", False, "maximize_best_checkpoint_metric=False .* it must be true with"),
        ("encoder_distillation", "cosine", True, None),
        ("of the user", "own", True, None),
    ],
)
def test_the_best_checkpoint_has_the_best_of_what_is_validated(criterion, metric, most, refused):
    cfg = whole(1, cpu=True)
    with open_dict(cfg):
        cfg.criterion = {"_name": criterion}
    cfg.checkpoint.best_checkpoint_metric, cfg.checkpoint.maximize_best_checkpoint_metric = metric, most
    with contextlib.nullcontext() if refused is None else pytest.raises(ValueError, match=rf"^checkpoint\.{refused}"):
        check_launch(cfg)
    cfg.dataset.disable_validation = True
    check_launch(cfg)


@pytest.mark.parametrize("frequencies", [[], [0], [2, 0]])
def test_an_update_has_a_batch(frequencies):
    cfg = whole(1, cpu=True)
    cfg.optimization.update_freq = frequencies
    with pytest.raises(ValueError, match="one number or several, each at least 1"):
        check_launch(cfg)


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_is_one_of_numpys(seed):
    cfg = whole(1, cpu=True)
    cfg.common.seed = seed
    with pytest.raises(ValueError, match=rf"^common\.seed={seed} is not allowed: it must be from 0 to 4294967295"):
        check_launch(cfg)


def test_what_fairseq_train_takes_bf16_for(machine):
    parsed = parse_args_and_arch(get_training_parser(), ["data", "--bf16", "--arch", "linformer_roberta_tiny"])
    said = r"^common\.tpu=True is not allowed: it must be false without torch_xla; fairseq-train's --bf16 sets it"
    with pytest.raises(ValueError, match=said):
        check_launch(convert_namespace_to_omegaconf(parsed))


def test_what_can_work_is_not_refused(machine):
    check_launch(whole())
    check_launch(whole(1, cpu=True))
    check_launch(whole(model={"flex_attention": True}))
    check_launch(whole(ddp_backend="legacy_ddp"))


def test_several_processes_without_a_gpu_have_fairseqs_own_wrapper(machine):
    """fairseq gives PyTorch's a GPU's number."""
    for processes, cpu, backend in ((2, True, "legacy_ddp"), (2, False, "pytorch_ddp"), (1, True, "pytorch_ddp")):
        cfg = whole(processes, cpu=cpu)
        adapt(cfg)
        assert cfg.distributed_training.ddp_backend == backend


def test_no_thread_reads_ahead(machine):
    """It may hold Python as the program ends, which aborts: a launcher takes a complete run for a failed one."""
    cfg = whole(1, cpu=True)
    assert cfg.dataset.data_buffer_size > 0
    adapt(cfg)
    assert cfg.dataset.data_buffer_size == 0


def test_parameters_without_gradient_must_be_looked_for(machine):
    """Only where PyTorch waits for them."""
    training = {"model": {"encoder_layerdrop": 0.1}}
    said = r"find_unused_parameters=False is not allowed: it must be true with model.encoder_layerdrop=0\.1"
    with pytest.raises(ValueError, match=said):
        check_launch(whole(**training))
    check_launch(whole(**training, find_unused_parameters=True))
    check_launch(whole(**training, ddp_backend="legacy_ddp"))
    check_launch(whole(1, **training))
    check_launch(whole(**training, cpu=True))  # which takes legacy_ddp


def test_flags_are_refused_too(machine):
    """Of them fairseq makes a configuration whose model is a Namespace."""
    flags = {"task": "dynamic_masked_lm", "criterion": "masked_lm", "arch": "linformer_roberta_tiny"}
    flags |= {"distributed_world_size": 2, "encoder_layerdrop": 0.1}
    parsed = parse_args_and_arch(get_training_parser(), ["data", *map(str, as_flags(flags))])
    with pytest.raises(ValueError, match=r"must be true with model.encoder_layerdrop=0\.1"):
        check_launch(convert_namespace_to_omegaconf(parsed))


def test_processes_of_a_launcher_do_not_train_alone(machine, monkeypatch):
    for name, value in {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}.items():
        check_launch(whole(1))
        monkeypatch.setenv(name, value)
    said = r"distributed_world_size=1 is not allowed: it must be {}, as many .*\(\+distributed={}\)"
    with pytest.raises(ValueError, match=said.format("WORLD_SIZE=2", "torchrun")):
        check_launch(whole(1))
    check_launch(whole(2))
    monkeypatch.setenv("WORLD_SIZE", "1")
    check_launch(whole(1))
    monkeypatch.delenv("RANK")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    with pytest.raises(ValueError, match=said.format("SLURM_STEP_NUM_TASKS=4", "slurm")):
        check_launch(whole(1))


def test_a_group_knows_the_whole_configuration_and_one_that_stands_alone_is_not_checked(machine):
    cfg = whole(cpu_offload=True)
    with pytest.raises(ValueError, match="cpu_offload=True"):
        check_launch(cfg.task)
    check_launch(OmegaConf.create({"_name": "dynamic_masked_lm"}))
    check_launch(Namespace(cpu_offload=True))


def test_half_precision_without_a_gpu_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"^common.fp16=True is not allowed: .*common.fp16=false"):
        check_launch(OmegaConf.merge(whole(1), {"common": {"fp16": True}}))
    # What fairseq does without CUDA is not refused.
    for common in ({"bf16": True}, {"fp16": True, "memory_efficient_fp16": True}):
        check_launch(OmegaConf.merge(whole(1), {"common": common}))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    check_launch(OmegaConf.merge(whole(1), {"common": {"fp16": True}}))
    with pytest.raises(ValueError, match=r"^common.fp16=True is not allowed"):  # its weights would never change
        check_launch(OmegaConf.merge(whole(1), {"common": {"fp16": True, "cpu": True}}))


def test_half_precision_in_place_needs_fairseqs_adam(machine):
    for name in ("memory_efficient_fp16", "memory_efficient_bf16"):
        for optimizer, works in (("adam", True), ("fused_adam", False), ("muon", False)):
            cfg = OmegaConf.merge(whole(1), {"common": {name: True}, "optimizer": {"_name": optimizer}})
            with contextlib.nullcontext() if works else pytest.raises(ValueError, match=rf"common.{name}=True .*=adam"):
                check_launch(cfg)


def test_what_nothing_reads_is_refused():
    """Hydra adds what ``+NAME=VALUE`` names beside fairseq's groups, a mistyped preset, to a run without it."""
    cfg = whole(1)
    with open_dict(cfg):
        cfg.job_logging_cfg = {}  # by fairseq-hydra-train
        check_launch(cfg)
        cfg.optimiser = "muon"
    with pytest.raises(ValueError, match=r"^optimiser: there is no such option; did you mean optimizer\?$"):
        check_launch(cfg)


def test_what_is_of_a_checkpoint_is_left_out_where_another_run_s_is_named_alone():
    """Else every repetition of an interrupted command would begin at update 0."""
    cfg = whole(1)
    cfg.checkpoint.reset_dataloader = True
    with pytest.raises(ValueError, match=r"^checkpoint\.reset_dataloader=True is not allowed: it must be false"):
        check_launch(cfg)
    cfg.checkpoint.restore_file = "other.pt"
    check_launch(cfg)
