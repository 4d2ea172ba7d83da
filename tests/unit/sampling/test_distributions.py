"""Distributions made of logits: transformers' filters, row by row, in mixed batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from outrider import SamplingParams
from outrider.sampling.distributions import PackedParams, distributions


def by_transformers(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    warpers: Any = LogitsProcessorList([TemperatureLogitsWarper(params.temperature)])
    if params.top_k:
        warpers.append(TopKLogitsWarper(min(params.top_k, logits.shape[-1])))
    if params.top_p < 1:
        warpers.append(TopPLogitsWarper(params.top_p))
    if params.min_p > 0:
        warpers.append(MinPLogitsWarper(params.min_p))
    return warpers(torch.zeros(len(logits), 1, dtype=torch.int64), logits).softmax(-1)


def pack(params: list[SamplingParams], vocab_size: int) -> PackedParams:
    return PackedParams.pack(params, vocab_size, torch.device("cpu"))


requests = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.3, 0.7, 1.0, 1.5]),
    top_k=st.sampled_from([0, 1, 2, 7, 40, 5000]),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.02, 0.5, 1.0]),
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(requests, min_size=1, max_size=4),
    st.sampled_from([5, 400, 3000]),
    st.integers(0, 99),
)
def test_distributions_equal_transformers_in_mixed_batches(
    params: list[SamplingParams], vocab_size: int, seed: int
) -> None:
    torch.manual_seed(seed)
    logits = torch.randn(len(params), 3, vocab_size, dtype=torch.float64) * 4
    found, finite = distributions(logits, pack(params, vocab_size))
    assert found.probs is not None
    for row, request in enumerate(params):
        expected = by_transformers(logits[row], request)
        assert float((found.probs[row] - expected).abs().max()) < 1e-12
    assert torch.isfinite(finite).all()


def test_a_greedy_batch_has_point_masses_and_no_dense_distribution() -> None:
    logits = torch.randn(3, 2, 50)
    found, _ = distributions(logits, pack([SamplingParams(temperature=0)] * 3, 50))
    assert found.probs is None
    assert found.point_masses is not None
    assert (found.point_masses == logits.argmax(-1)).all()


def test_a_greedy_row_among_sampled_ones_is_its_point_mass() -> None:
    logits = torch.randn(2, 4, 50)
    mixed = [SamplingParams(temperature=0), SamplingParams(temperature=0.7, top_p=0.8)]
    found, _ = distributions(logits, pack(mixed, 50))
    alone, _ = distributions(logits[1:], pack(mixed[1:], 50))
    assert found.probs is not None
    assert alone.probs is not None
    assert (found.probs[0].argmax(-1) == logits[0].argmax(-1)).all()
    assert (found.probs[0].amax(-1) == 1).all()
    assert (found.probs[1] == alone.probs[0]).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_distributions_are_at_least_float32(dtype: torch.dtype) -> None:
    found, _ = distributions(torch.randn(1, 1, 9).to(dtype), pack([SamplingParams()], 9))
    assert found.probs is not None
    assert found.probs.dtype == torch.float32


def test_tokens_tied_with_the_last_one_kept_are_kept() -> None:
    logits = torch.tensor([[[2.0, 1.0, 1.0, 0.0]]])
    for params in (SamplingParams(top_k=2), SamplingParams(top_p=0.7)):
        found, _ = distributions(logits, pack([params], 4))
        assert found.probs is not None
        assert (found.probs[0, 0] > 0).tolist() == [True, True, True, False]


def by_definition(logits: torch.Tensor, params: SamplingParams) -> Any:
    """One row, float64: each filter keeps what is tied with the last that it keeps."""
    scores = logits.numpy() / params.temperature
    if params.top_k:
        scores = np.where(scores < np.sort(scores)[-params.top_k :][0], -np.inf, scores)
    masses = np.exp(scores - scores.max())
    masses /= masses.sum()
    falling = np.sort(masses)[::-1]
    floor = params.min_p * falling[0]
    if params.top_p < 1:
        place = np.searchsorted(falling.cumsum(), params.top_p)
        floor = max(floor, falling[min(place, len(falling) - 1)])
    masses = np.where(masses < floor * (1 - 1e-12), 0, masses)
    return masses / masses.sum()


@pytest.mark.parametrize("size", [5, 300, 2100, 9000, 40_000])
@pytest.mark.parametrize("spread", [0.0, 0.03, 1.0, 3.0])
@pytest.mark.parametrize("step", [0.0, 0.25], ids=["distinct", "tied"])
def test_few_or_many_entries_are_kept_and_those_tied_with_them(
    size: int, spread: float, step: float
) -> None:
    asked = [
        SamplingParams(top_k=20),
        SamplingParams(top_k=20, top_p=0.9, temperature=0.7),
        SamplingParams(top_p=0.95),
        SamplingParams(top_p=0.3, min_p=0.01),
        SamplingParams(min_p=0.2, temperature=1.4),
        SamplingParams(top_k=700, min_p=0.001),
        SamplingParams(),
    ]
    logits = torch.randn(len(asked), 2, size, generator=torch.Generator().manual_seed(1)).double()
    logits *= spread
    if step:
        logits = (logits / step).round() * step
    together, finite = distributions(logits, pack(asked, size))
    assert together.probs is not None
    assert finite.isfinite().all()
    for row, params in enumerate(asked):
        alone, _ = distributions(logits[row : row + 1], pack([params], size))
        assert alone.probs is not None
        assert (together.probs[row] == alone.probs[0]).all()
        for node in range(2):
            found, expected = alone.probs[0, node].numpy(), by_definition(logits[row, node], params)
            np.testing.assert_array_equal(found > 0, expected > 0)
            np.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.parametrize("ties", [30, 500, 3000, 20_000])
def test_all_that_are_tied_with_the_kth_count_for_top_p(ties: int) -> None:
    logits = torch.full((1, 20_000), -9.0, dtype=torch.float64)
    logits[0, :ties], logits[0, 7] = 0.0, 10.0
    asked = SamplingParams(top_k=2, top_p=0.8)
    for others in ([], [SamplingParams(top_k=900)], [SamplingParams(top_k=5000)]):
        together = [asked, *others]
        made, _ = distributions(logits.repeat(len(together), 1), pack(together, 20_000))
        assert made.probs is not None
        np.testing.assert_allclose(made.probs[0].numpy(), by_definition(logits[0], asked))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), "all -inf"])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0),
        SamplingParams(),
        SamplingParams(top_k=3, top_p=0.9, min_p=0.1),
    ],
    ids=["greedy", "sampled", "filtered"],
)
@pytest.mark.parametrize("size", [300, 9000])
def test_a_row_that_means_nothing_fails_the_finite_check(
    bad: Any, params: SamplingParams, size: int
) -> None:
    logits = torch.zeros(2, 3, size)
    if bad == "all -inf":
        logits[1, 2] = -torch.inf
    else:
        logits[1, 2, 170] = bad
    _, finite = distributions(logits, pack([params] * 2, size))
    assert np.argwhere(~torch.isfinite(finite).numpy()).tolist() == [[1, 2]]
