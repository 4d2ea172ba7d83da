"""Small parts by themselves: prefixes, lookup, text, slots, verification over NumPy."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider import ModelDrafter, NgramDrafter, SamplingParams, SpeculativeDecoder, load
from outrider.certify import exact_distribution
from outrider.certify.reference import distance, target_distribution
from outrider.engine.text import StreamDecoder
from outrider.runtimes.tabular import TabularModel, mock_pair
from outrider.types.records import Distributions, DraftProposal, Prefix
from outrider.verification import METHODS, Tree


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.lists(st.integers(0, 99), max_size=5)), max_size=12)
)
def test_prefixes_are_values_whatever_is_extended_from_them(
    steps: list[tuple[int, list[int]]],
) -> None:
    made = [(Prefix(7, [1, 2]), [1, 2])]
    for index, tokens in steps:
        prefix, expected = made[index % len(made)]
        made.append((prefix.extended(tokens), expected + tokens))
    for prefix, expected in made:
        assert prefix.tokens.tolist() == expected
        assert len(prefix) == len(expected)
        assert prefix.sequence_id == 7


@pytest.mark.parametrize(
    ("tokens", "depth", "expected"),
    [
        ([1, 2, 3, 9, 1, 2, 3], 3, [9, 1, 2]),
        ([5, 1, 2, 7, 0, 2, 8, 1, 2], 2, [7, 0]),  # the longer match, though the other is nearer
        ([2, 4, 2, 6, 2], 1, [6]),  # of equal matches the most recent
        ([1, 2, 1, 2], 5, [1, 2, 1, 2, 1]),  # a match that runs into the end repeats
        ([1, 2, 3], 4, []),
        ([1], 4, []),
        ([1, 1], 0, []),
    ],
)
def test_lookup_takes_the_longest_and_then_the_most_recent_match(
    tokens: list[int], depth: int, expected: list[int]
) -> None:
    assert NgramDrafter(5).lookup(np.array(tokens), depth).tolist() == expected


def test_lookup_equals_its_definition_on_random_sequences() -> None:
    rng = random.Random(0)
    for _ in range(400):
        tokens = [rng.randrange(3) for _ in range(rng.randrange(1, 25))]
        low, high = rng.choice([(1, 1), (1, 3), (2, 4), (3, 5)])
        found = NgramDrafter(high, low).lookup(np.array(tokens), 4).tolist()
        expected: list[int] = []
        for length in range(min(high, len(tokens) - 1), low - 1, -1):
            starts = [
                start
                for start in range(len(tokens) - length)
                if tokens[start : start + length] == tokens[-length:]
            ]
            if starts:
                follow = tokens[starts[-1] + length :][:4]
                expected = (follow * 4)[:4]
                break
        assert found == expected, (tokens, low, high)


@pytest.fixture(scope="module")
def tokenizer() -> object:
    return load("demo").tokenizer


@pytest.mark.parametrize(
    "text", ["def f(x):\n    return x", "naïve → 日本語 🙂🙃 é", "", "🇩🇪 👩‍👩‍👧"]
)
def test_streamed_text_is_the_text_and_never_half_a_character(tokenizer: object, text: str) -> None:
    ids = tokenizer.encode(text)
    decoder = StreamDecoder(tokenizer)
    pieces = [decoder.push(token) for token in ids]
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)
    assert "".join(pieces) + decoder.finish(text) == text


def test_text_cut_in_the_middle_of_a_character_is_flushed(tokenizer: object) -> None:
    ids = tokenizer.encode("ab 日")[:-1]
    decoder = StreamDecoder(tokenizer)
    shown = "".join(decoder.push(token) for token in ids)
    assert not shown.endswith("\N{REPLACEMENT CHARACTER}")
    shown += decoder.finish(tokenizer.decode(ids))
    assert shown == tokenizer.decode(ids)


def test_random_tokens_stream_to_what_decoding_them_gives(tokenizer: object) -> None:
    rng = random.Random(1)
    for _ in range(200):
        ids = [rng.randrange(1, 4096) for _ in range(rng.randrange(1, 20))]
        decoder = StreamDecoder(tokenizer)
        shown = "".join(decoder.push(token) for token in ids)
        shown += decoder.finish(tokenizer.decode(ids))
        assert shown == tokenizer.decode(ids)


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("point_mass", [False, True])
def test_numpy_and_torch_verify_alike(method: object, point_mass: bool) -> None:
    rng = np.random.default_rng(0)
    target = rng.dirichlet(np.full(6, 0.5), (4, 4))
    draft = rng.dirichlet(np.full(6, 0.5), (4, 3))
    tokens = rng.integers(0, 6, (4, 3))
    lengths = np.array([3, 0, 2, 1])
    node = np.array([1, 0, 2, 1])
    found = []
    for array in (np.asarray, torch.from_numpy):
        distributions = (
            Distributions(point_masses=array(tokens))
            if point_mass
            else Distributions(probs=array(draft))
        )
        chain = Tree.of(DraftProposal(array(tokens), lengths, distributions), array(target))
        stop, weights = method.stop_distribution(chain)
        residual = method.residual(chain, weights, array(node))
        found.append((np.asarray(stop), np.asarray(residual)))
    for by_numpy, by_torch in zip(*found, strict=True):
        assert np.abs(by_numpy - by_torch).max() < 1e-15
        assert np.abs(by_numpy.sum(-1) - 1).max() < 1e-12
        assert by_numpy.min() >= 0


@pytest.mark.parametrize(("own", "common"), [(3, 5), (7, 5)])
def test_a_draft_padded_to_another_width_stays_lossless(own: int, common: int) -> None:
    """Missing ids get no probability; surplus ones are masked before sampling."""
    target = mock_pair(common, 4)[0]
    drafter = ModelDrafter(mock_pair(own, 5)[0], common)
    params = SamplingParams(max_tokens=3)
    distribution = exact_distribution(SpeculativeDecoder(target, drafter), (0, 1), params)
    assert distance(distribution, target_distribution(target, (0, 1), params)) < 1e-12


def test_a_one_token_vocabulary() -> None:
    only = TabularModel(lambda _: [1.0], 1)
    output = SpeculativeDecoder(only, only).generate([0], SamplingParams(max_tokens=7))
    assert output.token_ids == (0,) * 7
    assert sum(depth + 1 for depth in output.depths) == 7
