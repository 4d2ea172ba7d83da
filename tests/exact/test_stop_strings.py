"""Stop strings and log-probabilities: the same with speculation as without."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from outrider import SamplingParams, SpeculativeConfig, SpeculativeDecoder
from outrider.certify import exact_distribution
from outrider.certify.reference import distance
from outrider.runtimes.tabular import TabularModel, mock_pair

SHAPES: list[dict[str, Any]] = [
    {"num_speculative_tokens": 4},
    {"num_speculative_tokens": 3, "verification": "token"},
    {"num_speculative_tokens": 3, "verification": "coupled"},
    {"num_speculative_tokens": 3, "tree_shape": (2, 2, 1)},
]


class Bytes:
    """A tokenizer of pieces of UTF-8: some are half a character, some are several."""

    PIECES = (b"a", b"b", b"ab", b"\xc3", b"\xa9", b"", b"ba\xc3", b"\xe2\x82", b"\xac!")

    def encode(self, text: str) -> list[int]:
        raise AssertionError("prompts are given as token ids here")

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        return b"".join(self.PIECES[i] for i in token_ids).decode(errors="replace")


V = len(Bytes.PIECES)


def reference(
    target: TabularModel, params: SamplingParams, prompt: tuple[int, ...]
) -> dict[tuple[int, ...], float]:
    """The distribution of outputs that end once their text holds a stop string, by recursion."""
    distribution: dict[tuple[int, ...], float] = {}
    decode = Bytes().decode

    def extend(output: tuple[int, ...], probability: float) -> None:
        ended = any(stop in decode(list(output)) for stop in params.stop)
        if ended or len(output) == params.max_tokens:
            distribution[output] = distribution.get(output, 0.0) + probability
            return
        for token, mass in enumerate(target.probabilities(prompt + output)):
            if mass > 0:
                extend((*output, token), probability * mass)

    extend((), 1.0)
    return distribution


@pytest.mark.parametrize("speculation", SHAPES, ids=str)
@pytest.mark.parametrize("stop", [("é",), ("bab",), ("€!", "aa")])
def test_the_distribution_with_stop_strings_across_tokens_and_characters(
    speculation: dict[str, Any], stop: tuple[str, ...]
) -> None:
    rows = [[0.2, 0.1, 0.0, 0.2, 0.2, 0.0, 0.1, 0.1, 0.1], [0.1, 0.3, 0.1, 0, 0.2, 0.1, 0, 0, 0.2]]
    target = TabularModel(lambda prefix: rows[sum(prefix) % 2], V)
    draft = TabularModel(lambda prefix: rows[len(prefix) % 2], V)
    decoder = SpeculativeDecoder(
        target, draft, tokenizer=Bytes(), config=SpeculativeConfig(depth="fixed", **speculation)
    )
    params = SamplingParams(max_tokens=2, stop=stop)
    found = exact_distribution(decoder, (0,), params)
    assert distance(found, reference(target, params, (0,))) < 1e-12


@pytest.mark.parametrize("speculation", SHAPES, ids=str)
def test_text_is_cut_before_the_stop_string_and_streams_as_it_ends(
    speculation: dict[str, Any],
) -> None:
    target, draft = mock_pair(V, 5)
    decode = Bytes().decode
    config = SpeculativeConfig(depth="fixed", **speculation)
    decoder = SpeculativeDecoder(target, draft, tokenizer=Bytes(), config=config)
    stopped = 0
    for seed in range(30):
        stops = ("abb", "é", "€") if seed % 2 else "ba"
        params = SamplingParams(max_tokens=12, seed=seed, stop=stops)
        out = decoder.generate([seed % V], params)
        whole = decode(list(out.token_ids))
        holds = [stop for stop in params.stop if stop in whole]
        assert (out.finish_reason == "stop") == bool(holds)
        assert not any(stop in decode(list(out.token_ids[:-1])) for stop in params.stop)
        if holds:
            stopped += 1
            assert out.text == whole[: min(whole.index(stop) for stop in holds)]
        else:
            assert out.text == whole
        events = list(decoder.stream([seed % V], params))
        assert "".join(event.text or "" for event in events) == out.text
        assert tuple(event.token_id for event in events) == out.token_ids
    assert 5 < stopped < 30


def test_a_stop_string_before_min_tokens_does_not_end_a_request() -> None:
    target = TabularModel(lambda _: [0.5, 0.5, 0, 0, 0, 0, 0, 0, 0], V)
    decoder = SpeculativeDecoder(target, target, tokenizer=Bytes())
    early = 0
    for seed in range(40):
        params = SamplingParams(max_tokens=12, min_tokens=6, seed=seed, stop="ab")
        out = decoder.generate([0], params)
        text = Bytes().decode(list(out.token_ids))
        early += "ab" in text[:5]
        assert len(out.token_ids) >= 6
        assert "ab" not in text[4:-1]
        assert (out.finish_reason == "stop") == text.endswith("ab")
    assert early > 20


def byte_runs() -> PreTrainedTokenizerFast:
    """A tokenizer whose byte tokens are read together, as Llama 2's: "a", then bytes."""
    pieces = ("<unk>", "a", "<0x0A>", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>")
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    model = models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, unk_token="<unk>")
    tokenizer = Tokenizer(model)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


@pytest.mark.parametrize("stop", ["\n", "\N{REPLACEMENT CHARACTER}"])
def test_a_stop_string_that_a_later_token_makes_unreadable_ends_a_request(stop: str) -> None:
    """A line's end, a byte token, and after it in the same round the first byte of a character."""
    text = [1, 2, 3, 4, 5, 6, 1, 1]
    target = TabularModel(lambda prefix: np.eye(7)[text[len(prefix) - 1]], 7)
    ended = {"\n": [1, 2], "\N{REPLACEMENT CHARACTER}": [1, 2, 3]}[stop]
    for k in range(7):
        config = SpeculativeConfig(depth="fixed", num_speculative_tokens=k)
        decoder = SpeculativeDecoder(target, target, tokenizer=byte_runs(), config=config)
        out = decoder.generate([0], SamplingParams(max_tokens=8, stop=stop))
        assert (list(out.token_ids), out.finish_reason) == (ended, "stop"), k


@pytest.mark.parametrize("speculation", SHAPES, ids=str)
def test_text_is_cut_where_a_stop_token_completes_a_stop_string(
    speculation: dict[str, Any],
) -> None:
    target, draft = mock_pair(V, 5)
    config = SpeculativeConfig(depth="fixed", **speculation)
    decoder = SpeculativeDecoder(target, draft, tokenizer=Bytes(), config=config)
    both = 0
    for seed in range(40):
        params = SamplingParams(max_tokens=12, seed=seed, stop="b", stop_token_ids=(2,))
        out = decoder.generate([seed % V], params)
        assert out.text is not None
        assert "b" not in out.text
        both += out.token_ids[-1] == 2
        assert "".join(e.text or "" for e in decoder.stream([seed % V], params)) == out.text
    assert both >= 5


@pytest.mark.parametrize("speculation", SHAPES, ids=str)
def test_logprobs_are_the_targets_own_for_every_origin(speculation: dict[str, Any]) -> None:
    target, draft = mock_pair(6, 7, 0.5)
    decoder = SpeculativeDecoder(
        target, draft, config=SpeculativeConfig(depth="fixed", **speculation)
    )
    rng = random.Random(3)
    asked = [
        SamplingParams(
            max_tokens=20,
            temperature=rng.choice([0.0, 0.6, 1.0]),
            top_k=rng.choice([0, 3]),
            frequency_penalty=rng.choice([0.0, 1.0]),
            logprobs=top,
            seed=i,
        )
        for i, top in enumerate([0, None, 3, 20])
    ]
    prompts = [(i,) for i in range(4)]
    outputs = decoder.generate(prompts, asked)
    origins = set()
    events = list(decoder.stream(prompts, asked))
    for prompt, params, out in zip(prompts, asked, outputs, strict=True):
        (choice,) = out.choices
        own = [event for event in events if event.request == prompt[0]]
        origins |= {event.origin for event in own}
        if params.logprobs is None:
            assert choice.logprobs is None
            assert all(event.logprob is None for event in own)
            continue
        assert choice.logprobs is not None
        history = prompt
        for event, entry in zip(own, choice.logprobs, strict=True):
            distribution = torch.from_numpy(target.probabilities(history)).log()
            assert entry.token_id == event.token_id
            assert (
                entry.logprob == event.logprob == pytest.approx(float(distribution[entry.token_id]))
            )
            best = distribution.topk(min(params.logprobs, 6))
            assert [token for token, _ in entry.top] == best.indices.tolist()
            assert [value for _, value in entry.top] == pytest.approx(best.values.tolist())
            assert event.top_logprobs == entry.top
            history = (*history, entry.token_id)
    assert origins == {"draft", "correction", "bonus"}
