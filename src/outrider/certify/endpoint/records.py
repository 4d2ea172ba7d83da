"""What is asked of an engine, what it answers, and what a reference says of the answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...config.params import SamplingParams

Row = NDArray[np.float64]
Ids = NDArray[np.int64]
Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """One way of asking for texts.

    Attributes:
        name: what it is about, such as "top_p".
        params: of its requests.
        tokens: how many are looked at, at most.
        weight: its share of the evidence; those of all questions add up to 1.
        ignored: parameters that hold if the engine ignores what the question is about.
        counts: whether it counts tokens: some engines count those of the prompt as well.
    """

    name: str
    params: SamplingParams
    tokens: int
    weight: float
    ignored: SamplingParams | None = None
    counts: bool = False

    @property
    def readings(self) -> dict[str, Reading]:
        """What the draws may follow, by the verdict if they do, in the order of preference."""
        found = {"honoured": Reading(self.params)}
        if self.counts:
            found["honoured, with the prompt's tokens"] = Reading(self.params, prompt_counts=True)
        if self.ignored is not None:
            found["ignored"] = Reading(self.ignored)
        return found


@dataclass(frozen=True, slots=True)
class Reading:
    """How an engine may understand a request.

    Attributes:
        params: by which it draws.
        prompt_counts: whether tokens of the prompt are penalised as those of the output.
    """

    params: SamplingParams
    prompt_counts: bool = False


@dataclass(frozen=True, slots=True)
class Text:
    """One finished text.

    Attributes:
        prompt, tokens: ids.
        text: what the tokens read as.
        finish_reason: as the engine has it.
        body: the request.
        logprobs: of the tokens, as they came with them; None if none were asked for.
        usage, metrics: the engine's own counts; empty where it gives none.
    """

    prompt: Tokens
    tokens: Tokens
    text: str
    finish_reason: str | None
    body: dict[str, Any]
    logprobs: tuple[float | None, ...] | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """What the next token may be: listed tokens, and any other one.

    Attributes:
        ids: int64 [K]; those of a target or a draft model, before any parameter, or what a
            request's parameters make of them, likeliest first.
        probs: float64 [K + 1], the last one of all other tokens together.
        log_sum: the logarithm of the sum of exponentials of the logits, by which these are known;
            None if it is not.
        most: no token that is not listed is likelier.
    """

    ids: Ids
    probs: Row
    log_sum: float | None = None
    most: float = 1.0

    def at(self, ids: Ids) -> Row:
        """Return the probabilities of some tokens [K], and behind them that of all others."""
        order = np.argsort(self.ids)
        place = np.searchsorted(self.ids[order], ids).clip(max=len(order) - 1)
        found = order[place]
        probs = np.where(self.ids[found] == ids, self.probs[found], 0.0)
        return np.append(probs, max(0.0, 1.0 - probs.sum()))

    def of(self, token: int) -> float:
        """Return the probability of a token; 0 for one that is not listed."""
        return float(self.probs[:-1][self.ids == token].sum())

    def cell(self, token: int) -> int:
        """Return the place of a token; K for one that is not listed."""
        found = np.flatnonzero(self.ids == token)
        return int(found[0]) if len(found) else len(self.ids)


def listed(ids: Ids, probs: Row, log_sum: float | None = None, most: float = 1.0) -> Cells:
    """Return the cells of listed tokens [K], the others' probability being what is left."""
    return Cells(ids, np.append(probs, max(0.0, 1.0 - float(probs.sum()))), log_sum, most)
