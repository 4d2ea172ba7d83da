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
def test_a_row_that_means_nothing_fails_the_finite_check(bad: Any, params: SamplingParams) -> None:
    logits = torch.zeros(2, 3, 300)
    if bad == "all -inf":
        logits[1, 2] = -torch.inf
    else:
        logits[1, 2, 170] = bad
    _, finite = distributions(logits, pack([params] * 2, 300))
    assert np.argwhere(~torch.isfinite(finite).numpy()).tolist() == [[1, 2]]
