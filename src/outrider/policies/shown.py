"""What sequences that learn from each other have shown of the drafts they kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..types.acceptance import Acceptance
from ..types.records import RoundRecord, SequenceState
from .sureness import Pool

_FIRST_WEIGHT, _DEEP_WEIGHT = 26.0, 6.0
"""For how many tokens counts what is thought of any before the first round, where one is drafted at
first, since a text may begin where drafts fail; and where drafts are as deep as it makes them."""


class Shown:
    """Of all of them together.

    Attributes:
        acceptance: by place.
        sureness: by how sure the drafts were.

    Args:
        one_first: whether one token of a draft tells as much as several.
    """

    def __init__(self, one_first: bool = True) -> None:
        self._one_first = one_first
        self.acceptance = Acceptance()
        self.sureness = Pool()

    def chances(self, most: int) -> list[float]:
        """The chance of each of `most` tokens to be kept if the one before is."""
        weight = _FIRST_WEIGHT if self._one_first else _DEEP_WEIGHT
        return self.acceptance.chances(most, first_weight=weight)

    @property
    def any_kept(self) -> bool:
        """Whether a token was."""
        return any(self.acceptance.kept)

    def deepest(self, most: int, states: Sequence[SequenceState]) -> int:
        """How deep to draft of `most`: one token until one was kept, of these rows or of others."""
        kept = self.any_kept or any(any(state.acceptance.kept) for state in states)
        return most if kept or not self._one_first else min(most, 1)

    def add(
        self,
        states: Sequence[SequenceState],
        record: RoundRecord,
        stepped: Sequence[int],
        local: Sequence[bool],
    ) -> None:
        """Count a round.

        Args:
            states: the sequences after it.
            record: what it did; its drafter has not failed.
            stepped: how many steps of a model each draft took.
            local: which rows are nobody's business.
        """
        weight = len(states) ** -0.5
        for row, (state, depth) in enumerate(zip(states, stepped, strict=True)):
            # A round that a stop ended may have kept more than it emitted.
            if state.finish_reason in (None, "length") and not local[row]:
                accepted, ended = record.accepted[row], record.ended[row]
                self.acceptance = self.acceptance.after(depth + ended, accepted, weight=weight)
                self.sureness.add(state.params.greedy, record.entropies[row], accepted)

    def add_failed(
        self,
        states: Sequence[SequenceState],
        record: RoundRecord,
        planned: Mapping[int, int],
        local: Sequence[bool],
    ) -> None:
        """Count a round whose drafter failed: what it did not draft as refused.

        Args:
            states, record, local: as of `add`.
            planned: how deep each sequence was to be drafted.
        """
        weight = len(states) ** -0.5
        for row, (state, depth) in enumerate(zip(states, record.depth, strict=True)):
            if not local[row]:
                failed = depth < planned.get(state.prefix.sequence_id, 0)
                accepted = record.accepted[row]
                self.acceptance = self.acceptance.after(depth + failed, accepted, weight=weight)
