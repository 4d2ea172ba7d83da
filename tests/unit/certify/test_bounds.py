"""Bounds of small models against brute force, and against what shipped verification attains."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from outrider import ModelDrafter, SamplingParams, SpeculativeConfig, SpeculativeDecoder
from outrider.certify.bounds import (
    cover_bound,
    exact_block_value,
    transport_optimum,
    tree_probabilities,
)
from outrider.random import Enumerator
from outrider.runtimes.tabular import mock_pair
from outrider.types.records import Distributions, DraftProposal
from outrider.verification import METHODS, verify
from tests.support.optima import Distribution, Floats, brute_force, constant, paths, table


def path_probabilities(
    distribution: Distribution, depth: int, prefix: tuple[int, ...] = ()
) -> dict[tuple[int, ...], float]:
    """Of every path: a chain is the tree of one child at each depth."""
    return tree_probabilities(distribution, (1,) * depth, "with_replacement", prefix)


class _Spy:
    """Draws that note how many tokens are kept, and take the first of everything."""

    def stop(self, distributions: Floats) -> NDArray[np.int64]:
        self.distribution = distributions
        return np.zeros(len(distributions), dtype=np.int64)

    def token(self, distributions: Floats) -> NDArray[np.int64]:
        return np.zeros(len(distributions), dtype=np.int64)


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


def test_path_probabilities_are_a_distribution_on_every_level() -> None:
    found = path_probabilities(table(3, 3), 3)
    for level in (1, 2, 3):
        assert sum(mass for path, mass in found.items() if len(path) == level) == pytest.approx(1)
    assert min(found.values()) >= 0


@pytest.mark.parametrize("kind", ["with_replacement", "greedy", "without_replacement"])
@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("width", [2, 4, 5])
def test_the_transport_optimum_is_that_of_brute_force(kind: Any, count: int, width: int) -> None:
    if kind == "without_replacement" and count != 2:
        return
    for seed in range(8):
        target, draft = table(seed, width, 0.6)(()), table(seed + 50, width, 0.6)(())
        found = transport_optimum(target, draft, count, kind)
        assert found == pytest.approx(brute_force(target, draft, count, kind), abs=1e-12)
        assert found <= 1 + 1e-12
        if count == 1:
            assert found == pytest.approx(np.minimum(target, draft).sum(), abs=1e-12)


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
