"""Every lossless method passes the conformance kit; each planted fault fails the property it breaks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from array_api_compat import array_namespace

from outrider.verification import METHODS, BlockVerification, TokenVerification, Tree, Verifier
from outrider.verification.conformance import check_verifier
from outrider.verification.lossy import LenientVerification

SHAPES = {"chains are exact", "trees are exact"}


def failed(method: Any) -> set[str]:
    return {finding.name for finding in check_verifier(method) if not finding.passed}


@pytest.mark.parametrize("name", ["block", "token"])
def test_a_lossless_method_passes(name: str) -> None:
    assert failed(Verifier(METHODS[name])) == set()


def test_coupled_verification_has_nothing_to_enumerate() -> None:
    assert failed(Verifier(None)) == set()


def test_a_lenience_of_one_is_lossless_and_a_lower_one_is_not() -> None:
    assert failed(LenientVerification(1.0)) == set()
    assert "chains are exact" in failed(LenientVerification(0.7))


class ForgetsTheClaim(BlockVerification):
    """norm((p - q)+) where block verification needs norm((p_i p - q)+)."""

    def residual(self, tree: Tree, claims: Any, node: Any) -> Any:
        return tree.remaining_distribution(node, np.ones_like(claims[:, 0]))


class StopsAtTheFirstReject(BlockVerification):
    """Coins of the last head, read from the left."""

    trees = False

    def stop_distribution(self, tree: Tree) -> tuple[Any, Any]:
        last, claims = super().stop_distribution(tree)
        heads = last / np.maximum(np.cumsum(last, axis=-1), 1e-300)
        one = np.ones_like(heads[:, :1])
        reached = np.concatenate([one, np.cumprod(heads[:, 1:], axis=-1)], axis=-1)
        return reached * np.concatenate([1 - heads[:, 1:], one], axis=-1), claims


class Uncapped(TokenVerification):
    """The ratio p / q as a probability, above one where p > q."""

    trees = False

    def stop_distribution(self, tree: Tree) -> tuple[Any, Any]:
        one = np.ones_like(tree.ratio[:, :1])
        reached = np.concatenate([one, np.cumprod(tree.ratio, axis=-1)], axis=-1)
        refused = np.concatenate([1 - tree.ratio, one], axis=-1)
        return reached * refused, np.ones_like(reached)


class EmitsTheImpossible(TokenVerification):
    """u <= p / q with few bits: u = 0 keeps a token of probability zero."""

    def stop_distribution(self, tree: Tree) -> tuple[Any, Any]:
        return super().stop_distribution(replace(tree, ratio=np.maximum(tree.ratio, 2.0**-24)))


class Unnormalised(TokenVerification):
    def residual(self, tree: Tree, claims: Any, node: Any) -> Any:
        return super().residual(tree, claims, node) * 0.5


class LosesMass(TokenVerification):
    def stop_distribution(self, tree: Tree) -> tuple[Any, Any]:
        distribution, claims = super().stop_distribution(tree)
        return distribution * 0.9, claims


class LooksBehindTheDraft(TokenVerification):
    """Multiplies by a column that was not drafted."""

    def stop_distribution(self, tree: Tree) -> tuple[Any, Any]:
        distribution, claims = super().stop_distribution(tree)
        xp = array_namespace(distribution)
        behind = xp.sum(tree.target[:, -1], axis=-1, keepdims=True)
        return distribution * behind, claims


class Raises(TokenVerification):
    def residual(self, tree: Tree, claims: Any, node: Any) -> Any:
        raise KeyError("no idea")


@pytest.mark.parametrize(
    ("fault", "names"),
    [
        (ForgetsTheClaim(), SHAPES),
        (StopsAtTheFirstReject(), {"chains are exact"}),
        (Uncapped(), {"stop distribution sums to one", "chains are exact"}),
        (EmitsTheImpossible(), {"tokens of probability zero are never emitted", *SHAPES}),
        (Unnormalised(), {"residuals are distributions", *SHAPES}),
        (LosesMass(), {"stop distribution sums to one", *SHAPES}),
        (LooksBehindTheDraft(), {"padding is ignored"}),
        (Raises(), SHAPES),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, set) else "",
)
def test_a_planted_fault_fails_by_its_name(fault: Any, names: set[str]) -> None:
    assert names <= failed(fault)
