"""Numbers and lists as they are typed."""

import argparse
import sys

import pytest

from fairseq_linformer.cli import prepare_imdb
from fairseq_linformer.cli.arguments import comma_list, number


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (number(int, least=0), "0", 0),
        (number(int, least=1, most=8), "8", 8),
        (number(int, least=0), "1" + 400 * "0", 10**400),
        (number(float, above=0), "1e-9", 1e-9),
        (number(float), "-2.5", -2.5),
        (comma_list(number(int, least=0)), "3,1,2", [3, 1, 2]),
        (comma_list(number(float, above=0)), "1e-4", [1e-4]),
        (comma_list(str), "rte,mrpc", ["rte", "mrpc"]),
    ],
)
def test_what_is_within_its_bounds(parse, text, value):
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (number(int, least=1, most=8), "0", "0 is not allowed: it must be a whole number at least 1 and at most 8"),
        (number(int, least=1, most=8), "9", "9 is not allowed: it must be a whole number at least 1 and at most 8"),
        (number(int), "1.5", "1.5 is not allowed: it must be a whole number"),
        (number(float, above=0), "0", "0 is not allowed: it must be a number above 0"),
        (number(float, above=0), "inf", "inf is not allowed: it must be a number above 0"),
        (number(float), "-inf", "-inf is not allowed: it must be a number"),
        (number(float), "nan", "nan is not allowed: it must be a number"),
        (number(float), "", " is not allowed: it must be a number"),
        (comma_list(number(int, least=0)), "1,,2", " is not allowed: it must be a whole number at least 0"),
        (comma_list(number(int, least=0)), "1,-2", "-2 is not allowed: it must be a whole number at least 0"),
        (comma_list(number(int)), "1,2,01", "1,2,01 is not allowed: it must name each once"),
        (comma_list(str), "rte,rte", "rte,rte is not allowed: it must name each once"),
    ],
)
def test_what_is_not_is_said_in_its_bounds(parse, text, message):
    with pytest.raises(argparse.ArgumentTypeError) as refusal:
        parse(text)
    assert str(refusal.value) == message


@pytest.mark.parametrize(
    ("program", "typed"),
    [("scripts/predict.py", "python scripts/prepare_imdb.py"), ("bin/linformer-predict", "linformer-prepare-imdb")],
)
def test_help_has_the_docstring_with_its_commands_as_they_are_typed(program, typed, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [program])
    with pytest.raises(SystemExit, match="0"):
        prepare_imdb.main(["--help"])
    written = prepare_imdb.__doc__.strip()
    assert written.replace("python scripts/prepare_imdb.py", typed) in capsys.readouterr().out
