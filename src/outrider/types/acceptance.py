"""How often drafted tokens are kept: running estimates.

By their place in the draft, and by how sure the draft was of them. Sure means a distribution of little
entropy. AdaEDL (Agrawal et al. 2024, arXiv 2410.18351) bounds the chance from below by a formula;
here it is counted, since it depends on the pair: a draft that is unsure of many tokens at
temperature 0 still has the right one first more often than not.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import exp, lgamma, log
from operator import mul

_MEMORY = 0.99
"""What a round weighs beside the next one that drafted as deep: 100 rounds count in all."""

_FIRST_GUESS, _FIRST_WEIGHT = 0.75, 6.0
"""What is thought of any token before the first round, and for how many tokens that counts."""

_OVERALL_WEIGHT = 4.0
"""For how many tokens at one place the rate at all places counts."""

_OTHERS_WEIGHT = 2.0
"""The same of what other texts were seen to keep, where a text is not like them: few, so that one
on which drafts fail is known by its first rounds, whatever came before it."""

_ALIKE_WEIGHT = 12.0
"""And where it is like them: a few refusals are chance where one token in three is kept, as one may
be where drafts just pay."""

_REFUSED_WEIGHT = 3.0
"""For how many kept tokens counts that a text keeps as much as others, where it keeps less than
they did: what is refused at one place says something of the places after it."""

_LEAST = 1e-3
"""How likely what others always kept is to be refused, at least."""

_ODDS = 3.0
"""How much likelier a text is beforehand to be like others than not."""

_FAR = 700.0
"""Where the exponential function ends."""

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
        classes: by the entropy of the distributions that they were drawn from, one more than `EDGES`.
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
            entropies: of the distributions that its tokens were drawn from, in nats.
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
            entropies: of the distributions that they were drawn from, in nats; none are not counted.
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
        self,
        most: int,
        prior: Sequence[float] | None = None,
        weight: float = 1.0,
        first_weight: float = _FIRST_WEIGHT,
    ) -> list[float]:
        """The chance of each of `most` tokens to be kept if the one before is.

        Args:
            most: how many.
            prior: what other texts kept at each. It counts for more where what was kept here is
                like that, and as much less as less was kept where it is not. None takes the rate
                over all places.
            weight: of what was counted.
            first_weight: for how many tokens counts, where there is no prior, what is thought of
                any before the first round.
        """
        known = [(weight * n, weight * k) for n, k in zip(self.reached, self.kept, strict=True)]
        known = known[:most] + [(0.0, 0.0)] * (most - len(known))
        if prior is None:
            came, kept = weight * sum(self.reached), weight * sum(self.kept)
            overall = (kept + first_weight * _FIRST_GUESS) / (came + first_weight)
            return _mixed(known, [overall] * most, _OVERALL_WEIGHT)
        thought = sum(n * guess for (n, _), guess in zip(known, prior, strict=True))
        kept = sum(k for _, k in known)
        share = min((kept + _REFUSED_WEIGHT) / (thought + _REFUSED_WEIGHT), 1.0)
        apart = _mixed(known, [share * guess for guess in prior], _OTHERS_WEIGHT)
        together = _mixed(known, prior, _ALIKE_WEIGHT)
        alike = _alike(known, prior)
        return [
            alike * one + (1 - alike) * other for one, other in zip(together, apart, strict=True)
        ]


def _mixed(
    known: Sequence[tuple[float, float]], guesses: Sequence[float], weight: float
) -> list[float]:
    """Rates of what was counted at each place, and of a guess that counts for so many tokens."""
    return [
        (k + weight * guess) / (n + weight) for (n, k), guess in zip(known, guesses, strict=True)
    ]


def _alike(known: Sequence[tuple[float, float]], prior: Sequence[float]) -> float:
    """The chance that tokens are kept as they were in other texts: three in four to begin with.

    Beside a text that has one rate of its own, of which nothing is known beforehand (Bayes factor
    with a uniform prior; Kass and Raftery 1995, "Bayes factors", section 3.2).
    """
    came, kept, others = 0.0, 0.0, 0.0
    for (n, k), guess in zip(known, prior, strict=True):
        if not n:
            continue
        sure = min(max(guess, _LEAST), 1 - _LEAST)
        others += k * log(sure) + (n - k) * log(1 - sure)
        came, kept = came + n, kept + k
    own = lgamma(kept + 1) + lgamma(came - kept + 1) - lgamma(came + 2)
    return 1 / (1 + exp(min(own - others, _FAR)) / _ODDS)


NOTHING_KNOWN = Acceptance()
"""Before the first round."""


def expected_tokens(chances: Sequence[float]) -> list[float]:
    """Tokens a round emits on average at depths 0, 1, ..., len(chances), the last one included.

    1 + a_1 + a_1 a_2 + ... (Leviathan et al. 2023, section 3.1, with a rate for each position).
    """
    return list(accumulate([1.0, *accumulate(chances, mul)]))
