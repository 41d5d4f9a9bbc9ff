"""ListOps (Nangia and Bowman 2018, arXiv 1804.06028) with the grammar of the Long Range Arena (arXiv 2011.04006).

    [MAX 4 [MIN 2 7 ] [SM 5 8 ] 1 ]  =  4

An expression is a digit, or an operator with 2 to 10 arguments, which are expressions. One in four is an operator's,
and those at depth 10 are digits (lra_benchmarks/data/listops.py of google-research/long-range-arena). Operators are
minimum, maximum, median (of an even number the mean of the middle two, rounded down) and the sum modulo 10. Only
expressions of a range of lengths are kept, the published ones have 500 to 2,000 symbols, and each once. Brackets are
symbols, as in the Arena's own rows once they were repaired.
"""

import random
from collections.abc import Callable, Sequence

import numpy as np

from fairseq_linformer.errors import UserError, check

from .rows_of_text import FIRST, MARKS, Labelled, Request, TaskData, as_rows, symbols_dictionary

OPERATORS: dict[str, Callable[[Sequence[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda values: _median(sorted(values)),
    "[SM": lambda values: sum(values) % 10,
}
SYMBOLS = (*map(str, range(10)), *OPERATORS, "]")
OPERATOR_SHARE = 0.25
MOST_ARGUMENTS, MOST_DEPTH = 10, 10
SHORTEST, LONGEST = 4, 2_050  # an expression has at least a quarter of n; longer ones are rare at depth 10
SEED = 1
MOST_TRIES = 20_000  # expressions that are drawn for each that is kept


class _TooLong(Exception):
    pass


def listops(request: Request) -> TaskData:
    """Expressions of a quarter of n to n symbols; the label is the value."""
    most = request.length - MARKS
    allowed = f"from 16 to {LONGEST}: the published grammar, of depth {MOST_DEPTH}, seldom gives longer ones"
    check("lengths", request.length, 16 <= request.length <= LONGEST, allowed)
    drawn = draw_expressions(request.rows + 2 * request.tested, request.length // SHORTEST, most, SEED)
    examples = [encode(symbols, value) for symbols, value in drawn]
    parts = (examples[2 * request.tested :], examples[: request.tested], examples[request.tested : 2 * request.tested])
    train, valid, test = (as_rows(part, request.length) for part in parts)
    return TaskData(train, valid, test, symbols_dictionary(len(SYMBOLS)), classes=10)


def encode(symbols: Sequence[str], value: int) -> Labelled:
    """An expression as a row's content."""
    numbers = {symbol: FIRST + number for number, symbol in enumerate(SYMBOLS)}
    return Labelled(np.array([numbers[symbol] for symbol in symbols], dtype=np.int32), value, " ".join(symbols))


def draw_expressions(count: int, least: int, most: int, seed: int) -> list[tuple[tuple[str, ...], int]]:
    """Different expressions of `least` to `most` symbols, with their values."""
    chance = random.Random(seed)
    found: dict[tuple[str, ...], int] = {}
    for _ in range(MOST_TRIES * count):
        if len(found) == count:
            break
        symbols: list[str] = []
        try:
            value = grow(chance, 1, symbols, most)
        except _TooLong:
            continue
        if len(symbols) >= least:
            found.setdefault(tuple(symbols), value)
    if len(found) < count:
        raise UserError(f"ListOps: only {len(found)} different expressions of {least} to {most} symbols were found")
    return list(found.items())


def grow(chance: random.Random, depth: int, symbols: list[str], most: int) -> int:
    """Appends a random expression to `symbols`, and returns its value; gives up beyond `most` symbols."""
    if len(symbols) >= most:
        raise _TooLong
    if depth == MOST_DEPTH or chance.random() > OPERATOR_SHARE:
        value = chance.randrange(10)
        symbols.append(str(value))
        return value
    operator = chance.choice(list(OPERATORS))
    symbols.append(operator)
    values = [grow(chance, depth + 1, symbols, most) for _ in range(chance.randint(2, MOST_ARGUMENTS))]
    symbols.append("]")
    if len(symbols) > most:
        raise _TooLong
    return OPERATORS[operator](values)


def _median(ordered: Sequence[int]) -> int:
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) // 2
