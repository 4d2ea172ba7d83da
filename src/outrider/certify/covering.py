"""Covering designs: few rows in which every allowed combination of any t factors' values occurs.

A greedy construction: while a combination is uncovered, a few candidate rows are completed from
uncovered ones, each factor taking the allowed value that covers most, and the best candidate is
kept. There is no chance in it: the same factors give the same rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import combinations, islice, product

Row = dict[str, str]
Cell = tuple[str, str]
Cells = tuple[Cell, ...]
Factors = Mapping[str, Sequence[str]]
Allowed = Callable[[Mapping[str, str]], bool]

_CANDIDATES = 6


@dataclass(frozen=True, slots=True)
class Coverage:
    """How many combinations of some size occur in a design, of those in any allowed row."""

    size: int
    covered: int
    possible: int


def occurring(row: Mapping[str, str], size: int) -> set[Cells]:
    """The combinations of `size` cells that occur in a row whose factors are in their order."""
    return set(combinations(row.items(), size))


def possible(factors: Factors, allowed: Allowed, size: int) -> list[Cells]:
    """The combinations of `size` cells that occur in any allowed row."""
    every = (
        tuple(zip(names, values, strict=True))
        for names in combinations(factors, size)
        for values in product(*(factors[name] for name in names))
    )
    return [
        cells for cells in every if _completed(dict(cells), factors, allowed, set(), Counter(), 0)
    ]


def covering(factors: Factors, allowed: Allowed, strength: int) -> list[Row]:
    """Rows that cover every combination of `strength` cells that may occur.

    Args:
        factors: the values of each factor, by name.
        allowed: whether a row, or the part of one, may occur. A part is refused only if every row
            that completes it is.
        strength: the size of the combinations.
    """
    left = dict.fromkeys(possible(factors, allowed, strength))
    used = Counter[Cell]()
    rows: list[Row] = []
    while left:
        candidates = [
            _completed(dict(cells), factors, allowed, left.keys(), used, strength)
            for cells in islice(left, _CANDIDATES)
        ]
        found = [{name: row[name] for name in factors} for row in candidates if row is not None]
        rows.append(max(found, key=lambda row: len(occurring(row, strength) & left.keys())))
        used.update(rows[-1].items())
        for cells in occurring(rows[-1], strength):
            left.pop(cells, None)
    return rows


def coverage(rows: Sequence[Row], factors: Factors, allowed: Allowed, size: int) -> Coverage:
    """How many combinations of `size` cells occur in rows."""
    covered = set[Cells]().union(*(occurring(row, size) for row in rows))
    return Coverage(size, len(covered), len(possible(factors, allowed, size)))


def _completed(
    row: Row,
    factors: Factors,
    allowed: Allowed,
    uncovered: Set[Cells],
    used: Counter[Cell],
    strength: int,
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
        known = {**row, name: value}
        cells = [(other, known[other]) for other in factors if other in known]
        gain = sum(
            cell in found and found in uncovered
            for found in (combinations(cells, strength) if uncovered else ())
        )
        return gain, -used[cell]

    for value in sorted(factors[name], key=merit, reverse=True):
        full = _completed({**row, name: value}, factors, allowed, uncovered, used, strength)
        if full is not None:
            return full
    return None
