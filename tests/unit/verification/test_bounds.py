"""Ceilings against brute force, and against what the shipped verification attains."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import array_api_strict
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from outrider import ModelDrafter, SamplingParams, SpeculativeConfig, SpeculativeDecoder
from outrider.errors import (
    DistributionWidthError,
    DraftShapeError,
    InvalidConfigError,
    TargetShapeError,
)
from outrider.random import Enumerator
from outrider.runtimes.tabular import mock_pair
from outrider.types.records import Distributions, DraftProposal
from outrider.verification import METHODS, verify
from outrider.verification.bounds import (
    Distribution,
    block_values,
    cover_bound,
    exact_block_value,
    oracle_bound,
    path_probabilities,
    tree_probabilities,
)
from outrider.verification.transport import first_token_optimum, transport_optimum

Floats = NDArray[np.float64]


def table(seed: int, width: int, concentration: float = 0.7) -> Distribution:
    """A distribution [width] for every prefix, of some zeros."""

    def distribution(prefix: tuple[int, ...]) -> Floats:
        rng = np.random.default_rng([seed, len(prefix), *prefix])
        row = rng.dirichlet(np.full(width, concentration)) * (rng.random(width) > 0.2)
        return row / row.sum() if row.sum() > 0 else np.full(width, 1 / width)

    return distribution


def constant(*row: float) -> Distribution:
    return lambda prefix: row


class _Spy:
    """Draws that note the distribution of the tokens kept, and take the first of everything."""

    def stop(self, distributions: Floats) -> NDArray[np.int64]:
        self.distribution = distributions
        return np.zeros(len(distributions), dtype=np.int64)

    def token(self, distributions: Floats) -> NDArray[np.int64]:
        return np.zeros(len(distributions), dtype=np.int64)


def paths(
    target: Distribution, draft: Distribution, depth: int
) -> Iterator[tuple[float, tuple[int, ...], Floats, Floats]]:
    """Every drafted chain with its probability and the distributions on both sides."""
    width = len(draft(()))
    for path in product(range(width), repeat=depth):
        drafts = np.array([draft(path[:i]) for i in range(depth)])
        mass = float(np.prod([drafts[i, token] for i, token in enumerate(path)]))
        if mass > 0:
            yield mass, path, np.array([target(path[:i]) for i in range(depth + 1)]), drafts


def attained(target: Distribution, draft: Distribution, depth: int, method: str) -> float:
    """Tokens that shipped verification emits on average, over every drafted chain."""
    total = 0.0
    for mass, path, targets, drafts in paths(target, draft, depth):
        spy = _Spy()
        distributions = Distributions(probs=drafts[None])
        tokens: Any = np.array([path])
        verify(
            DraftProposal(tokens, np.array([depth]), distributions),
            targets[None],
            METHODS[method],
            spy,
        )
        total += mass * float(spy.distribution[0] @ np.arange(1, depth + 2))
    return total


def test_the_example_of_the_block_verification_paper() -> None:
    target, draft = constant(1 / 3, 2 / 3), constant(2 / 3, 1 / 3)
    assert attained(target, draft, 2, "token") - 1 == pytest.approx(10 / 9, abs=1e-14)
    assert attained(target, draft, 2, "block") - 1 == pytest.approx(11 / 9, abs=1e-14)
    assert exact_block_value(target, draft, 2) - 1 == pytest.approx(11 / 9, abs=1e-14)
    ideal = cover_bound(target, path_probabilities(draft, 2))
    assert ideal - 1 == pytest.approx(12 / 9, abs=1e-14)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_block_attains_its_value_and_no_bound_is_below_it(seed: int, depth: int) -> None:
    target, draft = table(seed, 3), table(seed + 100, 3)
    value = exact_block_value(target, draft, depth)
    if depth:
        assert attained(target, draft, depth, "block") == pytest.approx(value, abs=1e-13)
        assert attained(target, draft, depth, "token") <= value + 1e-13
    cover = cover_bound(target, path_probabilities(draft, depth))
    assert value <= cover + 1e-13
    assert cover <= 1 + depth + 1e-13


def test_values_after_a_prefix_are_those_of_the_distributions_there() -> None:
    target, draft = table(1, 3), table(2, 3)
    prefix = (2, 0)

    def after(distribution: Distribution) -> Distribution:
        return lambda path: distribution((*prefix, *path))

    assert exact_block_value(target, draft, 2, prefix) == exact_block_value(
        after(target), after(draft), 2
    )
    covered = path_probabilities(draft, 2, prefix)
    assert covered == path_probabilities(after(draft), 2)
    assert cover_bound(target, covered, prefix) == cover_bound(after(target), covered)
    assert oracle_bound(target, 5, prefix) == oracle_bound(after(target), 5)


def test_path_probabilities_are_a_distribution_on_every_level() -> None:
    found = path_probabilities(table(3, 3), 3)
    for level in (1, 2, 3):
        assert sum(mass for path, mass in found.items() if len(path) == level) == pytest.approx(1)
    assert min(found.values()) > 0


@pytest.mark.parametrize("seed", range(4))
def test_the_oracle_finds_the_largest_of_all_paths(seed: int) -> None:
    target = table(seed, 3)
    largest = sorted(path_probabilities(target, 6).values(), reverse=True)
    for nodes in range(7):
        assert oracle_bound(target, nodes) == pytest.approx(1 + sum(largest[:nodes]), abs=1e-13)


def test_drawn_drafts_may_pass_the_oracle_of_fixed_trees() -> None:
    fair = constant(0.5, 0.5)
    assert exact_block_value(fair, fair, 1) == 2.0
    assert oracle_bound(fair, 1) == 1.5


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


def drafted_sets(draft: Floats, num_drafts: int, kind: str) -> dict[frozenset[int], float]:
    """The distribution of the set of drafted tokens, by walking every outcome of every draw."""
    top: frozenset[int] = frozenset()
    draws = num_drafts
    if kind == "greedy":
        top = frozenset(np.argsort(-draft, kind="stable")[: num_drafts - 1].tolist())
        draws = 1
    sets = {top: 1.0}
    for _ in range(draws):
        following: dict[frozenset[int], float] = {}
        for seen, mass in sets.items():
            excluded = frozenset() if kind == "iid" else seen
            rest = {token: draft[token] for token in range(len(draft)) if token not in excluded}
            total = sum(rest.values())
            if total == 0:
                following[seen] = following.get(seen, 0.0) + mass
                continue
            for token, share in rest.items():
                union = seen | {token}
                following[union] = following.get(union, 0.0) + mass * share / total
        sets = following
    return sets


def brute_force(target: Floats, draft: Floats, num_drafts: int, kind: str) -> float:
    """1 + min over every set S of P(S) - Pr[all drafts in S]."""
    sets = drafted_sets(draft, num_drafts, kind)
    width = len(target)
    return 1 + min(
        sum(target[token] for token in range(width) if chosen >> token & 1)
        - sum(mass for drawn, mass in sets.items() if all(chosen >> token & 1 for token in drawn))
        for chosen in range(2**width)
    )


@pytest.mark.parametrize("kind", ["iid", "greedy", "without_replacement"])
@pytest.mark.parametrize("num_drafts", [1, 2, 3, 5])
@pytest.mark.parametrize("width", [1, 2, 3, 4, 5])
def test_the_transport_optimum_is_that_of_brute_force(
    kind: Any, num_drafts: int, width: int
) -> None:
    target = np.array([table(seed, width, 0.6)(()) for seed in range(8)])
    draft = np.array([table(seed + 50, width, 0.6)(()) for seed in range(8)])
    expected = [brute_force(p, q, num_drafts, kind) for p, q in zip(target, draft, strict=True)]
    found = transport_optimum(
        target.reshape(2, 4, width), draft.reshape(2, 4, width), num_drafts, kind
    )
    np.testing.assert_allclose(found.reshape(8), expected, atol=1e-12)
    assert (np.asarray(found) <= 1 + 1e-12).all()
    if num_drafts == 1:
        np.testing.assert_allclose(expected, np.minimum(target, draft).sum(-1), atol=1e-12)
    for make in (torch.asarray, array_api_strict.asarray):
        other = transport_optimum(make(target), make(draft), num_drafts, kind)
        np.testing.assert_allclose([float(value) for value in other], expected, atol=1e-12)


def test_iid_optimum_of_a_large_vocabulary_lies_between_its_bounds() -> None:
    rng = np.random.default_rng(3)
    target, draft = rng.dirichlet(np.full(32_000, 0.1), 2)
    overlap = float(np.minimum(target, draft).sum())
    previous = overlap
    for num_drafts in (1, 2, 4, 8):
        found = float(transport_optimum(target, draft, num_drafts, "iid"))
        assert previous - 1e-9 <= found <= 1 - (1 - overlap) ** num_drafts + 1e-9
        previous = found


@pytest.mark.parametrize("width", [2, 3, 6, 9])
def test_two_drafts_without_replacement_in_closed_form(width: int) -> None:
    """Against all sets, over distributions flat and sharp, with zeros and with almost one atom."""
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
    found = transport_optimum(pairs[:, 0], pairs[:, 1], 2, "without_replacement")
    np.testing.assert_allclose(found, expected, atol=1e-12)
    # The test can fail: drafts that may be the same token are another distribution.
    with_replacement = transport_optimum(pairs[:, 0], pairs[:, 1], 2, "iid")
    assert np.abs(with_replacement - expected).max() > 0.05


def test_two_distinct_drafts_of_a_large_vocabulary_lie_between_their_bounds() -> None:
    rng = np.random.default_rng(4)
    target, draft = rng.dirichlet(np.full(32_000, 0.02), 2)
    alike, distinct = (
        float(transport_optimum(target, draft, 2, kind)) for kind in ("iid", "without_replacement")
    )
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
        expected = transport_optimum(self.target, self.draft, 2, "without_replacement")
        assert found == pytest.approx(expected.tolist(), abs=1e-12)

    def test_a_row_whose_second_distribution_is_foreign_is_not_known(self) -> None:
        distributions = [[self.draft[0], self.left(0, 2)], [self.draft[1], self.left(1, 3)]]
        found = self.found(drawn([[1, 3], [3, 0]], distributions, [2, 2], [[0, 1], [0, 1]]))
        assert found is not None
        assert np.isnan(found).tolist() == [True, False]

    def test_a_row_without_drafts_does_not_stand_in_the_way(self) -> None:
        distributions = [[self.draft[0]] * 2, [self.draft[1], self.left(1, 3)]]
        found = self.found(drawn([[0, 0], [3, 0]], distributions, [0, 2], [[0, 1], [0, 1]]))
        expected = transport_optimum(self.target, self.draft, 2, "without_replacement")
        assert found is not None
        assert found[1] == pytest.approx(expected[1], abs=1e-12)

    def test_a_row_of_one_draft_or_of_likeliest_tokens_may_stand_beside(self) -> None:
        distributions = [[self.draft[0]] * 2, [self.draft[1]] * 2]
        one = self.found(drawn([[0, 0], [3, 3]], distributions, [1, 2], [[0, 0], [0, 0]]))
        outright = self.found(drawn([[0, 1], [3, 3]], distributions, [2, 2], [[-1, -1], [0, 0]]))
        several = float(transport_optimum(self.target[1], self.draft[1], 2, "iid"))
        single = float(np.minimum(self.target[0], self.draft[0]).sum())
        assert one == pytest.approx([single, several], abs=1e-12)
        assert outright == pytest.approx([0.1 + 0.2, several], abs=1e-12)

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


class _Watched(ModelDrafter):
    """Keeps the last proposal."""

    def propose(self, prefixes: Any, plan: Any, ctx: Any) -> DraftProposal:
        self.proposal = super().propose(prefixes, plan, ctx)
        return self.proposal


@pytest.mark.parametrize("kind", ["greedy", "without_replacement", "with_replacement"])
@pytest.mark.parametrize("shape", [(1,), (3,), (2, 1), (1, 2)], ids=str)
@pytest.mark.slow
def test_tree_probabilities_are_those_of_the_trees_the_engine_drafts(
    kind: Any, shape: tuple[int, ...]
) -> None:
    target, draft = mock_pair(3, 4)
    drafter = _Watched(draft)
    config = SpeculativeConfig(
        depth="fixed", num_speculative_tokens=len(shape), tree_shape=shape, tree_children=kind
    )
    decoder = SpeculativeDecoder(target, drafter, config=config)
    found: dict[tuple[int, ...], float] = {}
    work: list[tuple[int, ...]] = [()]
    while work:
        enumerator = Enumerator([work.pop()])
        (state,) = decoder.start((0,), SamplingParams(max_tokens=9))
        decoder.step(decoder.pack([replace(state, stream_key=0)]), enumerator)
        nodes: list[tuple[int, ...]] = [()]
        for token, parent in zip(
            drafter.proposal.tokens[0].tolist(),
            drafter.proposal.structure[0].tolist(),
            strict=True,
        ):
            nodes.append((*nodes[parent], token))
        for node in set(nodes[1:]):
            found[node] = found.get(node, 0.0) + enumerator.probability[0]
        work += [path for _, path in enumerator.siblings]
    expected = tree_probabilities(draft.probabilities, shape, kind, (0,))
    expected = {path: mass for path, mass in expected.items() if mass > 0}
    assert found == pytest.approx(expected, abs=1e-12)
    # A chain of one drawn child is what `path_probabilities` has.
    if shape == (1,):
        assert expected == pytest.approx(path_probabilities(draft.probabilities, 1, (0,)))


def test_bad_arguments_are_named() -> None:
    distribution = np.array([0.5, 0.5])
    with pytest.raises(InvalidConfigError, match="kind='best'"):
        transport_optimum(distribution, distribution, 2, "best")
    with pytest.raises(InvalidConfigError, match="num_drafts=0"):
        transport_optimum(distribution, distribution, 0, "iid")
    with pytest.raises(InvalidConfigError, match="at most 12"):
        transport_optimum(np.full(13, 1 / 13), np.full(13, 1 / 13), 3, "without_replacement")
    with pytest.raises(DistributionWidthError, match="last dimension of 2"):
        transport_optimum(distribution, np.full(3, 1 / 3), 1, "iid")
    with pytest.raises(DraftShapeError, match="draft has shape"):
        transport_optimum(distribution[None], distribution, 1, "iid")
    with pytest.raises(TargetShapeError, match="dtype"):
        transport_optimum(np.array([0, 1]), distribution, 1, "iid")
