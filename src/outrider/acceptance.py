"""How often drafted tokens are kept: running estimates.

By their place in the draft, and by how sure the draft was of them. Sure means a law of little
entropy. AdaEDL (Agrawal et al. 2024, arXiv 2410.18351) bounds the chance from below by a formula;
here it is counted, since it depends on the pair: a draft that is unsure of many tokens at
temperature 0 still has the right one first more often than not.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

_MEMORY = 0.99
"""What a round weighs beside the next one that drafted as deep: 100 rounds count in all."""

_FIRST_GUESS, _FIRST_WEIGHT = 0.75, 4.0
"""What is thought of any token before the first round, and for how many tokens that counts."""

_OVERALL_WEIGHT = 2.0
"""For how many tokens at one place the rate at all places counts, or what others were seen to keep:
few, so that a text on which drafts fail is known by its first rounds, whatever came before it."""

_ALIKE_WEIGHT = 3.0
"""For how many kept tokens counts that a text is like others, where it keeps less than they did:
what is refused at one place says something of the places after it."""

EDGES = (0.05, 0.2, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0)
"""Nats: where one class of entropies ends and the next begins. What is no number is of the last."""

_CLASS_WEIGHT = 4.0
"""For how many of its tokens counts what is thought of a class beforehand."""

_CLASS_MEMORY = 0.99
"""What a token weighs beside the next one of its class: 100 count in all."""


@dataclass(frozen=True, slots=True)
class Chances:
    """How likely tokens are to be kept.

    Attributes:
        classes: by the entropy of the laws that they were drawn from, one more than `EDGES`.
        overall: all of them.
    """

    classes: tuple[float, ...]
    overall: float


LIKELIEST = Chances((0.99, 0.98, 0.96, 0.92, 0.9, 0.85, 0.8, 0.75, 0.65, 0.45, 0.35), 0.78)
DRAWN = Chances((0.98, 0.93, 0.85, 0.75, 0.68, 0.58, 0.52, 0.48, 0.45, 0.42, 0.4), 0.64)
"""Before the first round: of the likeliest tokens, and of drawn ones."""


@dataclass(frozen=True, slots=True)
class Sureness:
    """Of the tokens of each class of entropies, how many were kept; the latest most.

    Attributes:
        reached: decayed counts of tokens of each class.
        kept: decayed counts of those that were kept.
    """

    reached: tuple[float, ...] = (0.0,) * (len(EDGES) + 1)
    kept: tuple[float, ...] = (0.0,) * (len(EDGES) + 1)

    def chances(self, prior: Chances) -> Chances:
        """How likely tokens are to be kept.

        Args:
            prior: what is thought of it beforehand.
        """
        reached, kept = sum(self.reached), sum(self.kept)
        return Chances(
            tuple(
                (kept + _CLASS_WEIGHT * guess) / (reached + _CLASS_WEIGHT)
                for reached, kept, guess in zip(self.reached, self.kept, prior.classes, strict=True)
            ),
            (kept + _CLASS_WEIGHT * prior.overall) / (reached + _CLASS_WEIGHT),
        )

    def after(self, entropies: Sequence[float], accepted: int) -> Sureness:
        """With one more round of a row: all tokens that were kept, and the first that was not.

        Args:
            entropies: of the laws that its tokens were drawn from, in nats.
            accepted: how many of them were kept.
        """
        reached, kept = list(self.reached), list(self.kept)
        for place, entropy in enumerate(entropies[: accepted + 1]):
            index = bisect_right(EDGES, entropy)
            reached[index] = reached[index] * _CLASS_MEMORY + 1
            kept[index] = kept[index] * _CLASS_MEMORY + (place < accepted)
        return Sureness(tuple(reached), tuple(kept))


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Of the rounds that got as far as an i-th drafted token, how many kept it; the latest most.

    A round gets to the i-th token if it drafted that far and kept the one before. What depth a
    round had does not bias the estimate, as long as it was chosen without looking at the outcome.
    What is known of a place fades in rounds that do not get there, too: a few refusals would else
    keep drafts from ever going as far again.

    Attributes:
        reached: decayed counts of rounds that got to the first, second, ... token.
        kept: decayed counts of those that kept it.
        sureness: of the tokens whose entropies were told.
    """

    reached: tuple[float, ...] = ()
    kept: tuple[float, ...] = ()
    sureness: Sureness = Sureness()

    def after(
        self, depth: int, accepted: int, entropies: Sequence[float] = (), weight: float = 1.0
    ) -> Acceptance:
        """With one more round.

        Args:
            depth: how many tokens in a row it drafted.
            accepted: how many of them it kept.
            entropies: of the laws that they were drawn from, in nats; none are not counted.
            weight: for how many rounds it counts.
        """
        seen = min(depth, accepted + 1)
        if seen == 0:
            return self
        length = max(seen, len(self.reached))
        reached = [*self.reached, *[0.0] * (length - len(self.reached))]
        kept = [*self.kept, *[0.0] * (length - len(self.kept))]
        memory = _MEMORY**weight
        for place in range(length):
            reached[place] = reached[place] * memory + weight * (place < seen)
            kept[place] = kept[place] * memory + weight * (place < accepted)
        sureness = self.sureness.after(entropies, accepted) if entropies else self.sureness
        return Acceptance(tuple(reached), tuple(kept), sureness)

    def chances(
        self, most: int, prior: Sequence[float] | None = None, weight: float = 1.0
    ) -> list[float]:
        """The chance of each of `most` tokens to be kept if the one before is.

        Args:
            most: how many.
            prior: what is thought of each beforehand, as much less as was kept less than that on
                the whole; None takes the rate over all places.
            weight: of what was counted.
        """
        reached, kept = sum(self.reached), sum(self.kept)
        overall = (kept + _FIRST_WEIGHT * _FIRST_GUESS) / (reached + _FIRST_WEIGHT)
        known = list(zip(self.reached, self.kept, strict=True))[:most]
        known += [(0.0, 0.0)] * (most - len(known))
        guesses = [overall] * most
        if prior is not None:
            thought = sum(count * guess for (count, _), guess in zip(known, prior, strict=True))
            came = sum(count for _, count in known)
            share = (weight * came + _ALIKE_WEIGHT) / (weight * thought + _ALIKE_WEIGHT)
            guesses = [guess * min(share, 1.0) for guess in prior]
        return [
            (weight * kept + _OVERALL_WEIGHT * guess) / (weight * reached + _OVERALL_WEIGHT)
            for (reached, kept), guess in zip(known, guesses, strict=True)
        ]


NOTHING_KNOWN = Acceptance()
"""Before the first round."""


def expected_tokens(chances: Sequence[float]) -> list[float]:
    """Tokens a round emits on average at depths 0, 1, ..., len(chances), the last one included.

    1 + a_1 + a_1 a_2 + ... (Leviathan et al. 2023, section 3.1, with a rate for each position).
    """
    return list(accumulate([1.0, *accumulate(chances, mul)]))
