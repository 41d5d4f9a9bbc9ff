"""What the suites measure."""

from dataclasses import replace

import pytest
from benchmarking import suites

from tests.helpers.benchmarks import plan


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_suite_names_its_groups_once_and_fits_its_lengths(device):
    long_plan = plan(lengths=tuple(2**power for power in range(9, 17)), device=device)
    for name, suite in suites.SUITES.items():
        groups = list(suite(long_plan))
        assert groups, name
        assert len({group.name for group in groups}) == len(groups), name
        for group in groups:
            assert len(set(group.cases)) == len(group.cases), group.name
            assert len({(case.model, case.note) for case in group.cases}) == len(group.cases), group.name
            assert all(case.sizes.projected_length < case.sizes.length for case in group.cases)


def test_models_are_those_asked_for_once_each():
    names = {
        group.name.split(", ")[-1]: [case.model for case in group.cases]
        for group in suites.models(plan(models=("softmax", "performer", "softmax-math", "performer")))
    }
    kernels = ["softmax-flash", "softmax-efficient", "softmax-math"]
    assert names["inference"] == ["softmax", *kernels, "performer"]
    assert names["forward + backward"] == ["softmax", "performer", "softmax-math"]


def test_the_preset_is_among_the_models_where_there_are_layers_to_share_values():
    notes = {}
    for layers in (1, 2):
        own = plan(models=("linformer", "softmax"))
        own = replace(own, sizes=replace(own.sizes, layers=layers))
        first, *others = suites.models(own)
        assert all([case.note for case in group.cases][:2] == ["", "compiled"] for group in (first, *others))
        notes[layers] = {case.note: dict(case.sizes.options) for case in first.cases}
    assert notes[2]["near_and_far"]["value_residual"] and "near_and_far" not in notes[1]


def test_the_overview_compares_the_same_step_at_every_length_and_leaves_out_what_would_not_fit():
    """fairseq's RoBERTa builds n x n matrices: beyond n = 4,096 they do not fit in memory."""
    models = {}
    for group in suites.overview(plan(lengths=(256, 512, 4096, 8192, 16384, 32768))):
        (n,) = {case.sizes.length for case in group.cases}
        assert all(case.rows == 1 and case.phase == "training step" for case in group.cases)
        models[n] = [case.model for case in group.cases]
    linear = ["linformer", "fairseq-example", "softmax"]
    assert models == {
        512: [*linear, "fairseq-roberta"],
        4096: [*linear, "fairseq-roberta"],
        8192: linear,
        16384: linear,
    }
