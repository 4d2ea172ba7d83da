"""Covering designs: few rows in which every allowed pair of values of any two factors occurs.

A greedy construction: while a pair is uncovered, a few candidate rows are completed from uncovered
pairs, each factor taking the allowed value that covers most, and the best candidate is kept. There
is no chance in it: the same factors give the same rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import combinations, islice

Row = dict[str, str]
Cell = tuple[str, str]
Pair = tuple[Cell, Cell]
Factors = Mapping[str, Sequence[str]]
Allowed = Callable[[Mapping[str, str]], bool]

_CANDIDATES = 12


@dataclass(frozen=True, slots=True)
class Design:
    """Rows that cover pairs.

    Attributes:
        rows: each gives every factor a value, in the factors' order.
        covered: how many different pairs occur in them.
        possible: how many pairs occur in any allowed row.
    """

    rows: tuple[Row, ...]
    covered: int
    possible: int


def pairs_of(row: Mapping[str, str]) -> set[Pair]:
    """The pairs that occur in a row whose factors are in their order."""
    return set(combinations(row.items(), 2))


def covering(factors: Factors, allowed: Allowed) -> Design:
    """A design over `factors`.

    Args:
        factors: the values of each factor, by name.
        allowed: whether a row, or the part of one, may occur. A part is refused only if every row
            that completes it is.
    """
    names = list(factors)
    every = (
        ((one, first), (two, second))
        for one, two in combinations(names, 2)
        for first in factors[one]
        for second in factors[two]
    )
    used = Counter[Cell]()
    possible = [pair for pair in every if _completed(dict(pair), factors, allowed, set(), used)]
    left = dict.fromkeys(possible)
    rows: list[Row] = []
    while left:
        candidates = [
            _completed(dict(pair), factors, allowed, left.keys(), used)
            for pair in islice(left, _CANDIDATES)
        ]
        found = [{name: row[name] for name in names} for row in candidates if row is not None]
        rows.append(max(found, key=lambda row: len(pairs_of(row) & left.keys())))
        used.update(rows[-1].items())
        for pair in pairs_of(rows[-1]):
            left.pop(pair, None)
    covered = set[Pair]().union(*map(pairs_of, rows))
    return Design(tuple(rows), len(covered), len(possible))


def _completed(
    row: Row, factors: Factors, allowed: Allowed, uncovered: Set[Pair], used: Counter[Cell]
) -> Row | None:
    """The row with its missing factors filled, the most numerous first; None if none may occur.

    Each takes the value that covers most, and of equals the one that is in use least.
    """
    if not allowed(row):
        return None
    missing = [name for name in factors if name not in row]
    if not missing:
        return row
    name = max(missing, key=lambda name: len(factors[name]))

    def merit(value: str) -> tuple[int, int]:
        cell = (name, value)
        gain = sum(
            (cell, other) in uncovered or (other, cell) in uncovered for other in row.items()
        )
        return gain, -used[cell]

    for value in sorted(factors[name], key=merit, reverse=True):
        full = _completed({**row, name: value}, factors, allowed, uncovered, used)
        if full is not None:
            return full
    return None
