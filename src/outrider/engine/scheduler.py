"""Sequences decoded to their ends, as many together as the models have room for."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Sequence
from typing import Protocol

from ..errors import DegenerateDistributionError
from ..types.records import SequenceState
from .batch import Batch, Step


class Decoder(Protocol):
    """What a run asks of a decoder."""

    @property
    def max_sequences(self) -> int | None:
        """How many sequences can be decoded together; None for any number."""
        ...

    def pack(self, states: Iterable[SequenceState]) -> Batch:
        """A batch of sequences."""
        ...

    def step(self, batch: Batch) -> Step:
        """Decode one round."""
        ...

    def release(self, states: Iterable[SequenceState], *, discard: bool = False) -> None:
        """Free what is held for sequences."""
        ...


class Run:
    """The rounds of a number of sequences, in order; to be iterated once.

    A sequence takes part until a stop rule ends it or `end` is called; its room then goes to the
    next that waits. Closing the iterator, or an error in a round, frees what is held.

    Args:
        decoder: the decoder.
        states: what `decoder.start` gave.
        discard: whether what the models computed is not to be shared with later sequences.
    """

    def __init__(
        self, decoder: Decoder, states: Sequence[SequenceState], *, discard: bool = False
    ) -> None:
        self._decoder = decoder
        self._waiting = deque(states)
        self._room = decoder.max_sequences or max(1, len(states))
        self._discard = discard
        self._ended: set[int] = set()
        self._requests: dict[int, int] = {}
        self._several = False

    @staticmethod
    def of(decoder: Decoder, requests: Sequence[Sequence[SequenceState]]) -> Run:
        """Of all choices of some requests, which errors name by their index."""
        run = Run(decoder, [state for choices in requests for state in choices])
        run._several = len(requests) > 1
        run._requests = {
            state.prefix.sequence_id: index
            for index, choices in enumerate(requests)
            for state in choices
        }
        return run

    def end(self, sequence_id: int) -> None:
        """Let a sequence take part in no further round."""
        self._ended.add(sequence_id)

    def __iter__(self) -> Generator[Step]:
        decoder = self._decoder
        batch = decoder.pack(())
        try:
            while self._waiting or batch.states:
                if self._waiting and len(batch.states) < self._room:
                    batch = decoder.pack((*batch.states, *self._admitted(len(batch.states))))
                    if not batch.states:
                        break
                step = self._step(batch)
                batch = step.batch
                yield step
                running = [state for state in batch.states if self._goes_on(state)]
                if len(running) < len(batch.states):
                    over = (state for state in batch.states if not self._goes_on(state))
                    decoder.release(over, discard=self._discard)
                    batch = decoder.pack(running)
        except GeneratorExit:
            raise
        except BaseException:
            decoder.release(batch.states, discard=True)
            raise
        finally:
            decoder.release(batch.states, discard=self._discard)

    def _step(self, batch: Batch) -> Step:
        try:
            return self._decoder.step(batch)
        except DegenerateDistributionError as error:
            if error.sequence_id not in self._requests:
                raise
            error.request = self._requests[error.sequence_id]
            if self._several:
                error.args = (
                    f"prompts[{error.request}] cannot be decoded to its end, and the outputs of "
                    f"the others are lost: leave it out, or keep what `stream` yields; {error}",
                )
            raise

    def _admitted(self, taken: int) -> list[SequenceState]:
        admitted: list[SequenceState] = []
        while self._waiting and taken + len(admitted) < self._room:
            state = self._waiting.popleft()
            if self._goes_on(state):
                admitted.append(state)
        return admitted

    def _goes_on(self, state: SequenceState) -> bool:
        return state.finish_reason is None and state.prefix.sequence_id not in self._ended
