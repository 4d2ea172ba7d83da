"""The slot cache: the books about its slots, and what is written to and moved between them."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from outrider.errors import ModelError
from outrider.runtimes.transformers.model import TransformersModel
from outrider.runtimes.transformers.pending import HostCopy, RowTokens
from outrider.runtimes.transformers.scatter import HostScatter, IndexScatter
from outrider.runtimes.transformers.slot_cache import LayerShape, SlotCache
from outrider.runtimes.transformers.slots import Slot, SlotTable
from outrider.types.records import Distributions, DraftProposal, Prefix

from .families import random_model


def test_slots_reuse_the_longest_prefix_and_the_oldest_room() -> None:
    table = SlotTable(3)
    for name, tokens in ((1, [1, 2, 3, 4]), (2, [1, 2, 9, 9]), (3, [5, 5])):
        place = table.place(Prefix(name, tokens))
        table.slots[place.slot].record(0, np.array(tokens))
    with pytest.raises(ModelError, match="all 3 slots are live"):
        table.place(Prefix(4, [1]))
    assert table.place(Prefix(2, [1, 2, 9, 9, 4])).shared == 4
    table.release([3, 2, 99])
    donated = table.place(Prefix(5, [1, 2, 3, 4, 5]))
    assert (donated.slot, donated.shared, donated.donor) == (2, 4, 0)
    reused = table.place(Prefix(6, [1, 2, 9, 9, 1]))
    assert (reused.slot, reused.shared, reused.donor) == (1, 4, None)
    table.check_integrity()
    assert table.place(Prefix(1, [1, 2, 3])).shared == 2


def test_rows_of_a_new_batch_lie_side_by_side_in_empty_slots() -> None:
    """However the slots were used before."""
    table = SlotTable(4)
    for name in (7, 8, 9):
        table.slots[table.place(Prefix(name, [name])).slot].record(0, np.array([name]))
    for name in (8, 7):
        for index in table.release([name]):
            table.slots[index].record(0, np.empty(0, dtype=np.int64))
    assert [table.place(Prefix(name, [name])).slot for name in (1, 2, 3)] == [0, 1, 3]


def test_rows_are_moved_together_where_that_takes_few_swaps() -> None:
    table = SlotTable(8)
    for name in range(6):
        table.place(Prefix(name, [name]))
    table.release([1])
    assert table.side_by_side([0, 2, 3, 4, 5]) == [(5, 1)]
    table.swap(5, 1)
    assert table.owner == {0: 0, 2: 2, 3: 3, 4: 4, 5: 1}
    table.check_integrity()
    assert table.side_by_side([0, 1, 2, 3, 4]) == []
    # What lies between is live, and all three would have to be moved to where there is room.
    assert table.side_by_side([0, 2, 4]) == []
    # A part of a batch that lies in a run, one of whose rows drafts nothing.
    assert table.side_by_side([0, 1, 2, 4]) == []
    assert table.side_by_side([2, 1]) == []


def test_a_long_text_is_not_lost_for_its_first_word() -> None:
    table = SlotTable(2)
    long = list(range(50))
    table.place(Prefix(1, long))
    table.slots[0].record(0, np.array(long))
    table.release([1])
    word = table.place(Prefix(2, [0, 1, 7, 7]))
    assert (word.slot, word.shared, word.donor) == (1, 2, 0)
    again = table.place(Prefix(3, [*long, 9]))
    assert (again.slot, again.shared, again.donor) == (0, 50, None)


def test_a_slot_forgets_what_lies_beyond_a_rewritten_column() -> None:
    slot = Slot()
    slot.record(0, np.arange(100))
    slot.record(3, np.array([7, 7]))
    assert slot.length == 5
    assert slot.shared(np.array([0, 1, 2, 7, 7, 5])) == 5
    assert slot.shared(np.array([0, 1, 9])) == 2


def test_the_cache_keeps_columns_when_it_grows_and_when_it_copies() -> None:
    shapes = [LayerShape(2, 4, 4), LayerShape(1, 4, 6), LayerShape(2, 4, 4)]
    cache = SlotCache(shapes, 3, torch.float32, torch.device("cpu"))
    cache.reserve(10)
    assert cache.capacity == 64
    written = [
        (torch.randn(1, s.heads, 10, 4), torch.randn(1, s.heads, 10, s.value_width)) for s in shapes
    ]
    cache.aim([1], [0], 10, 10, torch.arange(10)[None])
    for layer, (keys, values) in enumerate(written):
        cache.update(keys, values, layer)
    cache.copy(1, 2, 7)
    cache.reserve(65)
    assert cache.capacity == 128
    for slots in ([2], [2, 1], [0, 2]):
        cache.aim(slots, [20] * len(slots), 1, 7, torch.full((len(slots), 1), 20))
        for layer, (keys, values) in enumerate(written):
            shape = shapes[layer]
            new = torch.zeros(len(slots), shape.heads, 1, 4)
            read = cache.update(
                new, torch.zeros(len(slots), shape.heads, 1, shape.value_width), layer
            )
            assert (read[0][slots.index(2)] == keys[0, :, :7]).all()
            assert (read[1][slots.index(2)] == values[0, :, :7]).all()


@pytest.mark.parametrize("way", [HostScatter, IndexScatter])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("length", [1, 3])
def test_rows_that_end_apart_are_written_where_each_ends(
    way: type[HostScatter] | type[IndexScatter], dtype: torch.dtype, length: int
) -> None:
    """And nowhere else: in layers of different heads and widths, from views of a model."""
    shapes, slots, capacity = [(2, 4, 4), (1, 4, 6)], 5, 9
    rows, starts = [3, 0, 4], [6, 0, 2]
    torch.manual_seed(0)
    stored = [
        [torch.randn(slots, shape[0], capacity, shape[part]).to(dtype) for shape in shapes]
        for part in (1, 2)
    ]
    expected = [[layer.clone() for layer in part] for part in stored]
    write = way(*stored)
    columns = torch.tensor(starts)[:, None] + torch.arange(length)
    write.aim(torch.tensor(rows), starts, columns)
    for layer, (heads, *widths) in enumerate(shapes):
        states = [torch.randn(len(rows), length, heads, width).to(dtype) for width in widths]
        for part in (0, 1):
            for row, start, new in zip(rows, starts, states[part], strict=True):
                expected[part][layer][row, :, start : start + length] = new.transpose(0, 1)
        write(layer, *[each.transpose(1, 2) for each in states])
    for part in (0, 1):
        assert all(map(torch.equal, stored[part], expected[part]))


@pytest.mark.parametrize("second", [[1, 2, 3, 4, 5], [2, 2]], ids=["apart", "together"])
def test_a_model_that_its_user_compiled_writes_where_its_rows_end(second: list[int]) -> None:
    """What traces a forward cannot look into compiled loops; views are made when written to."""
    model = random_model("llama")
    reference = copy.deepcopy(model)
    model.compile(backend="eager")
    target = TransformersModel(model)
    drafts = torch.tensor([[3], [4]])
    proposal = DraftProposal(drafts, np.array([1, 1]), Distributions(point_masses=drafts))
    for more in range(3):
        prefixes = [Prefix(1, [1, 2, *[5] * more]), Prefix(2, [*second, *[6] * more])]
        logits = target.verify(prefixes, proposal).logits
        for prefix, draft, found in zip(prefixes, drafts, logits, strict=True):
            with torch.no_grad():
                full = reference(torch.tensor([[*prefix.tokens.tolist(), int(draft)]])).logits[0]
            assert float((found - full[-2:]).abs().max()) < 1e-12


def test_states_that_do_not_fit_are_refused_and_nothing_is_written() -> None:
    """The compiled loop looks at no bounds."""
    stored = [torch.zeros(3, 2, 8, 4)], [torch.zeros(3, 2, 8, 6)]
    write = HostScatter(*stored)
    columns = torch.tensor([[0, 1], [5, 6]])
    write.aim(torch.tensor([0, 1]), [0, 5], columns)
    keys, values = torch.ones(2, 2, 2, 4), torch.ones(2, 2, 2, 6)
    for wrong in (keys[:1], keys[:, :1], keys[:, :, :1], keys[..., :3]):
        with pytest.raises(
            ModelError, match=r"layer 0 gave keys of shape .* expected \(2, 2, 2, 4"
        ):
            write(0, wrong, values)
    for wrong in (values[:1], values[..., :3]):
        with pytest.raises(ModelError, match="values of shape"):
            write(0, keys, wrong)
    for starts in ([0, 7], [-1, 5]):
        with pytest.raises(ModelError, match=r"expected them in 0\.\.7"):
            write.aim(torch.tensor([0, 1]), starts, columns)
    assert not any(part[0].any() for part in stored)


def test_room_is_made_in_full_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = SlotCache([LayerShape(2, 4, 4)], 3, torch.float32, torch.device("cpu"))
    cache.reserve(10)

    def fails(*_: object) -> None:
        raise RuntimeError("no memory")

    with monkeypatch.context() as patched:
        patched.setattr("outrider.runtimes.transformers.slot_cache.scatter_for", fails)
        with pytest.raises(RuntimeError, match="no memory"):
            cache.reserve(100)
    assert cache.capacity == 64
    for columns in (10, 100):
        cache.reserve(columns)
        cache.aim([0, 1], [3, 5], 1, 7, torch.tensor([[3], [5]]))
        new = torch.full((2, 2, 1, 4), float(columns))
        keys, values = cache.update(new, new, 0)
        for row, column in ((0, 3), (1, 5)):
            assert (keys[row, :, column] == columns).all()
            assert (values[row, :, column] == columns).all()


def test_a_swap_moves_what_is_known_and_leaves_nothing_else() -> None:
    """A NaN in a column that nobody names would spread through its mask to the next sequence."""
    shapes = [LayerShape(2, 4, 4), LayerShape(1, 4, 6)]
    cache = SlotCache(shapes, 4, torch.float32, torch.device("cpu"))
    cache.reserve(10)
    before = {}
    for slot in (1, 3):
        for part in (0, 1):
            for layer in (0, 1):
                cache.whole(slot)[part][layer].normal_()
        before[slot] = [[each.clone() for each in part] for part in cache.whole(slot)]
    for slot, beyond in ((1, 7), (3, 5)):
        for part in cache.whole(slot):
            for each in part:
                each[:, :, beyond:] = torch.nan
    cache.swap(1, 3, 6, 4)
    for slot, other, kept in ((3, 1, 6), (1, 3, 4)):
        for found, known in zip(cache.whole(slot), before[other], strict=True):
            for layer in (0, 1):
                assert torch.equal(found[layer][:, :, :kept], known[layer][:, :, :kept])
                assert found[layer].isfinite().all()


def test_what_a_slot_holds_reaches_to_the_last_drafted_token() -> None:
    """Be it still on the device, in a line or in a tree."""
    slot = Slot()
    slot.record(0, np.array([1, 2, 3]))
    assert slot.extent == 3
    drafts = torch.tensor([[4, 5], [6, 7]])
    slot.pending = RowTokens(HostCopy(drafts), 1)
    assert slot.extent == 5
    assert slot.shared(np.array([1, 2, 3, 6, 7])) == 5
    slot.pending = RowTokens(HostCopy(drafts, np.array([[0, 0], [0, 0]])), 0)
    assert slot.extent == 7
    slot.keep(np.array([1, 2]))
    assert slot.extent == 2
