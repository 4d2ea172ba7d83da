"""What a round costs: seconds = c0 + c1 * (tokens verified) + c2 * (draft steps)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from .account import Probes

COST_RATIO = 0.125
"""What a draft step costs beside a plain round, as long as none is configured or timed."""

TOKEN_RATIO = 0.02
"""The same of one more token to verify: reading the weights takes most of a small forward."""

MEMORY = 256
"""About so many of the latest rounds that drafted count."""

PLAIN_MEMORY = 16
"""About so many of the latest plain rounds count; few are run while drafts pay."""

PRIOR_WEIGHT = 0.25
"""The prior counts as so many rounds of one token a row, of two, and of one draft step."""

CLIP = 3.0
"""A round counts as at most so many times what was expected, once a plain one was timed."""

_NO_SUMS = (0.0,) * 7


@dataclass(frozen=True, slots=True)
class RoundCosts:
    """What is known of rounds of about one number of rows: above all what they cost.

    Times are in seconds once a plain round was timed; until then a plain round takes 1.

    Attributes:
        rows: the number of rows that these costs are for: a power of two.
        step_ratio, token_ratio: the prior: a draft step, and one more token for each row, beside a
            plain round.
        plain: the mean time of plain rounds.
        plain_rounds: their decayed number; 0 if none was timed.
        sums: over timed rounds that drafted, decayed, with r what a round takes beside drafting:
            1, tokens, tokens^2, r, tokens r, steps^2, steps (seconds of drafting).
        since_plain: timed rounds since the last plain one.
        probes: when to draft in such rounds although that is not expected to pay.
    """

    rows: int = 1
    step_ratio: float = COST_RATIO
    token_ratio: float = TOKEN_RATIO
    plain: float = 1.0
    plain_rounds: float = 0.0
    sums: tuple[float, ...] = _NO_SUMS
    since_plain: int = 0
    probes: Probes = field(default_factory=Probes)

    @property
    def drafts_timed(self) -> bool:
        """Whether a round that drafted was timed."""
        return self.sums[0] > 0

    @property
    def coefficients(self) -> tuple[float, float, float]:
        """The coefficients (c0, c1, c2), by least squares, none of them negative."""
        one_each, w = self.plain * self.token_ratio, PRIOR_WEIGHT
        prior = self.plain - one_each, one_each / self.rows, self.plain * self.step_ratio
        if not self.drafts_timed:
            return prior
        n, x, xx, y, xy, steps, drafting = self.sums
        one, two = self.rows, 2 * self.rows
        n, x, xx = n + 2 * w, x + w * (one + two), xx + w * (one**2 + two**2)
        y += w * (2 * self.plain + one_each)
        xy += w * (one * self.plain + two * (self.plain + one_each))
        c1 = max(0.0, (n * xy - x * y) / (n * xx - x * x))
        c0 = (y - c1 * x) / n
        if c0 < 0:
            c0, c1 = 0.0, xy / xx
        return c0, c1, (drafting + w * prior[2]) / (steps + w)

    def seconds(self, tokens: float, steps: float) -> float:
        """Return the expected time of a round that drafts."""
        c0, c1, c2 = self.coefficients
        return c0 + c1 * tokens + c2 * steps

    def clipped(self, seconds: float, tokens: float = 0.0, steps: float = 0.0) -> float:
        """Return a round's time, or less if it is out of proportion; no tokens: a plain one."""
        if tokens:
            return min(seconds, CLIP * self.seconds(tokens, steps))
        return min(seconds, CLIP * self.plain) if self.plain_rounds else seconds

    def add_plain(self, seconds: float) -> RoundCosts:
        """Return the costs after a plain round."""
        rounds = self.plain_rounds * (1 - 1 / PLAIN_MEMORY) + 1
        before = self.plain if self.plain_rounds else 0.0
        plain = before + (seconds - before) / rounds
        return replace(self, plain=plain, plain_rounds=rounds, since_plain=0)

    def add_drafted(
        self, seconds: float, drafting: float, tokens: float, steps: float
    ) -> RoundCosts:
        """Return the costs after a round that drafted; where no model did, all counts in c0."""
        rest = seconds - min(drafting, seconds) if steps else seconds
        new = 1.0, tokens, tokens**2, rest, tokens * rest, steps**2, steps * (seconds - rest)
        sums = tuple((1 - 1 / MEMORY) * a + b for a, b in zip(self.sums, new, strict=True))
        return replace(self, sums=sums, since_plain=self.since_plain + 1)
