"""Every lossless method passes the kit; each planted fault fails the property it breaks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from array_api_compat import array_namespace

from outrider.certify.kits import check_verifier
from outrider.certify.kits.verifier import PROPERTIES
from outrider.verification import METHODS, BlockVerification, TokenVerification, Tree, Verifier
from outrider.verification.lossy import LenientVerification

IN_NUMPY = "NumPy arrays give what torch tensors give"
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

    def residual(self, tree: Tree, weights: Any, node: Any) -> Any:
        return tree.remaining_distribution(node, weights[:, 0] * 0 + 1)


class StopsAtTheFirstReject(BlockVerification):
    """Coins of the last head, read from the left."""

    trees = False

    def stop_distribution(self, tree: Tree) -> tuple[Any, Any]:
        last, weights = super().stop_distribution(tree)
        xp = array_namespace(last)
        heads = last / xp.clip(xp.cumulative_sum(last, axis=-1), min=1e-300)
        one = xp.ones_like(heads[:, :1])
        reached = xp.concat([one, xp.cumulative_prod(heads[:, 1:], axis=-1)], axis=-1)
        return reached * xp.concat([1 - heads[:, 1:], one], axis=-1), weights


class Uncapped(TokenVerification):
    """The ratio p / q as a probability, above one where p > q."""

    trees = False

    def stop_distribution(self, tree: Tree) -> tuple[Any, Any]:
        xp = array_namespace(tree.ratio)
        one = xp.ones_like(tree.ratio[:, :1])
        reached = xp.concat([one, xp.cumulative_prod(tree.ratio, axis=-1)], axis=-1)
        refused = xp.concat([1 - tree.ratio, one], axis=-1)
        return reached * refused, xp.ones_like(reached)


class EmitsTheImpossible(TokenVerification):
    """u <= p / q with few bits: u = 0 keeps a token of probability zero."""

    def stop_distribution(self, tree: Tree) -> tuple[Any, Any]:
        return super().stop_distribution(replace(tree, ratio=tree.ratio.clip(2.0**-24)))


class Unnormalised(TokenVerification):
    def residual(self, tree: Tree, weights: Any, node: Any) -> Any:
        return super().residual(tree, weights, node) * 0.5


class LosesMass(TokenVerification):
    def stop_distribution(self, tree: Tree) -> tuple[Any, Any]:
        distribution, weights = super().stop_distribution(tree)
        return distribution * 0.9, weights


class LooksBehindTheDraft(TokenVerification):
    """Multiplies by a column that was not drafted."""

    def stop_distribution(self, tree: Tree) -> tuple[Any, Any]:
        distribution, weights = super().stop_distribution(tree)
        xp = array_namespace(distribution)
        behind = xp.sum(tree.target[:, -1], axis=-1, keepdims=True)
        return distribution * behind, weights


class OnlyInTorch(TokenVerification):
    """Its residual takes the log and the exponential of torch."""

    def residual(self, tree: Tree, weights: Any, node: Any) -> Any:
        return torch.exp(torch.log(super().residual(tree, weights, node)))


class OtherInNumPy(TokenVerification):
    """Forgets what drafts cover where arrays are NumPy's."""

    def residual(self, tree: Tree, weights: Any, node: Any) -> Any:
        if isinstance(tree.target, torch.Tensor):
            return super().residual(tree, weights, node)
        return tree.target[range(len(node)), node]


class Raises(TokenVerification):
    def residual(self, tree: Tree, weights: Any, node: Any) -> Any:
        raise KeyError("no idea")


class RaisesOnPointMasses(TokenVerification):
    def stop_distribution(self, tree: Tree) -> tuple[Any, Any]:
        if tree.draft is None:
            raise KeyError("no idea of point masses")
        return super().stop_distribution(tree)


@pytest.mark.slow
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
        (OtherInNumPy(), {IN_NUMPY}),
        (OnlyInTorch(), {"chains are exact"}),
        (Raises(), set(PROPERTIES)),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, set) else "",
)
def test_a_planted_fault_fails_by_its_name(fault: Any, names: set[str]) -> None:
    assert names <= failed(fault)


def test_what_could_not_be_measured_does_not_pass() -> None:
    """The method raises before anything is known of it: no property is said to hold."""
    for finding in check_verifier(Raises()):
        assert not finding.passed
        assert "Raises.residual raised KeyError: 'no idea' (test_verifiers.py" in finding.detail
    unmeasured = [one.name for one in check_verifier(Raises()) if "not measured" in one.detail]
    assert len(unmeasured) == len(PROPERTIES) - 3


def test_a_method_that_raises_in_some_cases_fails_there_alone() -> None:
    assert failed(RaisesOnPointMasses()) == {"point masses are exact"}


def test_a_method_for_chains_says_that_trees_were_not_measured() -> None:
    class Chains(TokenVerification):
        trees = False

    found = {finding.name: finding for finding in check_verifier(Chains())}
    assert all(finding.passed for finding in found.values())
    assert found["trees are exact"].detail.startswith("not measured")
