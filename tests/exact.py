"""The target's law by plain recursion, to hold the engine's against."""

from __future__ import annotations

import numpy as np

from outrider import SamplingParams
from outrider.models.tabular import TabularModel

Law = dict[tuple[int, ...], float]


def filtered(row: np.ndarray, params: SamplingParams) -> np.ndarray:
    """The law that sampling parameters make of a row of probabilities, from their definitions."""
    if params.greedy:
        return np.eye(len(row))[int(row.argmax())]
    with np.errstate(divide="ignore"):
        scores = np.log(row) / params.temperature
    if params.top_k:
        scores[scores < np.sort(scores)[::-1][min(params.top_k, len(row)) - 1]] = -np.inf
    law = np.exp(scores - scores.max())
    law /= law.sum()
    order = np.argsort(-law)
    before = np.cumsum(law[order]) - law[order]
    kept = np.zeros(len(law), dtype=bool)
    kept[order] = before < params.top_p
    kept &= law >= params.min_p * law.max()
    law = np.where(kept, law, 0)
    return law / law.sum()


def target_law(target: TabularModel, prompt: tuple[int, ...], params: SamplingParams) -> Law:
    """Every output of sampling token by token, with its probability."""
    law: Law = {}

    def extend(output: tuple[int, ...], probability: float) -> None:
        ended = bool(output) and output[-1] in params.stop_token_ids
        if ended or len(output) == params.max_tokens:
            law[output] = probability
            return
        row = filtered(target.probabilities(prompt + output).copy(), params)
        for token in np.flatnonzero(row):
            extend((*output, int(token)), probability * float(row[token]))

    extend((), 1.0)
    return law


def distance(found: Law, expected: Law) -> float:
    """The largest difference in the probability of any output."""
    return max(abs(found.get(o, 0.0) - expected.get(o, 0.0)) for o in found.keys() | expected)
