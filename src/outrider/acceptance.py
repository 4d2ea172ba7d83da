"""How often drafted tokens are kept, by their place in the draft: running estimates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

_MEMORY = 0.98
"""What a round weighs beside the next one that drafted as deep: 50 rounds count in all."""

_FIRST_GUESS, _FIRST_WEIGHT = 0.75, 4.0
"""What is thought of any token before the first round, and for how many tokens that counts."""

_OVERALL_WEIGHT = 2.0
"""For how many tokens at one place the rate at all places counts, or what others were seen to keep:
few, so that a text on which drafts fail is known by its first rounds, whatever came before it."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Of the rounds that got as far as an i-th drafted token, how many kept it; the latest most.

    A round gets to the i-th token if it drafted that far and kept the one before. What depth a
    round had does not bias the estimate, as long as it was chosen without looking at the outcome.

    Attributes:
        reached: decayed counts of rounds that got to the first, second, ... token.
        kept: decayed counts of those that kept it.
    """

    reached: tuple[float, ...] = ()
    kept: tuple[float, ...] = ()

    def after(self, depth: int, accepted: int) -> Acceptance:
        """With one more round, which drafted `depth` tokens in a row and kept `accepted`."""
        seen = min(depth, accepted + 1)
        if seen == 0:
            return self
        length = max(seen, len(self.reached))
        reached = [*self.reached, *[0.0] * (length - len(self.reached))]
        kept = [*self.kept, *[0.0] * (length - len(self.kept))]
        for place in range(seen):
            reached[place] = reached[place] * _MEMORY + 1
            kept[place] = kept[place] * _MEMORY + (place < accepted)
        return Acceptance(tuple(reached), tuple(kept))

    def chances(self, most: int, prior: Sequence[float] | None = None) -> list[float]:
        """The chance of each of `most` tokens to be kept if the one before is.

        Args:
            most: how many.
            prior: what is thought of each beforehand; None takes the rate over all places.
        """
        reached, kept = sum(self.reached), sum(self.kept)
        overall = (kept + _FIRST_WEIGHT * _FIRST_GUESS) / (reached + _FIRST_WEIGHT)
        guesses = [overall] * most if prior is None else prior
        known = list(zip(self.reached, self.kept, strict=True))[:most]
        known += [(0.0, 0.0)] * (most - len(known))
        return [
            (kept + _OVERALL_WEIGHT * guess) / (reached + _OVERALL_WEIGHT)
            for (reached, kept), guess in zip(known, guesses, strict=True)
        ]


NOTHING_KNOWN = Acceptance()
"""Before the first round."""


def expected_tokens(chances: Sequence[float]) -> list[float]:
    """Tokens a round emits on average at depths 0, 1, ..., len(chances), the last one included.

    1 + a_1 + a_1 a_2 + ... (Leviathan et al. 2023, section 3.1, with a rate for each position).
    """
    return list(accumulate([1.0, *accumulate(chances, mul)]))
