"""The target's distribution by plain recursion: an independent reference for the engine's.

Nothing here uses `outrider.sampling`, the engine, or verification. What parameters ask for is
written from their definitions, in NumPy and float64: a text is the beginning of a form if trying
finds a whole one that it begins, and a processor that remembers is copied before every call.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..config.params import SamplingParams
from ..config.processors import StatefulProcessor
from ..config.structured import StructuredOutput

Distribution = dict[tuple[int, ...], float]
Row = NDArray[np.float64]
Tokens = tuple[int, ...]

_TAIL = 2
"""How many more letters a text may need to have the form of a regex."""


class Source(Protocol):
    """What has a distribution of the next token after any prefix."""

    def probabilities(self, prefix: Tokens) -> Row:
        """The distribution [V] of the token after `prefix`, up to a factor."""
        ...


def processed(
    row: Row,
    prompt: Tokens,
    output: Tokens,
    params: SamplingParams,
    processors: Sequence[Callable[..., Any]] = (),
    texts: Sequence[str] = (),
) -> Row:
    """The distribution [V] that all but temperature and filters make of a row of probabilities [V].

    In transformers' order: logit bias, repetition penalty, presence and frequency penalties, bad
    words, allowed tokens, minimum length; then `processors` and the request's form, a choice or a
    regex over what tokens read as, `texts`. `stop_token_ids` are the only stop tokens.
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
    if params.allowed_token_ids is not None:
        others = np.setdiff1d(np.arange(len(row)), params.allowed_token_ids)
        logits[others] = -np.inf
    if len(output) < params.min_tokens:
        logits[list(params.stop_token_ids)] = -np.inf
    if processors:
        from torch import from_numpy, tensor

        for processor in processors:
            logits = processor(tensor(history), from_numpy(logits)).numpy()
    if params.structured_output is not None:
        logits = np.where(allowed(output, params, texts), logits, -np.inf)
    distribution = np.exp(logits - logits.max())
    return np.asarray(distribution / distribution.sum(), dtype=np.float64)


def whole(form: StructuredOutput, text: str) -> bool:
    """Whether a text has a form, a choice or a regex."""
    if form.choice is not None:
        return text in form.choice
    assert form.regex is not None, "only forms that are tried in a line are held against"
    return re.fullmatch(form.regex, text) is not None


def begun(form: StructuredOutput, text: str, texts: Sequence[str]) -> bool:
    """Whether some text of the tokens' letters has the form, and begins with this one."""
    if form.choice is not None:
        return any(choice.startswith(text) for choice in form.choice)
    tails = ("".join(tail) for n in range(_TAIL + 1) for tail in product(texts, repeat=n))
    return any(whole(form, text + tail) for tail in tails)


def allowed(output: Tokens, params: SamplingParams, texts: Sequence[str]) -> NDArray[np.bool_]:
    """Which tokens [V] may follow by the request's form; those without text end it."""
    form = params.structured_output
    if form is None:
        return np.ones(len(texts), dtype=np.bool_)
    text = "".join(texts[token] for token in output)
    return np.array(
        [
            begun(form, text + letters, texts)
            if letters
            else token in params.stop_token_ids and whole(form, text)
            for token, letters in enumerate(texts)
        ]
    )


def ended(output: Tokens, params: SamplingParams, texts: Sequence[str]) -> bool:
    """Whether an output is over: by its length, a stop token, a stop string, or its form."""
    if len(output) == params.max_tokens:
        return True
    if not output:
        return False
    if output[-1] in params.stop_token_ids:
        return True
    if params.stop and len(output) >= params.min_tokens:
        text = "".join(texts[token] for token in output)
        last = len(texts[output[-1]])
        # It ends in the last token's text.
        if any(stop in text[-(len(stop) - 1 + last) :] for stop in params.stop if last):
            return True
    return params.structured_output is not None and not allowed(output, params, texts).any()


def filtered(row: Row, params: SamplingParams) -> Row:
    """The distribution [V] that sampling parameters make of a row of probabilities [V].

    In transformers' order: temperature, top-k, top-p, min-p, one renormalisation.
    """
    if params.greedy:
        point_mass: Row = np.eye(len(row))[int(row.argmax())]
        return point_mass
    with np.errstate(divide="ignore"):
        scores = np.log(row) / params.temperature
    if params.top_k:
        least = np.sort(scores)[::-1][min(params.top_k, len(row)) - 1]
        scores = np.where(scores < least, -np.inf, scores)
    distribution = np.exp(scores - scores.max())
    distribution /= distribution.sum()
    order = np.argsort(-distribution)
    before = np.cumsum(distribution[order]) - distribution[order]
    kept = np.zeros(len(distribution), dtype=bool)
    kept[order] = before < params.top_p
    kept &= distribution >= params.min_p * distribution.max()
    distribution = np.where(kept, distribution, 0)
    return np.asarray(distribution / distribution.sum(), dtype=np.float64)


def target_distribution(
    target: Source,
    prompt: tuple[int, ...],
    params: SamplingParams,
    texts: Sequence[str] = (),
) -> Distribution:
    """Every output of sampling token by token, with its probability.

    Args:
        target: gives the distribution of the token after a prefix, before any filter, up to a
            factor; what depends on logits sees the logarithms.
        prompt: token ids.
        params: of the request. Processors are functions of tokens [L] and logits [V]; a form is a
            choice or a regex; the only stop tokens are `stop_token_ids`.
        texts: what each of the V tokens reads as, for stop strings and forms.
    """
    distribution: Distribution = {}
    first = [
        p.processor if isinstance(p, StatefulProcessor) else p for p in params.logits_processors
    ]

    def extend(output: Tokens, probability: float, before: list[Callable[..., Any]]) -> None:
        if ended(output, params, texts):
            distribution[output] = probability
            return
        processors, row = copy.deepcopy(before), target.probabilities(prompt + output)
        row = filtered(processed(row, prompt, output, params, processors, texts), params)
        for token in np.flatnonzero(row):
            extend((*output, int(token)), probability * float(row[token]), processors)

    extend((), 1.0, first)
    return distribution


def distance(found: Distribution, expected: Distribution) -> float:
    """The largest difference in the probability of any output."""
    outputs = found.keys() | expected.keys()
    return max(abs(found.get(o, 0.0) - expected.get(o, 0.0)) for o in outputs)
