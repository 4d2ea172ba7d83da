"""Drafts from a text that the user expects: a file about to be edited, an answer asked for before.

The output is followed through the prediction, token by token. While it agrees, what comes next is
proposed. Where it departs, the last tokens are looked for again: best at or after the place where
the two last agreed, else anywhere. Nothing is proposed while they are not found, so that a
prediction that has nothing to do with the output costs next to nothing, and changes nothing.

OpenAI's API calls this predicted outputs (`prediction`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidConfigError
from ..types.records import DraftPlan, Prefix
from .base import DraftContext
from .lookup import NOTHING, Candidate, LookupDrafter, token_ids

_NEAR = 16
"""How many tokens past the last agreement one equal token is enough to go on from."""

_LONGEST = 32
"""How many last tokens are compared where several places begin alike."""

_AGREED, _REFUSED = 4, 1
"""What a prediction is trusted for before it has been tried: four tokens of five."""


class Alignment:
    """Where one output stands in its prediction: a function of the two.

    Args:
        prediction: int64 [m].
        min_match: how many last tokens have to be equal for a place far from the last agreement.
    """

    def __init__(self, prediction: NDArray[np.int64], min_match: int) -> None:
        self.prediction = prediction
        self._min_match = min_match
        # Places of each token, found by bisection.
        self._places = np.argsort(prediction, kind="stable")
        self._sorted = prediction[self._places]
        self._output = np.empty(0, dtype=np.int64)
        self._next: int | None = 0
        self._run = 0
        self._anchor = 0
        self._agreed, self._refused = _AGREED, _REFUSED

    @property
    def position(self) -> int | None:
        """The place in the prediction of the next token; None if the output was not found in it."""
        return self._next

    @property
    def run(self) -> int:
        """How many last tokens agree, those counted that it was found by; 0 if it was not found."""
        return 0 if self._next is None else self._run

    @property
    def trust(self) -> float:
        """The estimated probability that a token agrees if the one before it did."""
        return self._agreed / (self._agreed + self._refused)

    def extends(self, output: NDArray[np.int64]) -> bool:
        """Whether `output` begins with what was read so far."""
        return np.array_equal(output[: len(self._output)], self._output)

    def read(self, output: NDArray[np.int64]) -> None:
        """Follow the output, int64 [n], which begins with what was read so far."""
        done = len(self._output)
        self._output = output
        while done < len(output):
            if self._next is not None:
                agreed = self._agreement(output[done:], self._next)
                self._advance(agreed)
                done += agreed
                if done == len(output):
                    return
                self._refused += self._next < len(self.prediction)
            done += 1
            self._locate(output[:done])

    def _agreement(self, tokens: NDArray[np.int64], place: int) -> int:
        """How many of the tokens agree with the prediction from a place on."""
        expected = self.prediction[place : place + len(tokens)]
        differs = np.flatnonzero(expected != tokens[: len(expected)])
        return int(differs[0]) if len(differs) else len(expected)

    def _advance(self, agreed: int) -> None:
        assert self._next is not None
        self._next += agreed
        self._agreed += agreed
        self._run += agreed
        if self._run >= self._min_match:
            self._anchor = self._next

    def _locate(self, output: NDArray[np.int64]) -> None:
        """Look for the last tokens; the place after them is where the output goes on."""
        token = output[-1]
        first, last = np.searchsorted(self._sorted, [token, token + 1])
        after = self._places[first:last] + 1
        ahead = after >= self._anchor
        self._next = None
        for places in (after[ahead], after[~ahead][::-1]):
            place, run = self._longest(output, places)
            if run >= self._min_match:
                self._next, self._run, self._anchor = place, run, place
                return
        near = after[ahead & (after <= self._anchor + _NEAR)]
        if len(near):
            self._next, self._run = int(near[0]), 1

    def _longest(self, output: NDArray[np.int64], places: NDArray[np.int64]) -> tuple[int, int]:
        """The first of the places before which most last tokens stand, and how many those are."""
        run = 0
        while len(places) and run < min(_LONGEST, len(output)):
            back = places - run - 1
            equal = (back >= 0) & (self.prediction[back] == output[len(output) - 1 - run])
            if not equal.any():
                break
            places, run = places[equal], run + 1
        return (int(places[0]), run) if run else (0, 0)


class PredictionDrafter(LookupDrafter):
    """Drafts from what the user expects the output to be. Needs no second model.

    Args:
        prediction: token ids (a list, an array or a tensor) that every output is expected to
            resemble whose request says nothing (`SamplingParams.prediction`); None expects nothing.
        min_match: how many last tokens have to be equal before the prediction is gone on with far
            from where it was last agreed with, at least 1.
        min_token_prob: tokens estimated to be kept less often are not proposed, in (0, 1].

    Raises:
        InvalidConfigError: an argument is none of these.
    """

    source = "prediction"

    def __init__(
        self,
        prediction: Sequence[int] | NDArray[np.int64] | None = None,
        *,
        min_match: int = 2,
        min_token_prob: float = 0.1,
    ) -> None:
        if isinstance(min_match, bool) or not isinstance(min_match, int) or min_match < 1:
            raise InvalidConfigError("min_match", min_match, "an integer >= 1")
        number = isinstance(min_token_prob, int | float) and not isinstance(min_token_prob, bool)
        if not number or not 0 < min_token_prob <= 1:
            raise InvalidConfigError("min_token_prob", min_token_prob, "a number in (0, 1]")
        self.min_match = min_match
        self.min_token_prob = float(min_token_prob)
        self._default = None if prediction is None else token_ids("prediction", prediction)
        self._alignments: dict[int, Alignment] = {}

    def candidates(
        self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: DraftContext
    ) -> list[Candidate]:
        """Return how each row's prediction goes on: a function of it and of the row's own output."""
        rows = zip(prefixes, plan.depth.tolist(), ctx.prompt_lengths.tolist(), strict=True)
        return [
            self._candidate(prefix, depth, prompt_length, ctx.prediction(row))
            for row, (prefix, depth, prompt_length) in enumerate(rows)
        ]

    def release(self, sequence_ids: Iterable[int], *, discard: bool = False) -> None:
        """Forget how far these sequences came."""
        del discard
        for sequence_id in sequence_ids:
            self._alignments.pop(sequence_id, None)

    def _candidate(
        self,
        prefix: Prefix,
        depth: int,
        prompt_length: int,
        prediction: NDArray[np.int64] | None,
    ) -> Candidate:
        if prediction is None:
            prediction = self._default
        if prediction is None or depth == 0:
            return NOTHING
        output = prefix.tokens[prompt_length:]
        alignment = self._alignments.get(prefix.sequence_id)
        if (
            alignment is None
            or alignment.prediction is not prediction
            or not alignment.extends(output)
        ):
            alignment = Alignment(prediction, self.min_match)
            self._alignments[prefix.sequence_id] = alignment
        alignment.read(output)
        if alignment.position is None:
            return NOTHING
        tokens = prediction[alignment.position : alignment.position + depth]
        confidence = np.full(len(tokens), alignment.trust)
        kept = np.cumprod(confidence) >= self.min_token_prob
        return Candidate(tokens[kept], confidence[kept])
