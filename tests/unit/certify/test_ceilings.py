"""The optimum of chains against what shipped verification attains."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from outrider.certify.ceilings import exact_block_value
from outrider.types.records import Distributions, DraftProposal
from outrider.verification import METHODS, verify
from tests.support.optima import Distribution, Floats, constant, paths, table


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


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_block_attains_the_optimum_and_token_does_not_exceed_it(seed: int, depth: int) -> None:
    target, draft = table(seed, 3), table(seed + 100, 3)
    value = exact_block_value(target, draft, depth)
    if depth:
        assert attained(target, draft, depth, "block") == pytest.approx(value, abs=1e-13)
        assert attained(target, draft, depth, "token") <= value + 1e-13
    assert value <= 1 + depth + 1e-13


def test_values_after_a_prefix_are_those_of_the_distributions_there() -> None:
    target, draft = table(1, 3), table(2, 3)
    prefix = (2, 0)

    def after(distribution: Distribution) -> Distribution:
        return lambda path: distribution((*prefix, *path))

    assert exact_block_value(target, draft, 2, prefix) == exact_block_value(
        after(target), after(draft), 2
    )
