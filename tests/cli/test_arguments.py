"""Numbers and lists as they are typed, and what the parsers repeat of the package."""

import argparse

import pytest

from fairseq_linformer.conversion.start import EXTENSIONS
from fairseq_linformer.data.prepare import corpus, imdb
from fairseq_linformer.data.prepare.table import FORMATS
from fairseq_linformer.data.task_record import KINDS
from fairseq_linformer.finetune import sweep
from linformer_cli import arguments
from linformer_cli.arguments import item_of, number


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (number(int, least=0), "0", 0),
        (number(int, least=1, most=8), "8", 8),
        (number(int, least=0), "1" + 400 * "0", 10**400),
        (number(float, above=0), "1e-9", 1e-9),
        (number(float), "-2.5", -2.5),
        (item_of(number(float, above=0)), "1e-4", 1e-4),
        (item_of(str), "rte", "rte"),
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
        (item_of(number(int, least=0)), "-2", "-2 is not allowed: it must be a whole number at least 0"),
        (item_of(number(int)), "1,2", "1,2 is not allowed: a list is separated by spaces: 1 2"),
        (item_of(str), "rte,,mrpc,", "rte,,mrpc, is not allowed: a list is separated by spaces: rte mrpc"),
    ],
)
def test_what_is_not_is_said_in_its_bounds(parse, text, message):
    with pytest.raises(argparse.ArgumentTypeError) as refusal:
        parse(text)
    assert str(refusal.value) == message


def test_what_the_parsers_repeat_is_what_the_package_has():
    """--help must not import it."""
    assert tuple(FORMATS) == arguments.FORMATS and tuple(KINDS) == arguments.KINDS
    assert (sweep.RATES, sweep.BATCH_SIZES) == (arguments.RATES, arguments.BATCH_SIZES)
    assert (sweep.NARROW, sweep.NARROW_RATES) == (arguments.NARROW, arguments.NARROW_RATES)
    assert tuple(EXTENSIONS) == arguments.EXTENSIONS and imdb.ADDRESS == arguments.IMDB_ADDRESS
    assert corpus.DEFAULT_VOCAB_SIZE == arguments.VOCAB_SIZE
    assert corpus.DEFAULT_SAMPLE_CHARACTERS == arguments.SAMPLE_CHARACTERS
