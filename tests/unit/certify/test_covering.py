"""Covering designs hold every combination that may occur."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from outrider.certify.covering import covering


def covered(rows: Any, size: int) -> set[Any]:
    return {cells for row in rows for cells in combinations(row.items(), size)}


def test_what_no_row_allows_is_not_counted() -> None:
    factors = {"a": ("1", "2"), "b": ("1", "2"), "c": ("1", "2", "3")}

    def allowed(row: Any) -> bool:
        return (row.get("a"), row.get("b")) != ("2", "2")

    rows = covering(factors, allowed, 2)
    assert all(map(allowed, rows))
    assert len(covered(rows, 2)) == 4 + 6 + 6 - 1
    assert len(covered(rows[:-1], 2)) < 4 + 6 + 6 - 1


def test_far_fewer_rows_than_all_cover_triples() -> None:
    factors = dict.fromkeys("abcdef", ("1", "2", "3"))
    rows = covering(factors, lambda row: True, 3)
    assert len(covered(rows, 3)) == 20 * 27
    assert len(rows) < 60
