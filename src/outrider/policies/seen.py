"""What a round did, as far as its cost depends on it."""

from __future__ import annotations

from collections.abc import Sequence

from ..types.records import RoundRecord, SequenceState
from .drafting import READ
from .round import Round

_SEQUENCES = 1024
"""Of how many sequences it is remembered how far they were read."""


class Seen:
    """Tells rounds, and remembers how far the drafter's model has read each sequence.

    Args:
        ragged: whether the target is not given what would pad rows to the widest.
    """

    def __init__(self, ragged: bool = False) -> None:
        self._ragged = ragged
        self._read: dict[int, int] = {}

    def behind(self, states: Sequence[SequenceState]) -> int:
        """For how many sequences that its model knows the drafter has not drafted for a while."""
        known = [(len(state.prefix), self._read.get(state.prefix.sequence_id)) for state in states]
        return sum(length - read > READ for length, read in known if read)

    def round(self, states: Sequence[SequenceState], record: RoundRecord, looked: bool) -> Round:
        """What the round did that came after those told before.

        Args:
            states: the sequences after it.
            record: what it did; its drafter has not failed.
            looked: whether it looked tokens up.
        """
        stepped = stepped_of(record)
        missing = behind = caught_up = 0
        rows = zip(states, stepped, record.accepted, record.emitted, strict=True)
        for state, steps, accepted, emitted in rows:
            if steps:
                before = len(state.prefix) - emitted
                read = self._read.pop(state.prefix.sequence_id, 0)
                # What is longer is of another sequence, which had the name before.
                read = 0 if read > before else read
                missing += max(before - read, 1)
                behind += before - read > READ
                caught_up += 0 if read else len(state.prefix)
                # The last token of a draft is not fed to the model that drew it.
                self._read[state.prefix.sequence_id] = before + min(accepted, steps - 1)
        while len(self._read) > _SEQUENCES:
            del self._read[next(iter(self._read))]
        width = max(record.drafted)
        return Round(
            rows=len(states),
            width=width,
            steps=max(stepped),
            fresh=any(state.round == 1 for state in states),
            read=_read(states, record),
            missing=missing,
            behind=behind,
            looked=looked,
            caught_up=caught_up,
            draft_s=record.draft_s,
            target_s=record.target_s,
            other_s=record.total_s - record.plan_s - record.draft_s - record.target_s,
            spared=width * len(states) - sum(record.drafted) if self._ragged else 0,
            stepping=sum(step > 0 for step in stepped) or None,
            found=any(record.looked_up),
            length=mean_length(states) - sum(record.emitted) / len(states),
        )


def mean_length(states: Sequence[SequenceState]) -> float:
    """Tokens of each sequence, by the mean."""
    return sum(len(state.prefix) for state in states) / len(states)


def stepped_of(record: RoundRecord) -> list[int]:
    """How many steps of a model each row's draft took."""
    pairs = zip(record.depth, record.looked_up, strict=True)
    return [0 if looked_up else depth for depth, looked_up in pairs]


def _read(states: Sequence[SequenceState], record: RoundRecord) -> int:
    """Tokens of prompts that the target has just read; 0 if it found the greater part computed.

    The choices of a request share a prompt.
    """
    pairs = zip(states, record.cached, strict=True)
    new = [(one.prompt_length, found) for one, found in pairs if not one.choice and one.round == 1]
    tokens, cached = sum(length for length, _ in new), sum(found for _, found in new)
    return tokens - cached if 2 * cached <= tokens else 0
