"""Bounds that a round's verdict measures, against brute force."""

from __future__ import annotations

from typing import Any

import array_api_strict
import numpy as np
import pytest
import torch

from outrider.certify.ceilings import exact_block_value
from outrider.types.records import Distributions, DraftProposal
from outrider.verification.bounds import (
    block_values,
    first_token_optimum,
    iid_optimum,
    two_distinct_optimum,
)
from tests.support.optima import Floats, brute_force, paths, table


@pytest.mark.parametrize("library", ["numpy", "torch", "strict"])
def test_the_block_ceiling_is_unbiased(library: str) -> None:
    make: Any = {"numpy": np, "torch": torch, "strict": array_api_strict}[library].asarray
    target, draft = table(5, 3), table(6, 3)
    ratios, masses = [], []
    for mass, path, targets, drafts in paths(target, draft, 2):
        taken = [(targets[i, token] / drafts[i, token]) for i, token in enumerate(path)]
        ratios.append([*taken, np.nan])
        masses.append(mass)
    found = block_values(make(np.nan_to_num(np.array(ratios))))
    mean = float(np.asarray(found.tolist()) @ masses) if library == "torch" else None
    mean = float(np.asarray(found) @ masses) if mean is None else mean
    assert mean == pytest.approx(exact_block_value(target, draft, 2), abs=1e-13)


@pytest.mark.parametrize("make", [np.asarray, torch.asarray, array_api_strict.asarray])
@pytest.mark.parametrize("num_drafts", [1, 2, 3, 5])
@pytest.mark.parametrize("width", [1, 2, 4, 5])
def test_the_optimum_of_equal_draws_is_that_of_brute_force(
    make: Any, num_drafts: int, width: int
) -> None:
    target = np.array([table(seed, width, 0.6)(()) for seed in range(8)])
    draft = np.array([table(seed + 50, width, 0.6)(()) for seed in range(8)])
    pairs = zip(target, draft, strict=True)
    expected = [brute_force(p, q, num_drafts, "with_replacement") for p, q in pairs]
    found = iid_optimum(make(target), make(draft), num_drafts)
    np.testing.assert_allclose([float(value) for value in found], expected, atol=1e-12)


def test_iid_optimum_of_a_large_vocabulary_lies_between_its_bounds() -> None:
    rng = np.random.default_rng(3)
    target, draft = rng.dirichlet(np.full(32_000, 0.1), 2)
    overlap = float(np.minimum(target, draft).sum())
    previous = overlap
    for num_drafts in (1, 2, 4, 8):
        found = float(iid_optimum(target, draft, num_drafts))
        assert previous - 1e-9 <= found <= 1 - (1 - overlap) ** num_drafts + 1e-9
        previous = found


@pytest.mark.slow
@pytest.mark.parametrize("width", [2, 3, 6, 9])
def test_two_drafts_without_replacement_in_closed_form(width: int) -> None:
    """Against all sets: distributions flat and sharp, with zeros, and almost point masses."""
    rng = np.random.default_rng(width)
    distributions = []
    for concentration in (0.05, 0.3, 1.0, 5.0):
        rows = rng.dirichlet(np.full(width, concentration), (12, 2))
        rows[::3] *= rng.random(rows[::3].shape) > 0.4
        rows += (rows.sum(-1, keepdims=True) == 0) / width
        distributions.append(rows)
    sharp = np.full((4, 2, width), 1e-17)
    sharp[np.arange(4), 1, np.arange(4) % width] = 1.0
    sharp[:, 0] = rng.dirichlet(np.ones(width), 4)
    pairs = np.concatenate([*distributions, sharp])
    pairs /= pairs.sum(-1, keepdims=True)
    expected = [brute_force(p, q, 2, "without_replacement") for p, q in pairs]
    found = two_distinct_optimum(pairs[:, 0], pairs[:, 1])
    np.testing.assert_allclose(found, expected, atol=1e-12)
    # The test can fail: drafts that may be the same token are another distribution.
    with_replacement = iid_optimum(pairs[:, 0], pairs[:, 1], 2)
    assert np.abs(with_replacement - expected).max() > 0.05


def test_two_distinct_drafts_of_a_large_vocabulary_lie_between_their_bounds() -> None:
    rng = np.random.default_rng(4)
    target, draft = rng.dirichlet(np.full(32_000, 0.02), 2)
    alike = float(iid_optimum(target, draft, 2))
    distinct = float(two_distinct_optimum(target, draft))
    assert float(np.minimum(target, draft).sum()) < alike < distinct
    # No token is kept more often than it is drafted.
    included = draft * (1 + (draft / (1 - draft)).sum() - draft / (1 - draft))
    assert included.sum() == pytest.approx(2)
    assert distinct <= float(np.minimum(target, included).sum()) + 1e-12


def drawn(
    tokens: list[list[int]],
    distributions: list[list[Floats]],
    lengths: list[int],
    rows: list[list[int]],
) -> DraftProposal:
    """Siblings at the root, [B, 2]."""
    return DraftProposal(
        torch.tensor(tokens),
        np.array(lengths),
        Distributions(probs=torch.tensor(np.array(distributions))),
        np.zeros((len(tokens), len(tokens[0])), dtype=np.int64),
        np.array(rows),
    )


class TestFirstTokens:
    target = np.array([[0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1]])
    draft = np.array([[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4]])

    def left(self, row: int, token: int) -> Floats:
        distribution = self.draft[row].copy()
        distribution[token] = 0
        return np.asarray(distribution / distribution.sum())

    def found(self, proposal: DraftProposal) -> list[float] | None:
        values = first_token_optimum(proposal, torch.tensor(self.target))
        return None if values is None else list(values.tolist())

    def test_two_drawn_without_replacement(self) -> None:
        distributions = [[self.draft[0], self.left(0, 1)], [self.draft[1], self.left(1, 3)]]
        found = self.found(drawn([[1, 3], [3, 0]], distributions, [2, 2], [[0, 1], [0, 1]]))
        expected = two_distinct_optimum(self.target, self.draft)
        assert found == pytest.approx(expected.tolist(), abs=1e-12)

    def test_a_row_whose_second_distribution_is_foreign_is_not_known(self) -> None:
        distributions = [[self.draft[0], self.left(0, 2)], [self.draft[1], self.left(1, 3)]]
        found = self.found(drawn([[1, 3], [3, 0]], distributions, [2, 2], [[0, 1], [0, 1]]))
        assert found is not None
        assert np.isnan(found).tolist() == [True, False]

    def test_a_row_without_drafts_does_not_stand_in_the_way(self) -> None:
        distributions = [[self.draft[0]] * 2, [self.draft[1], self.left(1, 3)]]
        found = self.found(drawn([[0, 0], [3, 0]], distributions, [0, 2], [[0, 1], [0, 1]]))
        expected = two_distinct_optimum(self.target, self.draft)
        assert found is not None
        assert found[1] == pytest.approx(expected[1], abs=1e-12)

    def test_a_row_of_one_draft_or_of_likeliest_tokens_may_stand_beside(self) -> None:
        distributions = [[self.draft[0]] * 2, [self.draft[1]] * 2]
        one = self.found(drawn([[0, 0], [3, 3]], distributions, [1, 2], [[0, 0], [0, 0]]))
        deterministic = self.found(
            drawn([[0, 1], [3, 3]], distributions, [2, 2], [[-1, -1], [0, 0]])
        )
        several = float(iid_optimum(self.target[1], self.draft[1], 2))
        single = float(np.minimum(self.target[0], self.draft[0]).sum())
        assert one == pytest.approx([single, several], abs=1e-12)
        assert deterministic == pytest.approx([0.1 + 0.2, several], abs=1e-12)

    def test_what_has_no_short_form_is_none(self) -> None:
        distributions = [[self.draft[0]] * 3, [self.draft[1]] * 3]
        tokens = [[0, 1, 2], [0, 1, 2]]
        for lengths, rows in (
            ([3, 3], [[0, 1, 2], [0, 1, 2]]),  # three without replacement
            ([3, 3], [[0, 0, -1], [0, 0, -1]]),  # two drawn beside a likeliest token
            ([2, 3], [[0, 0, 0], [0, 0, 0]]),  # two drawn and three drawn
            ([2, 2], [[0, 0, 0], [0, 1, 0]]),  # with and without replacement
        ):
            assert self.found(drawn(tokens, distributions, lengths, rows)) is None
