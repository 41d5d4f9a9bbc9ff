"""Training on several ranks: two processes beside the mean over their batches in one process."""

import pytest
import torch
from fairseq.distributed import LegacyDistributedDataParallel
from torch import distributed, multiprocessing
from torch.nn.parallel import DistributedDataParallel

from tests.test_model import OFFLOADED, RECOMPUTED, small, tokens

RANKS = 2
# What is trained (an option of the model, or the classification head alone, as fine-tuning does), and by which wrapper.
TRAININGS = {
    "pretraining": ({"sharing": "layerwise"}, None, "pytorch_ddp"),
    "pretraining, recomputed": ({"sharing": "layerwise", **RECOMPUTED}, None, "pytorch_ddp"),
    "pretraining, offloaded": ({"sharing": "layerwise", **OFFLOADED}, None, "pytorch_ddp"),
    "fine-tuning, recomputed": ({"sharing": "layerwise", **RECOMPUTED}, "head", "find_unused"),
    "layerdrop, recomputed": ({"encoder_layerdrop": 0.5, **RECOMPUTED}, None, "find_unused"),
    "layerdrop, legacy": ({"encoder_layerdrop": 0.5, "sharing": "layerwise"}, None, "legacy_ddp"),
}


def model_and_step(options, head, rank):
    """A model, and a function that makes a backward pass with a seed and a batch of that rank through a wrapper."""
    model = small(dropout=0.1, attention_dropout=0.1, encoder_layers=3, **options)
    if head is not None:
        model.register_classification_head(head, num_classes=3)

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
