"""Drafts from a text that the user expects: a file about to be edited, an answer asked for before.

The last tokens of the output are looked for in the prediction, and what follows them there is
proposed. Where the output departs from the prediction nothing is found, and nothing proposed, until
a few tokens agree again: so a prediction that has nothing to do with the output costs next to
nothing, and changes nothing.

OpenAI's API calls this predicted outputs (`prediction`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..config.validation import integer, real
from ..types.records import DraftPlan, Prefix
from .base import DraftContext
from .lookup import NOTHING, Candidate, LookupDrafter, match_confidence, matches, token_ids

_LONGEST = 32
"""How many last tokens are compared where several places begin alike."""

_AT_FIRST = 4
"""What the beginning of a prediction is trusted as: a match of this many tokens."""


class PredictionDrafter(LookupDrafter):
    """Drafts from what the user expects the output to be. Needs no second model.

    Args:
        prediction: token ids (a list, an array or a tensor) that every output is expected to
            resemble whose request says nothing (`SamplingParams.prediction`); None expects nothing.
        min_match: how many last tokens have to be equal for the prediction to be gone on with, at
            least 1.
        min_token_prob: tokens estimated to be kept less often are not proposed, in (0, 1].

    Raises:
        InvalidConfigError: an argument is out of its range, or no flat sequence of token ids.
    """

    source = "prediction"

    def __init__(
        self,
        prediction: Sequence[int] | NDArray[np.int64] | None = None,
        *,
        min_match: int = 2,
        min_token_prob: float = 0.1,
    ) -> None:
        self.min_match = integer("min_match", min_match, 1)
        self.min_token_prob = real(
            "min_token_prob", min_token_prob, "a number in (0, 1]", lambda x: 0 < x <= 1
        )
        self._default = None if prediction is None else token_ids("prediction", prediction)

    def candidates(
        self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: DraftContext
    ) -> list[Candidate]:
        """Return how each row's prediction goes on, by the row's own output alone."""
        found = []
        rows = zip(prefixes, plan.depth.tolist(), ctx.prompt_lengths.tolist(), strict=True)
        for row, (prefix, depth, prompt_length) in enumerate(rows):
            expected = ctx.prediction(row)
            expected = self._default if expected is None else expected
            output = prefix.tokens[prompt_length:]
            found.append(NOTHING if expected is None else self.after(output, expected, depth))
        return found

    def after(
        self, output: NDArray[np.int64], prediction: NDArray[np.int64], depth: int
    ) -> Candidate:
        """Return at most `depth` tokens of a prediction, int64 [m], that follow an output, [n].

        Of several places after the longest match the one is taken that is as far into the
        prediction as the output has come, or nearest to that.
        """
        done = len(output)
        place, matched = done, _AT_FIRST
        if not np.array_equal(output, prediction[:done]) or done >= self.min_match:
            found = matches(prediction, output[-_LONGEST:])
            if not found or found[0][1] < self.min_match:
                return NOTHING
            places, matched = found[0]
            place = int(places[np.abs(places - done).argmin()])
        tokens = prediction[place : place + depth]
        confidence = match_confidence(matched, np.arange(1, len(tokens) + 1))
        kept = np.cumprod(confidence) >= self.min_token_prob
        return Candidate(tokens[kept], confidence[kept])
