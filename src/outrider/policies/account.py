"""The loss account: drafting is stopped before it has cost more than a small share of the time."""

from __future__ import annotations

from dataclasses import dataclass, replace

SLACK_ROUNDS = 3.0
"""So many plain rounds may be lost, one less than promised: a round may cost more than expected."""

SLACK_SHARE = 0.02
"""So much of the time so far may be lost besides."""

FIRST_WAIT, LAST_WAIT = 32, 512
"""Plain rounds before a probe; the wait doubles from the first to the last."""


@dataclass(frozen=True, slots=True)
class Account:
    """What drafting has cost so far beside decoding plainly, in batches of any size.

    Attributes:
        loss: seconds lost by drafting, negative for a gain; a gain counts as at most
            `SLACK_ROUNDS` plain rounds.
        seconds: the time so far.
        prefill: the most seconds that a draft model took for prompts before a round's drafts.
    """

    loss: float = 0.0
    seconds: float = 0.0
    prefill: float = 0.0

    def slack(self, plain: float, *, prefills: bool = False) -> float:
        """Return the seconds that may still be lost.

        Args:
            plain: what a plain round takes.
            prefills: whether a draft model is to prefill a prompt. What earlier ones took has to be
                earned back first; it does not end the drafts of sequences that it was spent on.
        """
        allowed = SLACK_ROUNDS * plain + SLACK_SHARE * self.seconds
        return allowed - self.loss + (0.0 if prefills else self.prefill)

    def add(self, seconds: float, fair: float, plain: float, prefill: float = 0.0) -> Account:
        """Return the account after a round.

        Args:
            seconds: that it took.
            fair: what its tokens would have taken in plain rounds.
            plain: what a plain round takes.
            prefill: the part of `seconds` that a draft model took for prompts.
        """
        loss = max(self.loss + seconds - fair, -SLACK_ROUNDS * plain)
        return Account(loss, self.seconds + seconds, max(self.prefill, prefill))


@dataclass(frozen=True, slots=True)
class Probes:
    """When to draft although that is not expected to pay.

    A probe is two rounds or more, since in the first a draft model computes what it missed. It goes
    on as long as it has gained time on the whole.

    Attributes:
        idle: rounds since the last that drafted, those of the probe that goes on included.
        wait: plain rounds before the next probe.
        ahead: plain rounds that the probe has gained.
    """

    idle: int = 0
    wait: int = FIRST_WAIT
    ahead: float = 0.0

    @property
    def due(self) -> bool:
        """Whether a round should draft in any case."""
        return self.idle >= self.wait

    def after_plain(self) -> Probes:
        """Return the probes after a round that drafted nothing."""
        return replace(self, idle=self.idle + 1)

    def after_draft(self, gain: float) -> Probes:
        """Return the probes after a round that drafted; `gain` is in plain rounds."""
        ahead = self.ahead + gain
        if not self.due or ahead >= SLACK_ROUNDS:
            return Probes()
        if self.idle > self.wait and ahead <= 0:
            return Probes(wait=min(LAST_WAIT, 2 * self.wait))
        return Probes(self.idle + 1, self.wait, ahead)
