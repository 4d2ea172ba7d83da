"""The pure functions: one answer on every array library, right distributions, early errors.

Statistical tests are seeded, so they always or never fail on given code; each says how often a
correct implementation would fail under a fresh seed.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import outrider
from outrider.random import STOP, TOKEN, Philox4x32, RoundDraws, stream_key
from outrider.types.records import Distributions, DraftProposal
from outrider.verification import METHODS
from outrider.verification.verifier import verify
from tests.support.arrays import (
    LIBRARIES,
    bounded,
    distributions,
    host,
    kind_of,
    logs,
    round_of,
)

LAST = math.nextafter(1.0, 0.0)

# Verification


@pytest.mark.parametrize("method", ["token", "block"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("library", LIBRARIES)
def test_every_library_gives_the_same_verdict(library: str, dtype: Any, method: str) -> None:
    make = LIBRARIES[library]
    given_arrays = round_of(1, 50, 4, 7, dtype)
    expected = outrider.verify_speculative_tokens(*given_arrays, seed=5, step=2, method=method)
    arrays = [make(array) for array in given_arrays]
    found = outrider.verify_speculative_tokens(*arrays, seed=5, step=2, method=method)
    for field in ("num_accepted", "accepted_tokens", "next_token", "first_rejection"):
        result = getattr(found, field)
        assert kind_of(result) == kind_of(arrays[0])
        assert host(result).dtype == np.int64
        np.testing.assert_array_equal(host(result), getattr(expected, field))
    assert len(set(expected.num_accepted.tolist())) == 5


@pytest.mark.parametrize("method", ["token", "block"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_tokens_are_drawn_as_the_engine_draws(library: str, method: str) -> None:
    """A vocabulary of several heats; a row's draws go by (seed, row, step)."""
    given_arrays = round_of(3, 200, 2, 300)
    found = outrider.verify_speculative_tokens(
        *map(LIBRARIES[library], given_arrays), seed=5, step=2, method=method
    )
    draft, target, tokens = map(torch.from_numpy, given_arrays)
    keys = np.zeros((200, 2, 5), dtype=np.uint64)
    keys[..., 0], keys[..., 1], keys[..., 2] = stream_key(5, ()), np.arange(200)[:, None], 2
    keys[:, :, 3] = STOP, TOKEN
    proposal = DraftProposal(tokens, np.full(200, 2), Distributions(probs=draft))
    verdict = verify(proposal, target, METHODS[method], RoundDraws(Philox4x32(), keys))
    assert host(found.num_accepted).tolist() == verdict.node.tolist()
    assert host(found.next_token).tolist() == verdict.next_token.tolist()


@bounded
@given(
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 6),
    st.integers(0, 4),
    st.integers(1, 6),
    st.sampled_from(["token", "block"]),
    st.sampled_from(["int32", "int64", "uint8"]),
)
def test_a_verdict_is_well_formed(
    seed: int, step: int, batch: int, width: int, vocabulary: int, method: str, integer: str
) -> None:
    draft, target, tokens = round_of(seed % 1000, batch, width, vocabulary)
    found = outrider.verify_speculative_tokens(
        draft, target, tokens.astype(integer), seed=seed, step=step, method=method
    )
    assert found.num_accepted.shape == found.next_token.shape == found.first_rejection.shape
    assert found.num_accepted.shape == (batch,)
    assert found.accepted_tokens.shape == (batch, width)
    for row in range(batch):
        kept = int(found.num_accepted[row])
        assert 0 <= kept <= width
        assert found.accepted_tokens[row].tolist() == [*tokens[row, :kept], *[-1] * (width - kept)]
        assert found.first_rejection[row] == (kept if kept < width else -1)
        emitted = [*tokens[row, :kept], found.next_token[row]]
        assert all(target[row, i, token] > 0 for i, token in enumerate(emitted))
    again = outrider.verify_speculative_tokens(
        draft, target, tokens, seed=seed, step=step, method=method
    )
    assert again.next_token.tolist() == found.next_token.tolist()


@pytest.mark.parametrize("library", LIBRARIES)
def test_no_drafts_and_no_rows_have_their_answers(library: str) -> None:
    make = LIBRARIES[library]
    target = make(np.eye(3)[None, 1:2])
    none = outrider.verify_speculative_tokens(
        make(np.zeros((1, 0, 3))), target, make(np.zeros((1, 0), dtype=np.int64)), seed=0
    )
    assert host(none.num_accepted).tolist() == [0]
    assert host(none.accepted_tokens).shape == (1, 0)
    assert host(none.next_token).tolist() == [1]
    assert host(none.first_rejection).tolist() == [-1]
    for width in (0, 2):
        empty = outrider.verify_speculative_tokens(
            make(np.zeros((0, width, 3))),
            make(np.zeros((0, width + 1, 3))),
            make(np.zeros((0, width), dtype=np.int64)),
            seed=0,
        )
        assert host(empty.accepted_tokens).shape == (0, width)
        assert host(empty.num_accepted).shape == host(empty.next_token).shape == (0,)


def g_statistic(counts: Any, expected: Any) -> float:
    seen = counts > 0
    return float(2 * (counts[seen] * np.log(counts[seen] / expected[seen])).sum())


@pytest.mark.slow
@pytest.mark.parametrize("method", ["token", "block"])
def test_the_target_distribution_is_what_is_emitted(method: str) -> None:
    """A G-test of the first two emitted tokens against the target's distribution of pairs.

    60,000 rows, 15 degrees of freedom; a correct implementation exceeds 44.3 once in 10,000 seeds.
    """
    rng = np.random.default_rng(2)
    size, vocabulary = 60_000, 4
    first_target, first_draft = rng.dirichlet(np.full(vocabulary, 2.0), 2)
    next_target, next_draft, last_target = rng.dirichlet(np.full(vocabulary, 2.0), (3, vocabulary))
    drafted = outrider.sample_index(np.tile(first_draft, (size, 1)), rng.random(size))
    second = outrider.sample_index(next_draft[drafted], rng.random(size))
    draft = np.stack([np.tile(first_draft, (size, 1)), next_draft[drafted]], axis=1)
    target = np.stack(
        [np.tile(first_target, (size, 1)), next_target[drafted], last_target[second]], axis=1
    )
    found = outrider.verify_speculative_tokens(
        draft, target, np.stack([drafted, second], axis=1), seed=11, method=method
    )
    one = np.where(found.num_accepted > 0, drafted, found.next_token)
    two = np.where(found.num_accepted > 1, second, found.next_token)
    # Where the round ended after one token, a plain draw from the target follows.
    later = outrider.sample_index(next_target[one], rng.random(size))
    two = np.where(found.num_accepted > 0, two, later)
    counts = np.bincount(one * vocabulary + two, minlength=vocabulary**2)
    expected = size * (first_target[:, None] * next_target).reshape(-1)
    assert g_statistic(counts, expected) < 44.3


def test_rows_steps_and_seeds_have_noise_of_their_own() -> None:
    draft, target, tokens = (np.repeat(array, 400, axis=0) for array in round_of(3, 1, 3, 6))

    def verdict(**keys: int) -> list[int]:
        found = outrider.verify_speculative_tokens(draft, target, tokens, **keys)
        return (found.num_accepted * 6 + found.next_token).tolist()

    same = verdict(seed=1, step=0)
    assert same == verdict(seed=1, step=0)
    assert len(set(same)) > 3
    for other in (verdict(seed=2, step=0), verdict(seed=1, step=1)):
        assert sum(a != b for a, b in zip(same, other, strict=True)) > 100
    # A row's noise is its own, whoever its batch mates are.
    few = outrider.verify_speculative_tokens(draft[:7], target[:7], tokens[:7], seed=1)
    assert (few.num_accepted * 6 + few.next_token).tolist() == same[:7]


def test_block_keeps_more_and_both_keep_what_theory_says() -> None:
    """Means of 40,000 rows lie within 4.5 standard errors: once in 150,000 seeds outside."""
    size = 40_000
    target = np.broadcast_to(np.array([1 / 3, 2 / 3]), (size, 3, 2))
    draft = np.broadcast_to(np.array([2 / 3, 1 / 3]), (size, 2, 2))
    tokens = outrider.sample_index(draft, np.random.default_rng(0).random((size, 2)))
    for method, mean in (("token", Fraction(10, 9)), ("block", Fraction(11, 9))):
        kept = outrider.verify_speculative_tokens(
            draft, target, tokens, seed=3, method=method
        ).num_accepted
        assert abs(kept.mean() - float(mean)) < 4.5 * kept.std() / math.sqrt(size)


# Acceptance and expectation


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_acceptance_and_residual_by_their_definitions(library: str, dtype: Any) -> None:
    make = LIBRARIES[library]
    draft, target, _ = round_of(4, 5, 3, 6, dtype)
    acceptance, residual = outrider.compute_acceptance_probs(make(draft), make(target))
    assert kind_of(acceptance) == kind_of(make(draft))
    assert host(acceptance).dtype == host(residual).dtype == dtype
    for index in np.ndindex(draft.shape):
        p, q = target[index], draft[index]
        ratio = min(1.0, p / q) if q > 0 else float(p > 0)
        assert host(acceptance)[index] == pytest.approx(ratio, rel=1e-6)
        assert host(residual)[index] == max(p - q, 0)
    shorter = outrider.compute_acceptance_probs(make(draft), make(np.array(target[:, :3])))
    np.testing.assert_array_equal(host(shorter[0]), host(acceptance))
    np.testing.assert_array_equal(host(shorter[1]), host(residual))


def test_acceptance_of_tiny_probabilities_does_not_overflow() -> None:
    tiny = np.array([[[1e-310, 1.0]]])
    acceptance, residual = outrider.compute_acceptance_probs(tiny, np.array([[[1.0, 0.0]]]))
    assert acceptance.tolist() == [[[1.0, 0.0]]]
    assert residual.tolist() == [[[1.0, 0.0]]]


@bounded
@given(st.lists(st.lists(st.floats(0, 1), min_size=3, max_size=3), max_size=4))
def test_expected_tokens_are_the_sum_of_running_products(rates: list[list[float]]) -> None:
    expected = [1 + a + a * b + a * b * c for a, b, c in rates]
    for make in LIBRARIES.values():
        found = outrider.compute_expected_tokens(make(np.array(rates).reshape(-1, 3)))
        np.testing.assert_allclose(host(found), expected, rtol=1e-14)


def test_expected_tokens_of_no_drafts_and_of_other_dtypes() -> None:
    for make in LIBRARIES.values():
        assert host(outrider.compute_expected_tokens(make(np.zeros((3, 0))))).tolist() == [
            1.0,
            1.0,
            1.0,
        ]
        assert host(outrider.compute_expected_tokens(make(np.zeros((0, 2))))).shape == (0,)
    half = outrider.compute_expected_tokens(torch.ones((1, 4), dtype=torch.bfloat16))
    assert half.dtype == torch.bfloat16
    assert half.tolist() == [5.0]


# The steps one by one


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_coin_comes_up_with_the_ratio(library: str) -> None:
    make = LIBRARIES[library]
    rng = np.random.default_rng(5)
    draft, target, uniform = rng.random((3, 500))
    found = outrider.accept(make(np.log(draft)), make(np.log(target)), make(uniform))
    assert kind_of(found) == kind_of(make(draft))
    np.testing.assert_array_equal(host(found), uniform < target / draft)
    crossed = outrider.accept(make(np.log(draft[:5, None])), make(np.log(target[None, :4])), 0.5)
    np.testing.assert_array_equal(host(crossed), target[None, :4] / draft[:5, None] > 0.5)


@pytest.mark.parametrize("as_array", [False, True])
def test_a_coin_at_the_edges(as_array: bool) -> None:
    def kept(draft: float, target: float, uniform: float) -> bool:
        make = np.asarray if as_array else float
        return bool(outrider.accept(make(draft), make(target), make(uniform)))

    assert not kept(-1.0, -math.inf, 0.0)  # the target never emits it, even at u = 0
    assert not kept(-math.inf, -math.inf, 0.0)
    assert kept(-math.inf, -1.0, LAST)  # p/0
    assert kept(-1.0, -1.0, LAST)
    assert kept(-700.0, -0.1, LAST)
    assert kept(math.log(0.5), math.log(0.25), math.nextafter(0.5, 0))
    assert not kept(math.log(0.5), math.log(0.25), 0.5)  # u < p/q, not <=


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("shape", [(5,), (4, 5), (2, 3, 5), (0, 5)])
def test_the_adjusted_distribution_and_draws_from_it(library: str, shape: tuple[int, ...]) -> None:
    make = LIBRARIES[library]
    rng = np.random.default_rng(6)
    target, draft = distributions(rng, shape), distributions(rng, shape)
    uniform = rng.random(shape[:-1])
    found = outrider.adjusted_distribution(make(logs(target)), make(logs(draft)))
    excess = np.maximum(target - draft, 0)
    expected = excess / excess.sum(-1, keepdims=True)
    np.testing.assert_allclose(host(found), expected, atol=1e-15)
    drawn = outrider.resample_from_adjusted_target(
        make(logs(target)), make(logs(draft)), make(uniform)
    )
    assert host(drawn).dtype == np.int64
    assert host(drawn).shape == shape[:-1]
    np.testing.assert_array_equal(host(drawn), host(outrider.sample_index(found, make(uniform))))


def test_equal_distributions_leave_the_target() -> None:
    rows = np.log(np.array([[0.25, 0.75], [0.5, 0.5]]))
    np.testing.assert_allclose(outrider.adjusted_distribution(rows, rows), np.exp(rows), rtol=1e-15)
    assert outrider.resample_from_adjusted_target(rows, rows, np.array([0.3, 0.3])).tolist() == [
        1,
        0,
    ]


@pytest.mark.parametrize("library", LIBRARIES)
@bounded
@given(st.integers(0, 10_000), st.integers(1, 8), st.floats(0, LAST))
def test_an_index_is_where_the_cumulative_mass_passes_the_uniform(
    library: str, seed: int, width: int, uniform: float
) -> None:
    make = LIBRARIES[library]
    distribution = distributions(np.random.default_rng(seed), (width,))
    index = int(outrider.sample_index(make(distribution), uniform))
    assert distribution[index] > 0
    assert distribution[:index].sum() <= uniform + 1e-12
    assert uniform <= distribution[: index + 1].sum() + 1e-12
    assert (
        abs(int(outrider.sample_from_logprobs(make(logs(distribution)), uniform)) - index) <= width
    )


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("uniform", [0.0, 0.5, LAST])
def test_nothing_without_mass_is_drawn_at_any_uniform(library: str, uniform: float) -> None:
    make = LIBRARIES[library]
    distribution = np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    uniforms = make(np.full(3, uniform))
    assert host(outrider.sample_index(make(distribution), uniforms)).tolist() == [1, 2, 0]
    assert host(outrider.sample_from_logprobs(make(logs(distribution)), uniforms)).tolist() == [
        1,
        2,
        0,
    ]


def test_log_probabilities_draw_what_probabilities_draw() -> None:
    rng = np.random.default_rng(8)
    rows, uniforms = distributions(rng, (300, 9)), rng.random(300)
    expected = outrider.sample_index(rows, uniforms)
    assert outrider.sample_from_logprobs(logs(rows), uniforms).tolist() == expected.tolist()
    assert len(set(expected.tolist())) == 9


def test_uniforms_by_philox_are_numbers_to_draw_with() -> None:
    keys = np.zeros((6, 5), dtype=np.uint64)
    keys[:, 1] = np.arange(6)
    uniforms = outrider.Philox4x32().uniforms(keys)
    assert (
        outrider.sample_index(np.full((6, 4), 0.25), uniforms).tolist()
        == (uniforms * 4 // 1).tolist()
    )


def test_half_precision_rows_are_rows() -> None:
    rng = np.random.default_rng(9)
    draft, target, tokens = round_of(9, 8, 3, 50)
    for dtype in (torch.float16, torch.bfloat16):
        distributions_of = [torch.tensor(rows).to(dtype) for rows in (draft, target)]
        verdict = outrider.verify_speculative_tokens(
            *distributions_of, torch.tensor(tokens), seed=1
        )
        assert verdict.next_token.shape == (8,)
        outrider.sample_index(distributions_of[0], torch.tensor(rng.random((8, 3))))
    half = np.asarray(draft, dtype=np.float16)
    assert outrider.compute_acceptance_probs(half, target.astype(np.float16))[0].dtype == np.float16


def test_the_result_is_frozen_and_exported() -> None:
    found: Any = outrider.verify_speculative_tokens(*round_of(0, 1, 1, 2), seed=0)
    assert isinstance(found, outrider.VerificationResult)
    with pytest.raises(AttributeError):
        found.num_accepted = 0
