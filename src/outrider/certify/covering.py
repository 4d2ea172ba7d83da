"""Covering designs: few rows in which every allowed combination of any t factors' values occurs.

A greedy construction: while a combination is uncovered, a row is completed from it, each factor
taking the allowed value that covers most. Nothing is random: the same factors give the same rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, product

Row = dict[str, str]
Cell = tuple[str, str]
Cells = tuple[Cell, ...]
Factors = Mapping[str, Sequence[str]]
Allowed = Callable[[Mapping[str, str]], bool]


def covering(factors: Factors, allowed: Allowed, strength: int) -> list[Row]:
    """Make rows that cover every combination of `strength` cells that may occur.

    Args:
        factors: the values of each factor, by name.
        allowed: whether a row, or a part of one, may occur. A part is refused exactly if every row
            that completes it is.
        strength: the size of the combinations.
    """
    every = (
        tuple(zip(names, values, strict=True))
        for names in combinations(factors, strength)
        for values in product(*(factors[name] for name in names))
    )
    left = dict.fromkeys(cells for cells in every if allowed(dict(cells)))
    beside = defaultdict[Cell, set[Cells]](set)
    for cells in left:
        for index, cell in enumerate(cells):
            beside[cell].add(cells[:index] + cells[index + 1 :])
    by_size = sorted(factors, key=lambda name: -len(factors[name]))

    rows: list[Row] = []
    while left:
        row = dict(next(reversed(left)))
        # The most numerous factors first.
        for name in (name for name in by_size if name not in row):
            known = [(other, row[other]) for other in factors if other in row]
            others = set(combinations(known, strength - 1))
            values = [value for value in factors[name] if allowed({**row, name: value})]
            gains = {value: len(beside[name, value] & others) for value in values}
            row[name] = max(values, key=gains.__getitem__)
        rows.append({name: row[name] for name in factors})
        for cells in set(combinations(rows[-1].items(), strength)) & left.keys():
            del left[cells]
            for index, cell in enumerate(cells):
                beside[cell].remove(cells[:index] + cells[index + 1 :])
    return rows
