"""Processors of a user's own: each hypothesis has its memory, and what is not reached not a say."""

from __future__ import annotations

import copy
import re
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf

from outrider import (
    NgramDrafter,
    PredictionDrafter,
    SamplingParams,
    SpeculativeConfig,
    SpeculativeDecoder,
    StatefulProcessor,
)
from outrider.certify import exact_distribution
from outrider.certify.reference import distance
from outrider.errors import DegenerateDistributionError
from outrider.runtimes.tabular import TabularModel, mock_pair
from outrider.sampling.pipeline import LogitsPipeline
from tests.support.alphabet import alphabet

TOLERANCE = 1e-12
V = 3
PROMPT = (0, 1)
SHAPES: list[dict[str, Any]] = [
    {"num_speculative_tokens": 2, "verification": "block"},
    {"num_speculative_tokens": 3, "verification": "token"},
    {"num_speculative_tokens": 2, "verification": "coupled"},
    {"num_speculative_tokens": 2, "draft_sample_method": "greedy"},
    {"tree_shape": (2, 1), "verification": "traversal"},
    {"tree_shape": (2, 1), "tree_children": "with_replacement", "verification": "recursive"},
    {"tree_shape": (2, 1), "verification": "coupled"},
]


def decoder_of(target: Any, draft: Any, speculation: dict[str, Any], **more: Any) -> Any:
    config = SpeculativeConfig(depth="fixed", **speculation)
    return SpeculativeDecoder(target, draft, config=config, **more)


class Echo:
    """Adds what it remembers of the logits before, and counts its calls."""

    def __init__(self) -> None:
        self.calls = 0
        self.memory: Any = 0.0

    def __call__(self, history: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        assert len(history) == len(PROMPT) + self.calls, "called once a position, in order"
        self.calls += 1
        self.memory = 0.6 * self.memory + logits
        return logits - 0.5 * self.memory + 0.1 * self.calls * int(history[-1])


class Lax(Echo):
    """An `Echo` that does not say when it is called out of turn."""

    def __call__(self, history: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        self.calls = len(history) - len(PROMPT)
        return super().__call__(history, logits)


def echo_distribution(
    target: TabularModel, length: int, temperature: float
) -> dict[tuple[int, ...], float]:
    """The distribution of decoding token by token with an `Echo`."""
    distribution: dict[tuple[int, ...], float] = {}

    def extend(output: tuple[int, ...], probability: float, echo: Echo) -> None:
        if len(output) == length:
            distribution[output] = probability
            return
        echo = copy.deepcopy(echo)
        history = (*PROMPT, *output)
        logits = torch.from_numpy(target.probabilities(history)).log()
        row = (echo(torch.tensor(history), logits) / temperature).softmax(-1)
        for token, share in enumerate(row.tolist()):
            extend((*output, token), probability * share, echo)

    extend((), 1.0, Echo())
    return distribution


def error(speculation: dict[str, Any], processor: StatefulProcessor) -> float:
    """The largest error in an output's probability; infinite where decoding fails."""
    target, draft = mock_pair(V, 1)
    params = SamplingParams(max_tokens=3, temperature=0.8, logits_processors=(processor,))
    try:
        found = exact_distribution(decoder_of(target, draft, speculation), PROMPT, params)
    except (DegenerateDistributionError, IndexError):
        # The same draws led to other distributions the second time.
        return float("inf")
    return distance(found, echo_distribution(target, 3, 0.8))


@pytest.mark.parametrize("speculation", [{"num_speculative_tokens": 0}, *SHAPES], ids=str)
def test_the_distribution_under_a_processor_that_remembers(speculation: dict[str, Any]) -> None:
    processor = StatefulProcessor(Echo())
    assert error(speculation, processor) < TOLERANCE
    assert processor.processor.calls == 0, "the request's own is not called"


@pytest.mark.parametrize("speculation", [SHAPES[0], SHAPES[2], SHAPES[4]], ids=str)
def test_a_memory_that_hypotheses_share_is_seen(
    speculation: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted faults: forks that are one and the same; a memory of tokens that were refused."""
    assert error(speculation, StatefulProcessor(Lax())) < TOLERANCE
    assert error(speculation, StatefulProcessor(Lax(), lambda processor: processor)) > 1e-3
    processors = LogitsPipeline.processors

    def last_called(self: LogitsPipeline, row: int, path: Any) -> Any:
        called = [forks for (owner, _), forks in self._after.items() if owner == row]
        return called[-1] if called else processors(self, row, path)

    monkeypatch.setattr(LogitsPipeline, "processors", last_called)
    assert error(speculation, StatefulProcessor(Lax())) > 1e-3


def watermark() -> Any:
    return tf.SynthIDTextWatermarkLogitsProcessor(
        ngram_len=3,
        keys=[654, 400, 836, 123],
        sampling_table_size=2**8,
        sampling_table_seed=0,
        context_history_size=16,
        device=torch.device("cpu"),
    )


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("processor", [Echo, watermark])
def test_coupled_text_is_that_of_plain_decoding(temperature: float, processor: Any) -> None:
    """SynthID remembers the contexts that it has marked, and leaves them alone later."""
    target, draft = mock_pair(12, 5, agreement=0.7)
    plain = decoder_of(target, None, {"verification": "coupled"})
    for speculation in (SHAPES[2], {"verification": "coupled", "tree_shape": (2, 2)}):
        decoder = decoder_of(target, draft, speculation)
        for seed in range(2):
            own = (StatefulProcessor(processor()), lambda history, logits: logits * 1.1)
            params = SamplingParams(
                max_tokens=15,
                n=2,
                seed=seed,
                temperature=temperature,
                frequency_penalty=0.5,
                logits_processors=own,
            )
            mates = [SamplingParams(max_tokens=9, seed=1), SamplingParams(temperature=0)]
            found = decoder.generate([PROMPT, (1, 2), (1, 2)], [params, *mates])[0]
            expected = plain.generate(PROMPT, params)
            assert [c.token_ids for c in found.choices] == [c.token_ids for c in expected.choices]


def test_processors_are_not_called_beyond_a_rows_own_depth() -> None:
    """Rows of a batch are drafted to different depths; deeper columns hold tokens of no meaning."""
    decoder = decoder_of(*mock_pair(V, 2), {"num_speculative_tokens": 4})
    lengths: list[int] = []

    def watch(history: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        lengths.append(len(history))
        return logits

    short = SamplingParams(max_tokens=3, logits_processors=(watch,), depths=(1, 1, 1))
    decoder.generate([PROMPT, PROMPT], [short, SamplingParams(max_tokens=20)])
    assert max(lengths) <= len(PROMPT) + 2


FOLLOWS = {0: [1, 2], 1: [0, 3], 2: [0]}
END = 3


def trie(history: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Allows what follows in a table, and fails after the end and after any other history."""
    output = history[2:].tolist()
    for before, after in pairwise(output):
        if after not in FOLLOWS[before]:
            raise KeyError(output)
    allowed = FOLLOWS[output[-1]] if output else [0, 1, 2]
    kept = torch.full_like(logits, -torch.inf)
    kept[allowed] = logits[allowed]
    return kept


@pytest.mark.parametrize("kind", ["model", "ngram", "prediction"])
@pytest.mark.parametrize("speculation", SHAPES, ids=str)
def test_a_processor_that_fails_off_the_path_changes_nothing(
    speculation: dict[str, Any], kind: str
) -> None:
    if kind != "model" and ("tree_shape" in speculation or "draft_sample_method" in speculation):
        pytest.skip("look-ups draft chains")
    target, draft = mock_pair(4, 3)
    drafter = {"model": draft, "ngram": NgramDrafter(2)}.get(
        kind, PredictionDrafter([0, 0, 1, 3, 1, 2])
    )
    params = SamplingParams(max_tokens=4, stop_token_ids=(END,), logits_processors=(trie,))
    expected: dict[tuple[int, ...], float] = {}

    def extend(output: tuple[int, ...], probability: float) -> None:
        if END in output or len(output) == 4:
            expected[output] = probability
            return
        logits = torch.from_numpy(target.probabilities((*PROMPT, *output))).log()
        row = trie(torch.tensor((*PROMPT, *output)), logits).softmax(-1)
        for token in row.nonzero().flatten().tolist():
            extend((*output, token), probability * float(row[token]))

    extend((), 1.0)
    found = exact_distribution(decoder_of(target, drafter, speculation), PROMPT, params)
    assert distance(found, expected) < TOLERANCE


LETTERS = alphabet(("a", "b", "c"))
SAYS = "abcabc"


def writer() -> TabularModel:
    """A model that writes `SAYS` again and again."""

    def rows(prefix: tuple[int, ...]) -> Any:
        return np.eye(4)["abc".index(SAYS[(len(prefix) - 1) % len(SAYS)])] * 0.97 + 0.0075

    return TabularModel(rows, 4)


def outcome(decoder: Any, params: SamplingParams) -> tuple[str, str]:
    """What a stream shows before it ends, and the error that it ends with."""
    text = ""
    try:
        for event in decoder.stream([3], params):
            text += event.text or ""
    except Exception as error:
        said = re.sub(r"sequence \d+", "it", str(error))
        return text, f"{type(error).__name__}: {said}"
    return text, ""


STOPS: list[dict[str, Any]] = [
    {"stop": "bc"},
    {"stop": "ca"},
    {"stop_token_ids": (2,)},
    {"max_tokens": 3},
    {},
]


@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("length", range(1, 7))
@pytest.mark.parametrize("stops", STOPS, ids=str)
def test_a_request_fails_where_plain_decoding_fails_and_nowhere_else(
    stops: dict[str, Any], length: int, k: int
) -> None:
    """The processor fails once there are so many tokens: before the stop, at it, or behind."""
    asked: list[int] = []

    def limited(history: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        asked.append(len(history) - 1)
        if len(history) > length:
            raise RuntimeError("too long")
        return logits

    params = SamplingParams(
        **({"max_tokens": 6, "temperature": 0} | stops), logits_processors=(limited,)
    )
    model = writer()
    plain = outcome(decoder_of(model, None, {}, tokenizer=LETTERS), params)
    most = max(asked)
    asked.clear()
    drafted = decoder_of(model, model, {"num_speculative_tokens": k}, tokenizer=LETTERS)
    assert outcome(drafted, params) == plain
    if not plain[1]:
        assert max(asked) == most, "nothing behind the stop is asked"


@pytest.mark.parametrize("k", [0, 1, 3])
def test_logits_that_mean_nothing_count_where_decoding_comes_to_them(k: int) -> None:
    """The request forbids all that could follow "abc": no matter if it ends there."""
    model = writer()
    every = tuple((2, token) for token in range(4))
    decoder = decoder_of(model, model, {"num_speculative_tokens": k}, tokenizer=LETTERS)
    params = SamplingParams(max_tokens=6, temperature=0, bad_words=every)
    text, error = outcome(decoder, params)
    assert (text, error.partition(":")[0]) == ("abc", "DegenerateDistributionError")
    for stops in ({"stop_token_ids": (2,)}, {"max_tokens": 3}, {"stop": "bc"}):
        params = SamplingParams(**({"max_tokens": 6} | stops), temperature=0, bad_words=every)
        assert outcome(decoder, params)[1] == "", stops
