"""As far as the draft is sure enough of itself to pay: decided anew before each token.

Method: AdaEDL (Agrawal et al. 2024, "AdaEDL: Early Draft Stopping for Speculative Decoding of Large
Language Models via an Entropy-based Lower Bound on Token Acceptance Probability", arXiv
2410.18351): a token drawn from a distribution of entropy H is kept with a chance of about
1 - sqrt(gamma H) at least. There the chance is held against a threshold that is moved until a
wanted share of tokens is kept. Here the threshold follows from what a token costs, in closed form,
so that nothing has to be remembered: another token is drawn if that raises the tokens that the
round is expected to emit over the time that it is expected to take. As there, a draft ends after
the token of which it was unsure: how sure it is of the next one is not known before another step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..types.records import DraftPlan, RoundRecord, SequenceState
from .costs import COST_RATIO
from .levels import Levels, allowed

GAMMA = 0.2
"""What the bound makes of an entropy in nats: the value of AdaEDL's experiments."""


@dataclass(frozen=True, slots=True)
class WorthDrawing:
    """Which rows draw one more token: those in which it is expected to pay.

    With chances a_i and a draft step that costs c plain forwards, n tokens in a row emit
    E(n) = 1 + a_1 + a_1 a_2 + ... and take 1 + n c. The next one, of which the draft is taken to be
    as sure as of the last, raises their ratio unless a_1 ... a_n a_n (1 + n c) < c E(n).

    Attributes:
        costs: c for each row, float64 [B]; 0 for one that is never ended.
    """

    costs: NDArray[np.float64]

    def __call__(
        self,
        entropies: NDArray[np.float64],
        drafting: NDArray[np.bool_],  # Rows are told apart by their own distributions.
    ) -> NDArray[np.bool_]:
        """Whether each row draws another token, bool [B].

        Args:
            entropies: in nats, of the distributions of its n tokens so far, float64 [B, n]. Of a distribution that
                means nothing it is NaN, and drafting goes on: verification finds it out.
            drafting: the rows that may draw another, bool [B].
        """
        chances = (1 - np.sqrt(GAMMA * entropies)).clip(min=0)
        reached = chances.cumprod(1)
        tokens = 1 + reached.sum(1)
        seconds = 1 + entropies.shape[1] * self.costs
        going: NDArray[np.bool_] = ~(
            reached[:, -1] * chances[:, -1] * seconds < self.costs * tokens
        )
        return going


class ConfidenceDepth:
    """Draft while the draft is sure enough, `num_speculative_tokens` at most.

    Whether a row draws its next token depends on the tokens before it alone, so that no output's
    distribution changes; a token that was drawn is verified. Nothing is learnt or measured: a request is
    drafted alike whatever came before it and whoever shares its batch. One token is drafted at
    least.

    Looked-up tokens have no entropy, nor has text that a draft of another vocabulary writes: of
    them as many are proposed as are planned. A request that carries `depths` is drafted as it says
    while it says anything.

    Args:
        levels: the shape of a draft: chains.
        cost_ratio: a draft step beside a plain forward of the target; None for .125. Above 1
            nothing is drafted.
        looks_up: whether the drafter chooses between tokens that it looked up and a model's: in a
            replay it is to choose as it did.
    """

    def __init__(
        self, levels: Levels, cost_ratio: float | None = None, *, looks_up: bool = False
    ) -> None:
        self._levels = levels
        self._looks_up = looks_up
        self._cost_ratio = COST_RATIO if cost_ratio is None else cost_ratio
        self._most = levels.deepest if self._cost_ratio <= 1 else 0
        self.learns = False

    def plan(self, states: Sequence[SequenceState]) -> DraftPlan:
        """The most tokens of each sequence's next round, and what ends it before."""
        own = [allowed(self._most, state) for state in states]
        asked = self._levels.asked(states)
        costs = [self._cost_ratio if wanted is None else 0.0 for wanted in asked]
        rule = WorthDrawing(np.array(costs))
        if self._looks_up and any(wanted is not None for wanted in asked):
            return self._levels.replay(own, asked, rule)
        pairs = zip(own, asked, strict=True)
        depths = [depth if wanted is None else wanted for depth, wanted in pairs]
        return self._levels.plan(depths, keep_going=rule)

    def observe(self, states: Sequence[SequenceState], record: RoundRecord) -> None:
        """Nothing that happens changes it."""
