"""Blocks: none is lost, none that others use or may find is written, and prefixes are found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from outrider.errors import CacheFullError
from outrider.runtimes.blocks import BlockCopy, BlockPool, common

SIZE = 4

texts = st.lists(st.integers(0, 1), min_size=1, max_size=14)


def array(tokens: list[int]) -> np.ndarray:
    return np.array(tokens, dtype=np.int64)


class Machine(RuleBasedStateMachine):
    """A pool beside a cache that stores, for each block, the tokens that were written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(7, SIZE)
        self.stored = [[-1] * SIZE for _ in range(7)]
        self.known: dict[int, list[int]] = {}
        self.ids = 0

    def _write(self, name: int, tokens: list[int], start: int, drafted: list[int]) -> None:
        """Compute what is not known, as a runtime does; a full pool changes nothing."""
        before = {other: list(self.pool.blocks(other)) for other in self.known}
        available, needed = self.pool.available, -(-(len(tokens) + len(drafted)) // SIZE)
        try:
            copies = self.pool.extend(name, start, len(tokens) + len(drafted))
        except CacheFullError:
            assert needed > available
            assert before == {other: list(self.pool.blocks(other)) for other in self.known}
            return
        for copy in copies:
            self.stored[copy.target][: copy.tokens] = self.stored[copy.source][: copy.tokens]
        blocks = self.pool.blocks(name)
        for place, token in enumerate([*tokens, *drafted]):
            if place >= start:
                self.stored[blocks[place // SIZE]][place % SIZE] = token
        self.pool.note(name, array(tokens))
        self.known[name] = tokens

    @rule(tokens=texts, drafted=st.lists(st.integers(2, 3), max_size=5))
    def enter(self, tokens: list[int], drafted: list[int]) -> None:
        name, self.ids = self.ids, self.ids + 1
        shared = self.pool.admit(name, array(tokens[:-1]))
        self.known[name] = tokens[:shared]
        self._write(name, tokens, shared, drafted)

    @precondition(lambda self: self.known)
    @rule(
        data=st.data(),
        cut=st.integers(0, 14),
        more=texts,
        drafted=st.lists(st.integers(2, 3), max_size=5),
    )
    def go_on(self, data: Any, cut: int, more: list[int], drafted: list[int]) -> None:
        name = data.draw(st.sampled_from(sorted(self.known)))
        start = min(cut, len(self.known[name]))
        self._write(name, (self.known[name][:start] + more)[:20], start, drafted)

    @precondition(lambda self: self.known)
    @rule(data=st.data(), discard=st.booleans())
    def leave(self, data: Any, discard: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.known)))
        self.pool.release([name, 999], discard=discard)
        del self.known[name]

    @rule()
    def forget(self) -> None:
        self.pool.forget()
        self.known.clear()

    @rule(tokens=texts)
    def look(self, tokens: list[int]) -> None:
        blocks, count = self.pool.find(array(tokens))
        held = [token for block in blocks for token in self.stored[block]]
        assert held[:count] == tokens[:count]

    @invariant()
    def sequences_keep_what_they_know(self) -> None:
        assert self.pool.sequences == self.known.keys()
        for name, tokens in self.known.items():
            held = [token for block in self.pool.blocks(name) for token in self.stored[block]]
            assert held[: len(tokens)] == tokens

    @invariant()
    def nothing_contradicts_itself(self) -> None:
        assert self.pool.contradiction() is None


Machine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, derandomize=True
)
TestBlocks = Machine.TestCase


def entered(pool: BlockPool, name: int, tokens: list[int], drafted: int = 0) -> int:
    found = pool.admit(name, array(tokens[:-1]))
    pool.extend(name, found, len(tokens) + drafted)
    pool.note(name, array(tokens))
    return found


def test_equal_beginnings_share_blocks_to_the_token() -> None:
    pool = BlockPool(8, SIZE)
    assert entered(pool, 0, [*range(10)]) == 0
    found = pool.admit(1, array([*range(10), 77, 78]))
    assert (found, pool.blocks(1)) == (10, pool.blocks(0))
    copies = pool.extend(1, found, 12)
    assert copies == [BlockCopy(pool.blocks(0)[2], pool.blocks(1)[2], 2)]
    assert pool.blocks(1)[:2] == pool.blocks(0)[:2]
    assert pool.available == 8 - 4


def test_a_choice_that_ends_leaves_the_others_their_blocks() -> None:
    pool = BlockPool(8, SIZE)
    entered(pool, 0, [*range(10)])
    entered(pool, 1, [*range(9), 77])
    shared = pool.blocks(1)[:2]
    pool.release([0], discard=True)
    assert pool.find(array([*range(8)])) == (shared, 8)


def test_blocks_used_longest_ago_go_first_and_ends_before_beginnings() -> None:
    pool = BlockPool(4, SIZE)
    entered(pool, 0, [0] * 8)
    entered(pool, 1, [1] * 8)
    pool.release([0])
    pool.release([1])
    assert entered(pool, 2, [2] * 4) == 0
    assert pool.find(array([0] * 8))[1] == 4
    assert pool.find(array([1] * 8))[1] == 8
    assert entered(pool, 3, [3] * 8) == 0
    assert pool.find(array([0] * 8))[1] == 0
    assert pool.find(array([1] * 8))[1] == 4


def test_a_text_that_shares_a_few_tokens_leaves_another_whole() -> None:
    pool = BlockPool(8, SIZE)
    entered(pool, 0, [*range(12)])
    pool.release([0])
    assert entered(pool, 1, [0, 1, 2, 3, 4, 77, 78, 79]) == 5
    assert pool.find(array([*range(12)]))[1] == 12


def test_a_full_pool_says_what_to_do() -> None:
    pool = BlockPool(2, SIZE)
    entered(pool, 0, [*range(8)])
    pool.admit(1, array([5]))
    with pytest.raises(
        CacheFullError, match=r"need 1 more blocks of 4 .* 0 of 2 .*kv_cache_memory"
    ):
        pool.extend(1, 0, 2)
    # One that is alone may write over what it has.
    assert pool.extend(0, 5, 8) == []


def test_a_block_that_holds_the_same_takes_the_place_of_one_that_is_struck() -> None:
    pool = BlockPool(8, SIZE)
    for name in (0, 1):  # Computed beside each other, so that neither found the other's.
        pool.admit(name, array([]))
    for name in (0, 1):
        pool.extend(name, 0, 6)
        pool.note(name, array([*range(6)]))
    pool.release([0], discard=True)
    assert pool.find(array([*range(6)])) == (pool.blocks(1), 6)


def test_a_search_takes_as_long_whatever_else_begins_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, compared = BlockPool(400, SIZE), []
    for name in range(300):
        entered(pool, name, [1, 2, name % 7, name])
    pool.release(range(300))

    def counted(one: Any, other: Any) -> int:
        compared.append(len(one))
        return common(one, other)

    monkeypatch.setattr("outrider.runtimes.blocks.common", counted)
    assert pool.find(array([1, 2, 9, 9]))[1] == 2
    assert len(compared) <= 2
