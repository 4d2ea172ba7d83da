"""The loss account: drafting is stopped before it has cost more than a small share of the time."""

from __future__ import annotations

from dataclasses import dataclass, replace

SLACK_ROUNDS = 3.0
"""So many plain rounds may be lost, one less than promised: a round may cost more than expected."""

SLACK_SHARE = 0.02
"""So much of the time so far may be lost besides."""

FIRST_WAIT, LAST_WAIT = 32, 512
"""Plain rounds before a probe; the wait doubles from the first to the last."""

PLAIN_EVERY = 64
"""While drafting, one round in so many is plain."""


@dataclass(frozen=True, slots=True)
class Account:
    """What drafting has cost so far beside decoding plainly, and when to probe.

    A probe is two rounds that draft where that is not expected to pay: in the first a draft model
    reads what it missed. It goes on as long as it has gained time on the whole.

    Attributes:
        loss: seconds lost by drafting, negative for a gain; bounded below.
        seconds: the time so far.
        idle: rounds since the last that drafted.
        wait: idle rounds before the next probe.
        probed: rounds of the probe that goes on; 0 if none does.
        ahead: seconds that it has gained, bounded above.
        since_plain: rounds since the last plain one that was timed.
        owed: draft steps taken before a plain round was timed, to be charged once their cost is
            known.
    """

    loss: float = 0.0
    seconds: float = 0.0
    idle: int = 0
    wait: int = FIRST_WAIT
    probed: int = 0
    ahead: float = 0.0
    since_plain: int = 0
    owed: float = 0.0

    def slack(self, plain: float) -> float:
        """Return the seconds that may still be lost, `plain` being those of a plain round."""
        return SLACK_ROUNDS * plain + SLACK_SHARE * self.seconds - self.loss

    @property
    def plain_due(self) -> bool:
        """Whether a plain round should be timed."""
        return self.since_plain >= PLAIN_EVERY - 1

    @property
    def probes(self) -> bool:
        """Whether a round should draft even where that is not expected to pay."""
        return self.probed > 0 or self.idle >= self.wait

    def add_plain(self, seconds: float, *, timed: bool) -> Account:
        """Return the account after a plain round; `timed` if its time is that of plain rounds."""
        return replace(
            self,
            seconds=self.seconds + seconds,
            idle=self.idle + 1,
            probed=0,
            ahead=0.0,
            since_plain=0 if timed else self.since_plain + 1,
        )

    def add_drafted(self, seconds: float, fair: float, plain: float, *, model: bool) -> Account:
        """Return the account after a round that drafted, or looked for something to draft.

        Args:
            seconds: that it took.
            fair: what its tokens would have taken in plain rounds.
            plain: what a plain round takes.
            model: whether it drafted what a probe is about.
        """
        loss = max(self.loss + seconds - fair, -SLACK_ROUNDS * plain)
        account = replace(
            self, loss=loss, seconds=self.seconds + seconds, since_plain=self.since_plain + 1
        )
        if not model:
            return replace(account, idle=self.idle + 1)
        if not self.probes:
            return replace(account, idle=0, wait=FIRST_WAIT, probed=0, ahead=0.0)
        probed, ahead = self.probed + 1, self.ahead + fair - seconds
        wait = self.wait if self.probed else min(LAST_WAIT, 2 * self.wait)
        if probed >= 2 and ahead <= 0:
            probed, ahead = 0, 0.0
        elif ahead >= SLACK_ROUNDS * plain:
            wait, ahead = FIRST_WAIT, SLACK_ROUNDS * plain
        return replace(account, idle=0, wait=wait, probed=probed, ahead=ahead)
