"""Which sequences take part in the next round: admit, step, retire, cancel."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING

from ..errors import DegenerateDistributionError, ModelError
from ..types.records import SequenceState
from .batch import StepResult

if TYPE_CHECKING:
    from .decoder import SpeculativeDecoder


class Scheduler:
    """Decodes sequences to their ends, as many together as the models have room for.

    One thread owns a scheduler. Sequences may be submitted and cancelled between any two steps; a
    sequence that ends makes room for the next that waits, in order of submission.

    Args:
        decoder: the decoder. Its models' room is shared by all its schedulers.
        name: what errors of others call this scheduler while it holds room.
        discard: whether what the models computed is not to be shared with later sequences.
    """

    def __init__(
        self, decoder: SpeculativeDecoder, *, name: str = "a call", discard: bool = False
    ) -> None:
        self._decoder = decoder
        self._name = name
        self._discard = discard
        self._waiting: deque[SequenceState] = deque()
        self._batch = decoder.pack(())
        decoder.register(self)

    @property
    def name(self) -> str:
        """What errors of other schedulers call this one."""
        return self._name

    @property
    def running(self) -> tuple[SequenceState, ...]:
        """The sequences of the last round that go on."""
        return self._batch.states

    @property
    def idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return not self._waiting and not self._batch.states

    def submit(self, states: Iterable[SequenceState]) -> None:
        """Queue sequences; finished ones are left out."""
        self._waiting.extend(state for state in states if state.finish_reason is None)

    def cancel(self, sequence_id: int) -> None:
        """Let a sequence take part in no further round, and free what is held for it."""
        self._waiting = deque(s for s in self._waiting if s.prefix.sequence_id != sequence_id)
        self._retire(s for s in self._batch.states if s.prefix.sequence_id == sequence_id)

    def step(self) -> StepResult:
        """Admit what there is room for, decode one round, and retire what ended.

        Raises:
            ModelError: nothing runs, and other calls hold all the room; they are named.
            OutriderError: the round failed. What was held is freed, and nothing runs or waits.
        """
        try:
            self._admit()
            result = self._decoder.step(self._batch)
        except BaseException:
            self._waiting.clear()
            self._retire(self._batch.states, discard=True)
            raise
        self._batch = result.batch
        self._retire(state for state in result.batch.states if state.finish_reason is not None)
        return result

    def close(self) -> None:
        """Cancel everything."""
        self._waiting.clear()
        self._retire(self._batch.states)

    def __iter__(self) -> Generator[StepResult]:
        """Step until nothing is left; closing the iterator cancels the rest."""
        try:
            while not self.idle:
                yield self.step()
        finally:
            self.close()

    def _admit(self) -> None:
        if not self._waiting:
            return
        with self._decoder.admission:
            room = self._decoder.free_slots
            count = len(self._waiting) if room is None else min(room, len(self._waiting))
            if not count and not self._batch.states:
                raise ModelError(
                    f"all {self._decoder.max_sequences} slots are held by "
                    f"{', '.join(self._decoder.holders)}; finish or close it, or raise "
                    "max_sequences"
                )
            if count:
                admitted = [self._waiting[index] for index in range(count)]
                self._batch = self._decoder.pack((*self._batch.states, *admitted))
                self._waiting = deque(list(self._waiting)[count:])

    def _retire(self, states: Iterable[SequenceState], *, discard: bool = False) -> None:
        leaving = tuple(states)
        if not leaving:
            return
        gone = {state.prefix.sequence_id for state in leaving}
        self._batch = self._decoder.pack(
            state for state in self._batch.states if state.prefix.sequence_id not in gone
        )
        self._decoder.release(leaving, discard=discard or self._discard)


def naming_request(steps: Iterable[StepResult], requests: dict[int, int]) -> Generator[StepResult]:
    """Pass rounds on; an error about one sequence names the index of its prompt.

    Args:
        steps: the rounds.
        requests: the index of each sequence's prompt, by sequence id.
    """
    try:
        yield from steps
    except DegenerateDistributionError as error:
        if error.sequence_id in requests:
            error.request = requests[error.sequence_id]
            if len(set(requests.values())) > 1:
                error.args = (
                    f"prompts[{error.request}] cannot be decoded to its end, and the outputs of "
                    f"the others are lost: leave it out, or keep what `stream` yields; {error}",
                )
        raise
