"""Processors that remember: each hypothesis has a memory of its own, as plain decoding has one."""

from __future__ import annotations

import copy
from threading import Lock
from typing import Any

import pytest
import torch
import transformers as tf

from outrider import (
    SamplingParams,
    SpeculativeConfig,
    SpeculativeDecoder,
    StatefulProcessor,
    StructuredOutput,
)
from outrider.certify import exact_distribution
from outrider.certify.reference import distance
from outrider.errors import DegenerateDistributionError, InvalidConfigError
from outrider.runtimes.tabular import TabularModel, mock_pair
from outrider.sampling.shaping import Shaper
from tests.alphabet import alphabet

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
    {"num_speculative_tokens": 2, "tree_budget": 3, "verification": "recursive"},
    {"tree_shape": (2, 1), "verification": "coupled"},
]


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


def error(speculation: dict[str, Any]) -> float:
    target, draft = mock_pair(V, 1)
    decoder = SpeculativeDecoder(
        target, draft, config=SpeculativeConfig(depth="fixed", **speculation)
    )
    processor = StatefulProcessor(Echo())
    params = SamplingParams(max_tokens=3, temperature=0.8, logits_processors=(processor,))
    found = exact_distribution(decoder, PROMPT, params)
    assert processor.processor.calls == 0, "the request's own is not called"
    return distance(found, echo_distribution(target, 3, 0.8))


@pytest.mark.parametrize("speculation", [{"num_speculative_tokens": 0}, *SHAPES], ids=str)
def test_the_distribution_under_a_processor_that_remembers(speculation: dict[str, Any]) -> None:
    assert error(speculation) < TOLERANCE


class Lax(Echo):
    """An `Echo` that does not say when it is called out of turn."""

    def __call__(self, history: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        self.calls = len(history) - len(PROMPT)
        return super().__call__(history, logits)


def broken(speculation: dict[str, Any], processor: StatefulProcessor) -> bool:
    """Whether the distribution is another, or none at all."""
    target, draft = mock_pair(V, 1)
    decoder = SpeculativeDecoder(
        target, draft, config=SpeculativeConfig(depth="fixed", strict=True, **speculation)
    )
    params = SamplingParams(max_tokens=3, temperature=0.8, logits_processors=(processor,))
    try:
        return (
            distance(exact_distribution(decoder, PROMPT, params), echo_distribution(target, 3, 0.8))
            > 1e-3
        )
    except (DegenerateDistributionError, IndexError):
        # The same draws led to other distributions the second time.
        return True


@pytest.mark.parametrize("speculation", SHAPES, ids=str)
def test_a_memory_that_hypotheses_share_is_seen(speculation: dict[str, Any]) -> None:
    """Planted fault: forks that are one and the same."""
    assert not broken(speculation, StatefulProcessor(Lax()))
    assert broken(speculation, StatefulProcessor(Lax(), lambda processor: processor))


@pytest.mark.parametrize("speculation", SHAPES, ids=str)
def test_a_memory_of_rejected_tokens_is_seen(
    speculation: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted fault: the next round goes on from the last call of this one, kept or not."""
    processors = Shaper.processors

    def last_called(self: Shaper, row: int, path: Any) -> Any:
        called = [forks for (owner, _), forks in self._after.items() if owner == row]
        return called[-1] if called else processors(self, row, path)

    monkeypatch.setattr(Shaper, "processors", last_called)
    assert broken(speculation, StatefulProcessor(Lax()))


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_text_is_that_of_plain_decoding(temperature: float) -> None:
    target, draft = mock_pair(9, 4)
    for speculation in (SHAPES[2], {"verification": "coupled", "tree_shape": (3, 2)}):
        decoder = SpeculativeDecoder(
            target, draft, config=SpeculativeConfig(depth="fixed", **speculation)
        )
        for seed in range(5):
            params = SamplingParams(
                max_tokens=25,
                seed=seed,
                temperature=temperature,
                n=2,
                frequency_penalty=0.5,
                logits_processors=(StatefulProcessor(Echo()), lambda history, logits: logits * 1.1),
            )
            mates = [SamplingParams(max_tokens=9, seed=1), SamplingParams(temperature=0)]
            found = decoder.generate([PROMPT, *[(1, 2)] * 2], [params, *mates])[0]
            plain = SpeculativeDecoder(
                target, config=SpeculativeConfig(depth="fixed", verification="coupled")
            )
            expected = plain.generate(PROMPT, params)
            assert [c.token_ids for c in found.choices] == [c.token_ids for c in expected.choices]


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
def test_transformers_watermark_is_that_of_plain_decoding(temperature: float) -> None:
    """SynthID remembers the contexts that it has marked, and leaves them alone the second time."""
    vocab_size = 12
    # A flat distribution over few tokens repeats its contexts.
    target = mock_pair(vocab_size, 5)[0]
    draft = mock_pair(vocab_size, 5, agreement=0.7)[1]
    marked = 0
    for speculation in (SHAPES[2], {"verification": "coupled", "tree_shape": (2, 2)}):
        decoder = SpeculativeDecoder(
            target, draft, config=SpeculativeConfig(depth="fixed", **speculation)
        )
        plain = SpeculativeDecoder(
            target, config=SpeculativeConfig(depth="fixed", verification="coupled")
        )
        for seed in range(3):
            params = SamplingParams(
                max_tokens=30,
                seed=seed,
                temperature=temperature,
                logits_processors=(StatefulProcessor(watermark()),),
            )
            found = decoder.generate(PROMPT, params).token_ids
            expected = plain.generate(PROMPT, params).token_ids
            assert found == expected
            assert list(expected) == by_hand(target, plain, params)
            bare = SamplingParams(max_tokens=30, seed=seed, temperature=temperature)
            marked += found != plain.generate(PROMPT, bare).token_ids
    assert marked


def by_hand(target: TabularModel, plain: SpeculativeDecoder, params: SamplingParams) -> list[int]:
    """The same with one watermark called token by token, on a target that is told of its logits."""
    mark = watermark()
    rows: dict[tuple[int, ...], Any] = {}

    def distribution(prefix: tuple[int, ...]) -> Any:
        if prefix not in rows:
            logits = torch.from_numpy(target.probabilities(prefix)).log()
            rows[prefix] = mark(torch.tensor([prefix]), logits[None])[0].softmax(-1).numpy()
        return rows[prefix]

    marked = SpeculativeDecoder(TabularModel(distribution, target.vocab_size), config=plain.config)
    bare = SamplingParams(
        max_tokens=params.max_tokens, seed=params.seed, temperature=params.temperature
    )
    return list(marked.generate(PROMPT, bare).token_ids)


def test_memory_and_form_go_together() -> None:
    tokenizer = alphabet(("a", "b", "ab"))
    target, draft = mock_pair(5, 6)
    asked = StructuredOutput(regex="(ab|b){2,4}")
    params = SamplingParams(
        max_tokens=12,
        seed=3,
        stop_token_ids=(3,),
        structured_output=asked,
        logits_processors=(StatefulProcessor(Echo()),),
    )
    texts = {
        SpeculativeDecoder(
            target,
            draft,
            tokenizer=tokenizer,
            config=SpeculativeConfig(depth="fixed", verification="coupled", **speculation),
        )
        .generate(PROMPT, params)
        .token_ids
        for speculation in ({"num_speculative_tokens": 0}, {}, {"tree_shape": (2, 2)})
    }
    assert len(texts) == 1


def test_processors_are_not_called_beyond_a_rows_own_depth() -> None:
    """Rows of a batch are drafted to different depths; deeper columns hold tokens of no meaning."""
    target, draft = mock_pair(V, 2)
    decoder = SpeculativeDecoder(
        target, draft, config=SpeculativeConfig(depth="fixed", num_speculative_tokens=4)
    )
    longest = len(PROMPT)

    def watch(history: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        nonlocal longest
        longest = max(longest, len(history))
        return logits

    short = SamplingParams(max_tokens=3, logits_processors=(watch,), depths=(1, 1, 1))
    decoder.generate([PROMPT, PROMPT], [short, SamplingParams(max_tokens=20)])
    # Two tokens emitted, and at most one drafted beyond: never those of the row beside it.
    assert longest <= len(PROMPT) + 2


def test_what_cannot_remember_apart_is_refused() -> None:
    def function(history: Any, logits: Any) -> Any:
        return logits

    with pytest.raises(InvalidConfigError, match="a callable object"):
        StatefulProcessor(3)
    with pytest.raises(InvalidConfigError, match="a function's is not copied"):
        StatefulProcessor(function)
    with pytest.raises(InvalidConfigError, match="fork="):
        StatefulProcessor(Echo(), fork=None)
    StatefulProcessor(function, fork=lambda processor: processor)

    locked = Echo()
    locked.memory = Lock()
    decoder = SpeculativeDecoder(mock_pair(V)[0])
    with pytest.raises(InvalidConfigError, match=r"logits_processors=.*can be copied"):
        decoder.start(PROMPT, SamplingParams(logits_processors=(StatefulProcessor(locked),)))
