"""Requests that fail beside others: the others' distribution is that of decoding them alone."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from outrider import SamplingParams, SpeculativeConfig, SpeculativeDecoder
from outrider.certify import exact_distribution
from outrider.certify.reference import distance, target_distribution
from outrider.engine.scheduler import Scheduler
from outrider.errors import UserCodeError
from outrider.runtimes.tabular import mock_pair

V = 2
SHAPES: list[dict[str, Any]] = [
    {"num_speculative_tokens": 0},
    {"num_speculative_tokens": 1, "verification": "block"},
    {"num_speculative_tokens": 2, "verification": "token"},
    {"tree_shape": (2,), "verification": "traversal"},
]


class Walk:
    """One path through all draws of a call. Equal keys have equal outcomes, as in production."""

    def __init__(self, path: tuple[int, ...]) -> None:
        self.path = path
        self.followed: list[int] = []
        self.known: dict[tuple[int, ...], int] = {}
        self.siblings: list[tuple[int, ...]] = []
        self.probability = 1.0

    def draw(self, distributions: torch.Tensor, keys: NDArray[np.uint64]) -> torch.Tensor:
        rows = zip(distributions.tolist(), map(tuple, keys.tolist()), strict=True)
        return torch.tensor([self.follow(row, key) for row, key in rows])

    def follow(self, row: list[float], key: tuple[int, ...]) -> int:
        if key not in self.known:
            possible = [index for index, mass in enumerate(row) if mass > 0]
            at = len(self.followed)
            index = self.path[at] if at < len(self.path) else possible[0]
            if at >= len(self.path):
                self.siblings += [(*self.followed, other) for other in possible[1:]]
            self.followed.append(index)
            self.probability *= row[index] / sum(row)
            self.known[key] = index
        return self.known[key]


def picky(history: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Fails after a token 1 that was emitted, or is drafted."""
    if history[2:].tolist()[-1:] == [1]:
        raise KeyError("one")
    return logits


def whole_outputs(speculation: dict[str, Any]) -> tuple[dict[Any, float], dict[Any, float]]:
    """The distributions of a request that may fail, and of one beside it: a failed one is None."""
    target, draft = mock_pair(V, 3)
    found: tuple[dict[Any, float], dict[Any, float]] = (defaultdict(float), defaultdict(float))
    config = SpeculativeConfig(depth="fixed", **speculation)
    params = [
        SamplingParams(max_tokens=2, seed=1, logits_processors=(picky,)),
        SamplingParams(max_tokens=3, seed=2),
    ]
    paths: list[tuple[int, ...]] = [()]
    while paths:
        chance = Walk(paths.pop())
        decoder = SpeculativeDecoder(target, draft, config=config, chance=chance)
        outputs = decoder.generate([(0, 1), (1, 1)], params, on_error="return")
        for output, masses in zip(outputs, found, strict=True):
            masses[None if output.error else output.token_ids] += chance.probability
        if outputs[0].error is not None:
            assert isinstance(outputs[0].error, UserCodeError)
            assert outputs[0].token_ids == (1,), "what it had, and no more"
        paths += chance.siblings
    return found


@pytest.mark.parametrize("speculation", SHAPES, ids=str)
def test_a_failing_request_leaves_the_others_their_distribution(
    speculation: dict[str, Any],
) -> None:
    failing, beside = whole_outputs(speculation)
    target, _ = mock_pair(V, 3)
    expected = target_distribution(target, (1, 1), SamplingParams(max_tokens=3))
    assert distance(beside, expected) < 1e-12
    # It fails where its text comes to a token 1 before its end, and nowhere else.
    alone = target_distribution(target, (0, 1), SamplingParams(max_tokens=2))
    fails = {text: mass for text, mass in alone.items() if text[0] == 1}
    kept = {text: mass for text, mass in alone.items() if text[0] != 1}
    assert distance(failing, {**kept, None: sum(fails.values())}) < 1e-12


@pytest.mark.parametrize("speculation", SHAPES[1:], ids=str)
def test_a_processor_that_fails_at_the_drafts_logits_alone_ends_nothing(
    speculation: dict[str, Any],
) -> None:
    """What is drafted is another distribution then; what is emitted is not."""
    target, draft = mock_pair(3, 2)
    failures: list[int] = []

    def target_only(history: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        own = torch.from_numpy(target.probabilities(tuple(history.tolist()))).log()
        if not torch.allclose(logits.double(), own):
            failures.append(len(history))
            raise LookupError("not the target's")
        return logits

    config = SpeculativeConfig(depth="fixed", **speculation)
    decoder = SpeculativeDecoder(target, draft, config=config)
    params = SamplingParams(max_tokens=3, logits_processors=(target_only,))
    found = exact_distribution(decoder, (0, 1), params)
    expected = target_distribution(target, (0, 1), SamplingParams(max_tokens=3))
    assert failures
    assert distance(found, expected) < 1e-12


def test_a_failure_that_ends_others_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: all of the round are retired."""
    monkeypatch.setattr(Scheduler, "_retire_failed", lambda self, _: self.close())
    target, _ = mock_pair(V, 3)
    expected = target_distribution(target, (1, 1), SamplingParams(max_tokens=3))
    assert distance(whole_outputs(SHAPES[1])[1], expected) > 1e-3
