"""The target's law by plain recursion: an independent reference to hold the engine's against.

Nothing here uses `outrider.sampling`, the engine, or verification. The filters are written from
their definitions, in NumPy and float64.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..config import SamplingParams
from ..models.tabular import TabularModel

Law = dict[tuple[int, ...], float]
Row = NDArray[np.float64]
Tokens = tuple[int, ...]


def shaped(row: Row, prompt: Tokens, output: Tokens, params: SamplingParams) -> Row:
    """The law [V] that biases, penalties and bans make of a row of probabilities [V].

    In transformers' order: logit bias, repetition penalty, presence and frequency penalties, bad
    words, minimum length; `stop_token_ids` are the only stop tokens.
    """
    with np.errstate(divide="ignore"):
        logits = np.log(row)
    for token, bias in params.biases:
        logits[token] += bias
    for token in set(prompt + output):
        factor = params.repetition_penalty
        logits[token] *= factor if logits[token] <= 0 else 1 / factor
    for token in set(output):
        logits[token] -= params.frequency_penalty * output.count(token) + params.presence_penalty
    history = prompt + output
    for word in params.bad_words:
        before = word[:-1]
        if history[len(history) - len(before) :] == before:
            logits[word[-1]] = -np.inf
    if len(output) < params.min_tokens:
        logits[list(params.stop_token_ids)] = -np.inf
    law = np.exp(logits - logits.max())
    return np.asarray(law / law.sum(), dtype=np.float64)


def filtered(row: Row, params: SamplingParams) -> Row:
    """The law [V] that sampling parameters make of a row of probabilities [V].

    In transformers' order: temperature, top-k, top-p, min-p, one renormalisation.
    """
    if params.greedy:
        atom: Row = np.eye(len(row))[int(row.argmax())]
        return atom
    with np.errstate(divide="ignore"):
        scores = np.log(row) / params.temperature
    if params.top_k:
        least = np.sort(scores)[::-1][min(params.top_k, len(row)) - 1]
        scores = np.where(scores < least, -np.inf, scores)
    law = np.exp(scores - scores.max())
    law /= law.sum()
    order = np.argsort(-law)
    before = np.cumsum(law[order]) - law[order]
    kept = np.zeros(len(law), dtype=bool)
    kept[order] = before < params.top_p
    kept &= law >= params.min_p * law.max()
    law = np.where(kept, law, 0)
    return np.asarray(law / law.sum(), dtype=np.float64)


def target_law(target: TabularModel, prompt: tuple[int, ...], params: SamplingParams) -> Law:
    """Every output of sampling token by token, with its probability.

    Args:
        target: gives the law of the token after a prefix, before any filter.
        prompt: token ids.
        params: of the request; `stop_token_ids` and `max_tokens` end an output.
    """
    law: Law = {}

    def extend(output: tuple[int, ...], probability: float) -> None:
        ended = bool(output) and output[-1] in params.stop_token_ids
        if ended or len(output) == params.max_tokens:
            law[output] = probability
            return
        row = shaped(target.probabilities(prompt + output), prompt, output, params)
        row = filtered(row, params)
        for token in np.flatnonzero(row):
            extend((*output, int(token)), probability * float(row[token]))

    extend((), 1.0)
    return law


def distance(found: Law, expected: Law) -> float:
    """The largest difference in the probability of any output."""
    outputs = found.keys() | expected.keys()
    return max(abs(found.get(o, 0.0) - expected.get(o, 0.0)) for o in outputs)
