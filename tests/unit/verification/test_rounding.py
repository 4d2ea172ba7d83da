"""What float32 distributions over a large vocabulary cost in exactness, and what is left alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from outrider.types.records import Distributions, DraftProposal
from outrider.verification import METHODS, Tree

BOUND = 1e-6
"""How far rounding moves the probability of what is emitted at a node, as the guide states it."""
DEPTH = 4


def pair(width: int, noise: float, seed: int) -> tuple[Any, Any, Any]:
    """Float32 distributions [2, 5, V] and [2, 4, V], and tokens [2, 4] drawn from the latter."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 3, (2, DEPTH + 1, width))
    moved = logits[:, :DEPTH] + rng.normal(0, noise, (2, DEPTH, width))
    target, draft = (torch.from_numpy(each).float().softmax(-1) for each in (logits, moved))
    tokens = [[rng.choice(width, p=row / row.sum()) for row in rows] for rows in draft.double()]
    return target, draft, torch.tensor(np.array(tokens))


def of(target: Any, draft: Any, tokens: Any) -> Tree:
    return Tree.of(DraftProposal(tokens, np.full(2, DEPTH), Distributions(probs=draft)), target)


def uncovered(rows: Any, weight: float) -> float:
    """The mass of the target's row that the draft's leaves, at a weight, in float64."""
    target, draft = (row.double().numpy() for row in rows)
    return float(np.maximum(weight * target - draft, 0).sum())


def stops(tree: Tree, weights: Any) -> Any:
    """The stop probabilities [B, DEPTH] of a chain's nodes, the last one left out."""
    assert tree.path is not None
    inner = [
        tree.stop_probability(tree.path.at(node), weights[:, node : node + 1], None)
        for node in range(1, DEPTH)
    ]
    return torch.cat([weights[:, :1], *inner], 1)


@pytest.mark.parametrize("width", [32_000, 151_936])
@pytest.mark.parametrize("noise", [1.0, 0.1, 1e-3, 0.0])
def test_float32_moves_what_is_emitted_by_less_than_the_stated_bound(
    width: int, noise: float
) -> None:
    """Beside float64 on the same numbers, node by node.

    A round is at node i, with all below refused, with probability D = A + 1 - p for each time that
    the node was drafted: an error of its coin moves that much, and an error of what follows moves
    A, the mass that is drawn from it.
    """
    target, draft, tokens = pair(width, noise, 7)
    narrow, wide = of(target, draft, tokens), of(target.double(), draft.double(), tokens)
    method = METHODS["block"]
    (_, weights), (_, exact) = (method.stop_distribution(tree) for tree in (narrow, wide))
    assert float((weights - exact).abs().max()) < BOUND
    heads, right = stops(narrow, weights), stops(wide, exact)
    worst = 0.0
    for node in range(DEPTH):
        at = torch.full((2,), node)
        rests = [
            method.residual(tree, weight, at).double().numpy()
            for tree, weight in ((narrow, weights), (wide, exact))
        ]
        for row in range(2):
            weight = float(exact[row, node])
            mass = uncovered((target[row, node], draft[row, node]), weight)
            if node:
                coin = abs(float(heads[row, node] - right[row, node]))
                worst = max(worst, coin * (mass + 1 - weight))
            worst = max(worst, np.abs(rests[0][row] - rests[1][row]).sum() / 2 * mass)
    assert worst < BOUND


def test_sums_in_float32_alone_would_break_the_bound() -> None:
    """Planted: one running sum in float32, as a loop makes it, of 151,936 masses."""
    target, draft, _ = pair(151_936, 1.0, 7)
    mass = (target[0, 0] - draft[0, 0]).clamp(min=0)
    running = np.cumsum(mass.numpy(), dtype=np.float32)[-1]
    assert abs(float(running) - float(mass.double().sum())) > BOUND


@pytest.mark.parametrize("method", ["token", "block"])
def test_masses_keep_the_dtype_of_distributions_and_distributions_are_not_changed(
    method: str,
) -> None:
    for dtype in (torch.float32, torch.float64):
        target, draft, tokens = pair(700, 0.5, 1)
        target, draft = target.to(dtype), draft.to(dtype)
        before = target.clone(), draft.clone()
        tree = of(target, draft, tokens)
        stop, weights = METHODS[method].stop_distribution(tree)
        rest = METHODS[method].residual(tree, weights, torch.tensor([1, 4]))
        assert (stop.dtype, weights.dtype, rest.dtype) == (torch.float64, torch.float64, dtype)
        assert (target == before[0]).all()
        assert (draft == before[1]).all()


def test_narrow_distributions_are_verified_in_float32() -> None:
    target, draft, tokens = pair(700, 0.5, 1)
    target, draft = target.half(), draft.half()
    for method in ("token", "block"):
        tree = of(target, draft, tokens)
        weights = METHODS[method].stop_distribution(tree)[1]
        rest = METHODS[method].residual(tree, weights, torch.tensor([1, 2]))
        assert rest.dtype == torch.float32
        assert float((rest.double().sum(-1) - 1).abs().max()) < BOUND
