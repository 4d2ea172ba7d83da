"""The table of slots: where sequences live, and which columns they may keep."""

from __future__ import annotations

import numpy as np
import pytest

from outrider.errors import ModelError
from outrider.runtimes.llama_cpp.slots import SlotTable
from outrider.types.records import Prefix


def hold(table: SlotTable, name: int, tokens: list[int]) -> tuple[int, int, int]:
    """Place a sequence, and compute all of it."""
    place = table.place(Prefix(name, tokens))
    table.hold(place[0], np.array(tokens))
    assert table.contradiction(1000) is None
    return place


def test_slots_reuse_the_longest_prefix_and_the_oldest_room() -> None:
    table = SlotTable(3)
    for name, tokens in ((1, [1, 2, 3, 4]), (2, [1, 2, 9, 9]), (3, [5, 5])):
        hold(table, name, tokens)
    with pytest.raises(ModelError, match="all 3 slots are live"):
        table.place(Prefix(4, [1]))
    assert hold(table, 2, [1, 2, 9, 9, 4])[1] == 4
    table.release([3, 2, 99])
    assert hold(table, 5, [1, 2, 3, 4, 5]) == (2, 4, 0)
    assert hold(table, 6, [1, 2, 9, 9, 1]) == (1, 4, 1)
    assert table.place(Prefix(1, [1, 2, 3]))[1] == 2


def test_rows_of_a_new_batch_lie_side_by_side() -> None:
    table = SlotTable(4)
    assert [hold(table, name, [name])[0] for name in (7, 8, 9)] == [0, 1, 2]


def test_a_long_text_is_not_lost_for_its_first_word() -> None:
    table, long = SlotTable(2), list(range(50))
    hold(table, 1, long)
    table.release([1])
    assert hold(table, 2, [0, 1, 7, 7]) == (1, 2, 0)
    assert hold(table, 3, [*long, 9]) == (0, 50, 0)


@pytest.mark.parametrize("broken", ["twice", "longer"])
def test_a_table_that_cannot_be_true_says_so_and_forgets(broken: str) -> None:
    table = SlotTable(2)
    hold(table, 1, [1, 2, 3])
    if broken == "twice":
        table.slots = (table.slots[0],) * 2
    said = table.contradiction(64 if broken == "twice" else 2)
    assert (
        said
        == {
            "twice": "sequence 1 has 2 slots",
            "longer": "a slot of 2 cells holds 3",
        }[broken]
    )
    table.forget()
    assert table.contradiction(0) is None
    assert [len(slot.tokens) for slot in table.slots] == [0, 0]
    assert not table.owner
