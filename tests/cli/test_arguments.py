"""Numbers within bounds, Hydra's overrides, and copies of names."""

import argparse
import contextlib
from pathlib import Path

import pytest

from fairseq_linformer.cli import arguments
from fairseq_linformer.cli.arguments import number
from fairseq_linformer.cli.command import parser_of
from fairseq_linformer.convert import EXTENSIONS
from fairseq_linformer.data.prepare.table import FORMATS
from fairseq_linformer.data.task_record import KINDS

TUNING = ["run", "--data", "tasks", "--tasks", "cola"]


def test_copies_of_names_are_those_of_the_package():
    assert tuple(FORMATS) == arguments.FORMATS and tuple(KINDS) == arguments.KINDS
    assert tuple(EXTENSIONS) == arguments.EXTENSIONS


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (number(int, minimum=1, maximum=8), "8", 8),
        (number(float, above=0), "1e-9", 1e-9),
        (number(int, minimum=1, maximum=8), "9", None),
        (number(int, minimum=1, maximum=8), "0", None),
        (number(int), "1.5", None),
        (number(float, above=0), "0", None),
        (number(float), "nan", None),
    ],
)
def test_numbers_have_bounds(parse, text, value):
    with pytest.raises(argparse.ArgumentTypeError, match=text) if value is None else contextlib.nullcontext():
        assert parse(text) == value


@pytest.mark.parametrize(
    "overrides",
    [
        ["model.adaptive_length=true"],
        ["+preset=near_and_far", "~model.dropout", "++a.b=[1,2]", "hydra/launcher=x"],
        [f"a={999 * 'b'}"],  # too long for a path
    ],
)
@pytest.mark.parametrize("flag", [[], ["--search"]])
def test_overrides_follow_all_flags(flag, overrides):
    values = parser_of("finetune").parse_args([*TUNING, "sst_2", "--seeds", "1", "2", *flag, *overrides])
    assert values.tasks == ["cola", "sst_2"] and values.seeds == [1, 2] and values.overrides == overrides


def test_the_value_of_a_flag_and_a_folder_are_no_overrides(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("runs/lr=0.1").mkdir(parents=True)
    values = vars(parser_of("convert").parse_args(["runs/lr=0.1", "--fit-on", "data=a", "--out", "new=b"]))
    assert [str(values[name]) for name in ("model", "fit_on", "out")] == ["runs/lr=0.1", "data=a", "new=b"]
    assert values["overrides"] == []
