"""What a round did, as far as its cost depends on it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Round:
    """What a round did, as far as its cost depends on it.

    Attributes:
        rows: sequences in it.
        width: tokens drafted for the row with the most.
        steps: how many steps of a model the deepest draft took.
        fresh: whether the target read a prompt in it.
        read: tokens of these prompts, each that several sequences share once.
        missing: how many tokens the drafter had to read before its first step, of all rows.
        behind: how many rows missed more than a draft leaves.
        looked: whether tokens were looked up.
        caught_up: tokens of the sequences that it read for the first time.
        draft_s, target_s, other_s: seconds of its parts.
        spared: by how many tokens fewer than the widest row has the others have, in all, if the
            target is not given what would pad them.
        stepping: for how many rows a model drafted; None for all.
        found: whether looked-up tokens were proposed.
        length: tokens that each sequence had before it, by the mean.
    """

    rows: int
    width: int
    steps: int
    fresh: bool
    read: int
    missing: int
    behind: int
    looked: bool
    caught_up: int
    draft_s: float
    target_s: float
    other_s: float
    spared: int = 0
    stepping: int | None = None
    found: bool = False
    length: float = 0.0

    @property
    def drafting(self) -> int:
        """How many rows the drafter's forwards had."""
        return self.rows if self.stepping is None else self.stepping

    @property
    def tokens(self) -> int:
        """What the target is given, of all rows."""
        return self.rows * (self.width + 1) - self.spared

    @property
    def verifying_s(self) -> float:
        """All but its drafting."""
        return self.target_s + self.other_s
