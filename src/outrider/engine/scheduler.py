"""Which sequences take part in the next round: admit, step, retire, cancel."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import replace
from itertools import compress
from math import inf
from typing import Self
from weakref import finalize

from ..errors import CacheFullError, InvalidConfigError, ModelError, OutriderError
from ..types.records import SequenceState
from .commit import StepResult
from .engine import Engine


class Scheduler:
    """Decodes sequences to their ends, as many together as the models have room for.

    One thread at a time uses a scheduler. Sequences may be submitted and cancelled between any two
    steps; one that ends makes room for the next that waits, in order of submission. As a context
    manager it is closed at the end; one that is dropped gives its room back as well.

    Args:
        engine: the engine, such as a decoder. Its models' room is shared by all its schedulers.
        name: what errors of others call this scheduler while it holds room.
        discard: whether what the models computed is not to be shared with later sequences.
        prefill_chunk: tokens a step, one for each running sequence and the rest, half of them at
            least, of new prompts; longer prompts are prefilled in parts between rounds of others.
            None prefills all at once.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        name: str = "a call",
        discard: bool = False,
        prefill_chunk: int | None = None,
    ) -> None:
        self.name = name
        self._engine = engine
        self._discard = discard
        self._prefill_chunk = prefill_chunk
        self._prefilling: deque[SequenceState] = deque()
        self._waiting: deque[SequenceState] = deque()
        self._failures: deque[OutriderError] = deque()
        self._batch = engine.pack(())
        self._held: set[int] = set()
        finalize(self, engine.slots.drop, self._held).atexit = False

    @property
    def running(self) -> tuple[SequenceState, ...]:
        """The sequences of the last round that go on."""
        return self._batch.states

    @property
    def held(self) -> frozenset[int]:
        """The sequences that room is held for, those whose prompts are still prefilled included."""
        return frozenset(self._held)

    @property
    def idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return not (self._waiting or self._prefilling or self._batch.states)

    def submit(self, states: Iterable[SequenceState]) -> None:
        """Queue sequences; finished ones are left out.

        Raises:
            InvalidConfigError: a sequence runs or waits already; none of them is queued.
        """
        fresh = [state for state in states if state.finish_reason is None]
        known = (*self.running, *self._prefilling, *self._waiting)
        ids = Counter(state.prefix.sequence_id for state in (*known, *fresh))
        twice = [sequence_id for sequence_id, count in ids.items() if count > 1]
        if twice:
            raise InvalidConfigError("states", twice, "sequences that do not run or wait already")
        self._waiting.extend(fresh)

    def cancel(self, sequence_id: int) -> None:
        """Let a sequence take part in no further round, and free what is held for it.

        Drafters do not learn from its text, which is cut.
        """
        self._waiting = deque(s for s in self._waiting if s.prefix.sequence_id != sequence_id)
        self._failures = deque(e for e in self._failures if e.sequence_id != sequence_id)
        held = (*self._batch.states, *self._prefilling)
        self._retire(s for s in held if s.prefix.sequence_id == sequence_id)

    def step(self) -> StepResult | None:
        """Admit what there is room for, decode one round, and retire what ended.

        Returns:
            The round; None if there was none: nothing is left, or no prompt is computed yet.

        Raises:
            ModelError: nothing runs, and other calls hold all the room; they are named.
            OutriderError: the round failed. If the error names a sequence, that one is retired, and
                the others can be stepped on: a step for each other failure of the round, then one
                that makes it again. Otherwise nothing of what ran or waited goes on.
        """
        try:
            if self._failures:
                raise self._failures.popleft()
            result = self._round(self._admit())
        except BaseException as error:
            self._retire_failed(error)
            raise
        if result is None:
            return None
        self._batch = result.batch
        try:
            self._retire(state for state in result.batch.states if state.finish_reason is not None)
        except OutriderError as error:
            # What the round emitted is lost to all of its sequences.
            error.sequence_id = None
            raise
        return result

    def _round(self, prefilled: float) -> StepResult | None:
        """Prefill so much of a prompt and decode a round, with fewer sequences if need be.

        None if nothing runs yet. The youngest sequences give way where a model's cache is full:
        they wait, and are prefilled once more when there is room. What they emit is the same.
        """
        while True:
            try:
                self._prefill(prefilled)
                return self._engine.step(self._batch) if self._batch.states else None
            except CacheFullError as error:
                *others, youngest = (*self._batch.states, *self._prefilling)
                if not others:
                    error.sequence_id = youngest.prefix.sequence_id
                    raise
                self._retire([youngest])
                self._waiting.appendleft(youngest)

    def close(self, *, discard: bool = False) -> None:
        """Cancel everything; with `discard`, share nothing of what was computed."""
        self._waiting.clear()
        self._failures.clear()
        self._retire((*self._batch.states, *self._prefilling), discard=discard)
        # What an admission that failed had taken.
        self._engine.slots.drop(self._held)
        self._held.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _admit(self) -> float:
        """Let those that wait take part, as long as there is room.

        Returns:
            What is left of the step's tokens for the first long prompt.
        """
        self._engine.release_dropped()
        running, chunk = len(self._batch.states), self._prefill_chunk
        live = running + len(self._prefilling)
        tokens = inf if chunk is None else max((chunk + 1) // 2, chunk - running)
        # Newcomers leave half of them to a long prompt that came before.
        left = max(1.0, tokens / 2) if self._prefilling else tokens
        spent, key = 0.0, None
        long: list[bool] = []
        for state, missing in self._engine.fitting(self._waiting, live):
            # Further choices share what the first one prefills.
            follows = state.choice > 0 and not state.round and state.stream_key == key
            apart = long[-1] if follows else missing > left
            key = state.stream_key
            cost = 0 if apart else int(follows) or missing
            if spent + cost > left or not self._take(state.prefix.sequence_id):
                break
            spent += cost
            long.append(apart)
        if self._waiting and not long and not live:
            raise ModelError(
                f"all {self._engine.max_sequences} slots are held by "
                f"{', '.join(self._engine.slots.holders)}; finish or close it, or raise "
                "max_sequences"
            )
        if long:
            admitted = [self._waiting.popleft() for _ in long]
            self._prefilling.extend(compress(admitted, long))
            at_once = [state for state, apart in zip(admitted, long, strict=True) if not apart]
            self._batch = self._engine.pack((*self._batch.states, *at_once))
        return tokens - spent

    def _take(self, sequence_id: int) -> bool:
        """Take a slot for a sequence; return whether there was one."""
        self._held.add(sequence_id)
        taken = self._engine.slots.take(sequence_id, self.name)
        if not taken:
            self._held.discard(sequence_id)
        return taken

    def _prefill(self, most: float) -> None:
        """Prefill so many tokens of the first long prompt."""
        if not self._prefilling or most < 1:
            return
        state = self._prefilling[0]
        found = self._engine.prefill(state, int(most))
        state = replace(
            state,
            cached=max(state.cached, found.cached),
            draft_prefill_s=state.draft_prefill_s + found.draft_s,
        )
        if found.missing:
            self._prefilling[0] = state
        else:
            self._batch = self._engine.pack((*self._batch.states, state))
            self._prefilling.popleft()

    def _retire(self, states: Iterable[SequenceState], *, discard: bool = False) -> None:
        """Let sequences leave the batch, and free what is held for them."""
        leaving = tuple(states)
        if not leaving:
            return
        gone = {state.prefix.sequence_id for state in leaving}
        self._prefilling = deque(s for s in self._prefilling if s.prefix.sequence_id not in gone)
        self._batch = self._engine.pack(
            state for state in self._batch.states if state.prefix.sequence_id not in gone
        )
        try:
            self._engine.release(leaving, discard=discard or self._discard)
        except BaseException:
            self._engine.slots.dropped.update(gone)
            raise
        finally:
            for sequence_id in gone:
                self._engine.slots.give_back(sequence_id)
                self._held.discard(sequence_id)

    def _retire_failed(self, error: BaseException) -> None:
        """Retire the sequence that an error of a round names; all if it names none."""
        named = None
        if isinstance(error, OutriderError):
            named = error.sequence_id
            self._failures.extend(error.others)
            error.others = ()
        held = (*self.running, *self._prefilling)
        failed = [state for state in held if state.prefix.sequence_id == named]
        if failed:
            self._retire(failed, discard=True)
            return
        if isinstance(error, OutriderError):
            error.sequence_id = None
        self.close(discard=True)
