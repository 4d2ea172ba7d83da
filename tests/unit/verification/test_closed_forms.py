"""The closed forms of Leviathan et al. 2023 give the numbers printed there."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from outrider import compute_expected_tokens
from outrider.errors import InvalidConfigError
from outrider.verification.closed_forms import (
    expected_tokens,
    operations_factor,
    walltime_improvement,
)


# Table 1 of the paper, whose drafter costs nothing: rate, drafts, operations, speed.
@pytest.mark.parametrize(
    ("rate", "drafts", "operations", "speed"),
    [
        (0.6, 2, "1.53", "1.96"),
        (0.7, 3, "1.58", "2.53"),
        (0.8, 2, "1.23", "2.44"),
        (0.8, 5, "1.63", "3.69"),
        (0.9, 2, "1.11", "2.71"),
        (0.9, 10, "1.60", "6.86"),
    ],
)
def test_table_1_to_the_printed_digits(
    rate: float, drafts: int, operations: str, speed: str
) -> None:
    assert f"{operations_factor(rate, drafts, 0):.2f}" == operations
    assert f"{walltime_improvement(rate, drafts, 0):.2f}" == speed


def test_they_equal_their_quotients_and_their_limits() -> None:
    rates = np.array([0.0, 0.3, 0.999])
    for drafts in range(12):
        quotient = (1 - rates ** (drafts + 1)) / (1 - rates)
        np.testing.assert_allclose(expected_tokens(rates, drafts), quotient, rtol=1e-12)
        costed = walltime_improvement(rates, drafts, 0.2)
        np.testing.assert_allclose(costed, quotient / (0.2 * drafts + 1), rtol=1e-12)
        worked = operations_factor(rates, drafts, 0.1)
        np.testing.assert_allclose(worked, (1.1 * drafts + 1) / quotient, rtol=1e-12)
        assert expected_tokens(1.0, drafts) == drafts + 1
        assert walltime_improvement(1.0, drafts, 0.0) == drafts + 1
        assert operations_factor(1.0, drafts, 0.0) == 1


def test_they_take_tensors_and_agree_with_rates_of_each_position() -> None:
    rates = torch.tensor([0.25, 0.5, 1.0], dtype=torch.float64)
    repeated = compute_expected_tokens(rates[:, None].repeat(1, 6))
    torch.testing.assert_close(expected_tokens(rates, 6), repeated, rtol=1e-14, atol=0)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: expected_tokens(1.5, 2), "acceptance_rate"),
        (lambda: expected_tokens(float("nan"), 2), "acceptance_rate"),
        (lambda: expected_tokens(np.array([0.5, -0.1]), 2), "acceptance_rate"),
        (lambda: expected_tokens("0.5", 2), "acceptance_rate"),
        (lambda: expected_tokens(0.5, -1), "num_drafts"),
        (lambda: expected_tokens(0.5, 1.5), "num_drafts"),
        (lambda: walltime_improvement(0.5, 2, -0.1), "cost_ratio"),
        (lambda: walltime_improvement(0.5, 2, float("inf")), "cost_ratio"),
        (lambda: operations_factor(0.5, 2, -0.1), "operations_ratio"),
        (lambda: expected_tokens(0.5, True), "num_drafts"),
    ],
)
def test_bad_values_are_named(call: object, field: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        call()
    assert caught.value.field == field
