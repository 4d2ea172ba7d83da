"""What is looked at in a draw: numbers that each token would give, known before it is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from ...config.params import SamplingParams
from ..reference import filtered, processed
from .records import Cells, Reading, Row, Text, Tokens

BINS = 5
"""Parts of the probability, the likeliest tokens first: the probability integral transform."""

FEATURES = (
    "how often the likeliest token comes",
    "how unlikely tokens are",
    *(f"how often tokens of fifth {n} of the probability come" for n in range(1, BINS + 1)),
    "tokens that the parameters exclude",
    "how often tokens of the output come again",
    "how often the token comes that a look-up proposes",
    "how often the draft model's likeliest token comes",
    "how likely tokens are by the draft model",
    "how likely tokens are without the parameter",
)

COUNTED = frozenset(
    n for n, name in enumerate(FEATURES) if name.startswith(("how often", "tokens that"))
)
"""Those that say whether something comes; the others are numbers of their own."""

_LONGEST = 4
"""Look-ups go by the last so many tokens, or fewer."""

_MOST_OTHERS = 2**16
"""A bound on what is computed: fewer tokens are likelier each, and are kept by filters first."""

PLAIN = SamplingParams()


@dataclass(frozen=True, slots=True)
class Place:
    """One token of a text, and what is known before it.

    Attributes:
        listing: of the target.
        prompt, output: the tokens before it.
        draft: the draft model's distribution, if there is one.
    """

    listing: Cells
    prompt: Tokens
    output: Tokens
    draft: Cells | None = None


def cells_of(place: Place, params: SamplingParams) -> Cells | None:
    """Return the distribution that parameters make; None where the listing does not say it.

    A listing of all tokens always says it. One of the likeliest does at temperature 1 without
    filters, and where filters leave listed tokens alone, if it lists what else the parameters
    touch. A repetition penalty depends on the signs of logits, which log-probabilities do not say.

    Args:
        place: before the draw.
        params: of the request.
    """
    listing = place.listing
    if not len(listing.ids):
        return None
    rest, narrowed = float(listing.probs[-1]), _narrowed(params)
    whole = rest < 1e-6 and listing.most == 1
    touched, raised = _touched(place, params)
    if not whole:
        missing = touched - set(listing.ids.tolist())
        if missing and (raised & missing or not params.top_k):
            return None
        warmed = params.temperature != 1 and not params.top_k
        if params.allowed_token_ids is not None or warmed:
            return None
    if params.repetition_penalty != 1 and listing.log_sum is None:
        return None
    size = 1 + max(int(listing.ids.max()), *touched, *place.prompt, *place.output)
    # To filters the others are as few tokens as may be, each as likely as one may be.
    most = min(listing.most, float(listing.probs[:-1].min())) if narrowed else 1.0
    full = min(int(rest / most), _MOST_OTHERS) if most else 0
    others = np.append(np.full(full, most), rest - full * most)
    row = np.append(np.zeros(size), np.zeros(1) if whole else others)
    row[listing.ids] = listing.probs[:-1]
    row *= np.exp(listing.log_sum or 0.0)
    row = processed(row, place.prompt, place.output, params)
    probs = filtered(row, params)
    rest = probs[size:].sum()
    if narrowed and rest > 0:
        return None
    # Of tokens that are as likely as the last one engines keep all, or some.
    tied = params.top_p < 1 and (row[probs == 0] == row[probs > 0].min()).any()
    if tied or (params.top_k and np.count_nonzero(probs) > params.top_k):
        return None
    ids = listing.ids[np.argsort(-probs[listing.ids], kind="stable")]
    return Cells(ids, np.append(probs[ids], rest))


def values(place: Place, cells: Cells, instead: Cells | None = None) -> Row:
    """Return the features [J, K + 1] of every token that may be drawn, NaN where there is none.

    Args:
        place: before the draw.
        cells: that are drawn from, if the hypothesis holds.
        instead: that may be drawn from instead.
    """
    probs, ids = cells.probs, cells.ids
    found = np.full((len(FEATURES), len(probs)), np.nan)
    found[0] = -1.0
    found[0, 0] = 1.0
    logs = -np.log(np.maximum(probs, 1e-300))
    mean = probs @ logs
    spread = np.sqrt(max(probs @ logs**2 - mean**2, 0.0))
    if spread > 1e-9:
        found[1] = ((logs - mean) / spread / 4).clip(-1, 1)
    ends = probs.cumsum()
    edges = np.linspace(0, 1, BINS + 1)
    for number, (low, high) in enumerate(pairwise(edges)):
        shared = (np.minimum(ends, high) - np.maximum(ends - probs, low)).clip(min=0)
        found[2 + number] = 2 * (shared / np.maximum(probs, 1e-300)).clip(max=1) - 1
    if (probs[:-1] == 0).any():
        found[7] = np.where(probs > 0, -1.0, 1.0)
    if place.output:
        found[8] = np.where(np.isin(np.append(ids, -1), place.output), 1.0, -1.0)
    proposed = looked_up((*place.prompt, *place.output))
    if proposed is not None:
        found[9] = np.where(np.append(ids, -1) == proposed, 1.0, -1.0)
    if place.draft is not None:
        likeliest = place.draft.ids[place.draft.probs[:-1].argmax()]
        found[10] = np.where(np.append(ids, -1) == likeliest, 1.0, -1.0)
        found[11] = _ratio(place.draft.at(ids), probs)
    if instead is not None:
        found[12] = _ratio(instead.at(ids), probs)
    return found


def gains(
    places: Sequence[Place],
    tokens: Tokens,
    reading: Reading,
    other: Reading | None = None,
) -> Row:
    """Return f(x) - sum p f of each token and feature, float64 [n, J]; NaN where there is none.

    Args:
        places: before each token.
        tokens: of a text.
        reading: by which they were drawn, if the hypothesis holds.
        other: that by which they may have been drawn instead.
    """
    rows = np.full((len(places), len(FEATURES)), np.nan)
    for index, (place, token) in enumerate(zip(places, tokens, strict=True)):
        cells = _read(place, reading)
        if cells is None:
            continue
        found = values(place, cells, None if other is None else _read(place, other))
        rows[index] = found[:, cells.cell(token)] - found @ cells.probs
    return rows


def rounding(
    places: Sequence[Place],
    again: Sequence[Cells],
    reading: Reading,
    other: Reading | None = None,
) -> Row:
    """Return by how much means of features change when texts are scored again, float64 [n, J].

    Args:
        places: of texts.
        again: of the same tokens, computed in other company.
        reading: by which they were drawn: at the edge of a filter rounding lets a token in or out.
        other: that by which they may have been drawn instead.
    """
    rows = np.full((len(places), len(FEATURES)), np.nan)
    for index, (place, listing) in enumerate(zip(places, again, strict=True)):
        cells = _read(place, reading)
        changed = _read(replace(place, listing=listing), reading)
        if cells is not None and changed is not None:
            found = values(place, cells, None if other is None else _read(place, other))
            rows[index] = np.abs(found @ (changed.at(cells.ids) - cells.probs))
    return rows


def looked_up(tokens: Tokens) -> int | None:
    """Return what followed the last few tokens where they stood before, the latest time."""
    for length in range(_LONGEST, 0, -1):
        end = tokens[len(tokens) - length :]
        for begin in range(len(tokens) - length - 1, -1, -1):
            if tokens[begin : begin + length] == end:
                return tokens[begin + length]
    return None


def coincidences(texts: Sequence[Text], scored: Sequence[Sequence[Place]]) -> Row:
    """Return whether two texts have equal tokens at equal places, less the probability of that.

    The first tokens are left out. Tokens that are not listed count as different.

    Args:
        texts: two, drawn at once.
        scored: what is known before each of their tokens.

    Returns:
        2 (1{x = y} - sum_v p(v) q(v)), float64 [n, 1].
    """
    rows = []
    for place in range(1, min(map(len, scored))):
        one, other = (cells_of(each[place], PLAIN) for each in scored)
        if one is None or other is None:
            continue
        first, second = (text.tokens[place] for text in texts)
        common = other.at(one.ids)[:-1]
        same = first == second and first in one.ids and first in other.ids
        rows.append(2 * (float(same) - float(one.probs[:-1] @ common)))
    return np.array(rows, dtype=np.float64).reshape(-1, 1)


def _read(place: Place, reading: Reading) -> Cells | None:
    if reading.prompt_counts:
        place = replace(place, prompt=(), output=(*place.prompt, *place.output))
    return cells_of(place, reading.params)


def _ratio(other: Row, probs: Row) -> Row:
    """Return the logarithm of a ratio of probabilities, cut to [-1, 1]."""
    return np.asarray(np.log((other + 1e-12) / (probs + 1e-12)).clip(-2, 2) / 2)


def _touched(place: Place, params: SamplingParams) -> tuple[set[int], set[int]]:
    """Return the tokens whose own logits parameters change, and those of them that they raise."""
    biased = dict(params.biases)
    raised = {token for token, bias in biased.items() if bias > 0}
    touched = set(biased) | {word[-1] for word in params.bad_words}
    if len(place.output) < params.min_tokens:
        touched |= set(params.stop_token_ids)
    repeated = params.repetition_penalty
    counted = (params.presence_penalty, params.frequency_penalty)
    emitted = set(place.output)
    if repeated != 1:
        emitted |= set(place.prompt)
    if repeated != 1 or any(counted):
        touched |= emitted
    if repeated < 1 or min(counted) < 0:
        raised |= emitted
    return touched, raised


def _narrowed(params: SamplingParams) -> bool:
    """Whether a temperature or a filter makes another distribution."""
    return params.temperature != 1 or bool(params.top_k or params.min_p) or params.top_p < 1
