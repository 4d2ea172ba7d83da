"""What drafts of each depth are expected to bring a batch, and the depth that brings most."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from .drafted import Drafted
from .sureness import Steps

MARGIN = 1.02
"""How much better than plain decoding a depth has to look; and would have to be if it were verified
for nothing, where it looks better than that."""

_NOISE = 0.01
"""By how much a gain may look better than it can be, since times vary, and be believed all the same
as far as that: where drafts are verified for nothing any gain is as high as it can be."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """The best of some depths, for rows that draft as deep as each other.

    Attributes:
        each: what each row emits at each depth, float64 [B, N + 1].
        drafted: which rows draft, and what rounds bring and take at each depth.
        whole: the same if all rows do.
        best: the depth, 0 included; where drafts end early, the most that is drafted.
        likely: how deep drafts are then expected to go.
        usual: seconds of a round that goes so far.
        pace: what counts for tokens, of all rows, a second.
        gain: how many times as fast as plain decoding that is, no more than if drafts are verified
            for nothing; 0 where it is not believed.
        ending: whether drafts end early.
    """

    each: NDArray[np.float64]
    drafted: Drafted
    whole: Drafted
    best: int
    likely: float
    usual: float
    pace: float
    gain: float
    ending: bool

    @staticmethod
    def of(
        each: NDArray[np.float64], drafted: Drafted, whole: Drafted, tried: int, steps: Steps | None
    ) -> Outlook:
        """The depth with the most tokens a second.

        Args:
            each, drafted, whole: see there.
            tried: the deepest that may be drafted.
            steps: how many drafts were seen to take, if drafts of all depths may end early.
        """
        tokens, seconds = drafted.tokens, drafted.seconds
        most = len(tokens) - 1
        rates = [made / took for made, took in zip(tokens, seconds, strict=True)]
        most_gained = [drafted.at_most(made, depth) for depth, made in enumerate(tokens)]
        pairs = zip(rates, most_gained, strict=True)
        gains = [_believed(rate / rates[0], bound) for rate, bound in pairs]
        best = max((k for k in range(tried + 1) if gains[k]), key=rates.__getitem__)
        if steps is None or not best:
            likely, usual, pace = float(best), seconds[best], rates[best]
            return Outlook(each, drafted, whole, best, likely, usual, pace, gains[best], False)
        likely = steps.mean(best)
        usual = float(np.interp(likely, range(most + 1), seconds))
        emitted = steps.emitted(tokens[most], tokens[best])
        pace = emitted / usual
        gain = _believed(pace / rates[0], drafted.at_most(emitted, likely))
        if gains[1] and (rates[1] > pace or not gain):
            pace, gain = rates[1], gains[1]
        # Not much deeper than drafts have been, however sure the next one is.
        deep = min(most, 2 * max(best, ceil(likely)) + 1)
        return Outlook(each, drafted, whole, deep, likely, usual, pace, gain, True)

    @property
    def plain(self) -> float:
        """What counts for tokens, a second, without drafts."""
        return self.drafted.tokens[0] / self.drafted.seconds[0]


def _believed(gain: float, most: float) -> float:
    """What is believed of a gain, where it can be no more than so much; 0 for nothing.

    One that is more says that plain rounds look dearer than they are: what they were compared with
    is not known that well.
    """
    return min(gain, most) if most >= MARGIN or gain <= most * (1 + _NOISE) else 0.0
