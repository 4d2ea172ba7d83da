"""Which sequence has which blocks of a cache, and where a prefix is found again, on the host.

A block holds what was computed of `size` tokens that follow one another. Sequences that begin alike
share blocks; a block is written by one sequence alone, so what is shared is copied before. Blocks
that end a sequence's life stay findable until they are needed, least recently used first. The keys
and values themselves are a runtime's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from ..errors import CacheFullError

Tokens = NDArray[np.int64]

SIZE = 32
"""Tokens of a block."""

_ROOT = b""
"""The digest of no tokens."""


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """What a runtime has to copy before it writes.

    Attributes:
        source, target: numbers of blocks.
        tokens: how many of the source's first tokens.
    """

    source: int
    target: int
    tokens: int


@dataclass(slots=True)
class _Table:
    """The blocks of one sequence.

    Attributes:
        blocks: their numbers, in order.
        digests: of the tokens up to the end of each block that is full and findable, in order.
    """

    blocks: list[int] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)


@dataclass(slots=True)
class _Entry:
    """What a findable block holds.

    Attributes:
        before: the digest of the tokens before it.
        tokens: its own, at most `size`.
        digest: of all tokens up to its end; None unless it is full.
    """

    before: bytes
    tokens: Tokens
    digest: bytes | None = None


class BlockPool:
    """A number of blocks, and the sequences that use them.

    Args:
        count: how many blocks there are.
        size: how many tokens each holds.
    """

    def __init__(self, count: int, size: int = SIZE) -> None:
        self.count = count
        self.size = size
        self.forget()

    def forget(self) -> None:
        """Forget all sequences, and what blocks hold."""
        self._tables: dict[int, _Table] = {}
        self._users = [0] * self.count
        self._free = list(range(self.count))
        self._idle: dict[int, None] = {}
        self._entries: dict[int, _Entry] = {}
        # The block that was noted last, by what comes before it and any number of its first tokens.
        self._heads: dict[int, int] = {}

    @property
    def sequences(self) -> frozenset[int]:
        """The sequences that have a table."""
        return frozenset(self._tables)

    @property
    def available(self) -> int:
        """How many blocks no sequence uses."""
        return len(self._free) + len(self._idle)

    def blocks(self, sequence_id: int) -> list[int]:
        """Return the numbers of a sequence's blocks, in order; not to be changed."""
        return self._tables[sequence_id].blocks

    def used(self, blocks: Sequence[int]) -> int:
        """Return how many of some blocks a sequence uses."""
        return sum(self._users[block] > 0 for block in blocks)

    def find(self, tokens: Tokens) -> tuple[list[int], int]:
        """Find the blocks that hold the beginning of some tokens.

        Returns:
            Their numbers, and how many of the tokens they hold; of the last block perhaps not all.
        """
        found: list[int] = []
        before, count = _ROOT, 0
        while (block := self._longest(before, tokens[count : count + self.size])) is not None:
            entry = self._entries[block]
            found.append(block)
            count += common(entry.tokens, tokens[count:])
            if entry.digest is None or count < self.size * len(found):
                break
            before = entry.digest
        return found, count

    def _longest(self, before: bytes, tokens: Tokens) -> int | None:
        """Find the block after some tokens that begins with most of others; None if none does."""
        for count in range(len(tokens), 0, -1):
            block = self._heads.get(_head(before, tokens[:count]))
            if block is not None:
                entry = self._entries[block]
                if entry.before == before and common(entry.tokens, tokens) >= count:
                    return block
        return None

    def admit(self, sequence_id: int, tokens: Tokens) -> int:
        """Give a new sequence the blocks that hold the beginning of its tokens.

        Returns:
            How many of the tokens they hold.
        """
        blocks, count = self.find(tokens)
        for block in blocks:
            self._users[block] += 1
            self._idle.pop(block, None)
        digests = [self._entries[block].digest for block in blocks]
        full = [each for each in digests[: count // self.size] if each is not None]
        self._tables[sequence_id] = _Table(blocks, full)
        return count

    def fork(self, sequence_id: int, other: int) -> None:
        """Give a new sequence all the blocks of another one."""
        table = self._tables[sequence_id]
        self._tables[other] = _Table(list(table.blocks), list(table.digests))
        for block in table.blocks:
            self._users[block] += 1

    def extend(self, sequence_id: int, start: int, end: int) -> list[BlockCopy]:
        """Make a sequence's positions from `start` to `end` its own, to be written.

        It keeps no block beyond them. Nothing has changed where there are not enough.

        Returns:
            What is to be copied first: the tokens before `start` in a block of others.

        Raises:
            CacheFullError: other sequences use too many blocks.
        """
        table, (first, kept) = self._tables[sequence_id], divmod(start, self.size)
        stays = self._stays(table, start, end)
        given = sum(self._users[block] == 1 for block in table.blocks[stays:])
        needed = self._reach(end) - stays - given
        if needed > self.available:
            raise CacheFullError(
                f"{end} tokens of sequence {sequence_id} need {needed} more blocks of {self.size} "
                f"tokens, and {self.available} of {self.count} are left; release a finished "
                "sequence first, or raise kv_cache_memory"
            )
        source = table.blocks[first] if kept and stays == first else None
        # The one that is copied from goes last, so that it is taken last.
        self._give_back(table.blocks[stays:][::-1])
        del table.blocks[stays:], table.digests[first:]
        table.blocks += [self._take() for _ in range(self._reach(end) - stays)]
        if source is None or table.blocks[first] == source:
            return []
        return [BlockCopy(source, table.blocks[first], kept)]

    def note(self, sequence_id: int, tokens: Tokens) -> None:
        """Note that a sequence's blocks hold what was computed of these first tokens of it."""
        table = self._tables[sequence_id]
        before = table.digests[-1] if table.digests else _ROOT
        for place in range(len(table.digests), self._reach(len(tokens))):
            held = tokens[place * self.size : (place + 1) * self.size].copy()
            digest = _digest(before, held) if len(held) == self.size else None
            self._note(table.blocks[place], _Entry(before, held, digest))
            if digest is not None:
                table.digests.append(digest)
                before = digest

    def release(self, sequence_ids: Iterable[int], *, discard: bool = False) -> None:
        """Give back the blocks of sequences; unknown ids are passed over.

        Args:
            sequence_ids: of these sequences.
            discard: whether blocks that no other sequence uses are not to be found again.
        """
        for sequence_id in sequence_ids:
            table = self._tables.pop(sequence_id, _Table())
            if discard:
                for block in table.blocks:
                    if self._users[block] == 1:
                        self._strike(block)
            # What follows is of use only after what comes before, and so goes first.
            self._give_back(table.blocks[::-1])

    def contradiction(self) -> str | None:
        """Say what cannot be true of the blocks, if anything."""
        users = [0] * self.count
        for table in self._tables.values():
            for block in table.blocks:
                users[block] += 1
        if users != self._users:
            return "blocks have other users than the tables say"
        unused = [block for block, count in enumerate(users) if not count]
        if sorted([*self._free, *self._idle]) != unused:
            return "blocks are lost, or used and free at once"
        if any(block not in self._entries for block in self._idle):
            return "a block that holds nothing is kept"
        return None

    def _reach(self, length: int) -> int:
        """How many blocks so many tokens take."""
        return -(-length // self.size)

    def _stays(self, table: _Table, start: int, end: int) -> int:
        """How many of a table's first blocks stay as they are.

        Those before the start do, and the one that it lies in, if no other sequence uses it and
        nothing is to be found in it beyond the start.
        """
        first, kept = divmod(start, self.size)
        if not kept or first >= min(self._reach(end), len(table.blocks)):
            return first
        block = table.blocks[first]
        entry = self._entries.get(block)
        own = self._users[block] == 1 and (entry is None or len(entry.tokens) <= kept)
        return first + own

    def _take(self) -> int:
        """Take a free block, or the one that was given back longest ago."""
        if self._free:
            block = heappop(self._free)
        else:
            block = next(iter(self._idle))
            del self._idle[block]
            self._strike(block)
        self._users[block] = 1
        return block

    def _give_back(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self._users[block] -= 1
            if self._users[block]:
                continue
            if block in self._entries:
                self._idle[block] = None
            else:
                heappush(self._free, block)

    def _note(self, block: int, entry: _Entry) -> None:
        """Make a block findable by what it holds."""
        known, same = self._entries.get(block), 0
        if known is not None and known.before == entry.before:
            same = common(known.tokens, entry.tokens)
        if known is not None and same < len(known.tokens):
            self._strike(block)
            same = 0
        self._entries[block] = entry
        for count in range(same + 1, len(entry.tokens) + 1):
            self._heads[_head(entry.before, entry.tokens[:count])] = block

    def _strike(self, block: int) -> None:
        """Let a block be found no longer."""
        if (entry := self._entries.pop(block, None)) is None:
            return
        for count in range(1, 1 + len(entry.tokens)):
            head = _head(entry.before, entry.tokens[:count])
            if self._heads.get(head) == block:
                del self._heads[head]


def common(one: Tokens, other: Tokens) -> int:
    """Return how many leading tokens are the same."""
    count = min(len(one), len(other))
    differs = one[:count] != other[:count]
    first = int(differs.argmax()) if count else 0
    return first if count and differs[first] else count


def _digest(before: bytes, tokens: Tokens) -> bytes:
    """The digest of all tokens up to the end of a block."""
    return blake2b(before + tokens.tobytes(), digest_size=16).digest()


def _head(before: bytes, tokens: Tokens) -> int:
    """A key of some tokens and what comes before them; others may have the same."""
    return hash((before, tokens.tobytes()))
