"""What batch users of the array functions rely on: ragged rows, point masses, seeds, odd input."""

from __future__ import annotations

import subprocess
import sys
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pytest
import torch

import outrider
from outrider.errors import DegenerateDistributionError, DraftShapeError, InvalidConfigError
from outrider.verification.lossy import LenientVerification, MixtureVerification

RNG = np.random.default_rng(3)
DRAFT = RNG.dirichlet(np.full(5, 0.7), (6, 3))
TARGET = RNG.dirichlet(np.full(5, 0.7), (6, 4))
TOKENS = outrider.sample_index(DRAFT, RNG.random((6, 3)))
SEEDS = [7, 1, 7, 2**64 - 1, 0, 5]


def answers(result: Any) -> list[Any]:
    parts = (result.num_accepted, result.accepted_tokens, result.next_token, result.first_rejection)
    return [part.tolist() for part in parts]


@pytest.mark.parametrize("method", ["token", "block"])
def test_a_batch_cut_in_chunks_has_the_same_answer_with_a_seed_a_row(method: str) -> None:
    whole = outrider.verify_speculative_tokens(DRAFT, TARGET, TOKENS, seed=SEEDS, method=method)
    for cut in ([0, 1, 2, 3, 4, 5, 6], [0, 2, 6]):
        parts = [
            outrider.verify_speculative_tokens(
                DRAFT[a:b], TARGET[a:b], TOKENS[a:b], seed=SEEDS[a:b], method=method
            )
            for a, b in pairwise(cut)
        ]
        found = [list(chain(*each)) for each in zip(*map(answers, parts), strict=True)]
        assert found == answers(whole)


@pytest.mark.parametrize("method", ["token", "block"])
def test_a_ragged_row_has_the_answer_of_its_own_length(method: str) -> None:
    lengths = [3, 0, 2, 1, 3, 2]
    draft, target, tokens = DRAFT.copy(), TARGET.copy(), TOKENS.copy()
    for row, length in enumerate(lengths):
        draft[row, length:], target[row, length + 1 :], tokens[row, length:] = np.nan, np.nan, -1
    ragged = outrider.verify_speculative_tokens(
        draft, target, tokens, seed=SEEDS, method=method, lengths=lengths
    )
    for row, length in enumerate(lengths):
        alone = outrider.verify_speculative_tokens(
            DRAFT[[row], :length],
            TARGET[[row], : length + 1],
            TOKENS[[row], :length],
            seed=[SEEDS[row]],
            method=method,
        )
        assert ragged.num_accepted[row] == alone.num_accepted[0]
        assert ragged.next_token[row] == alone.next_token[0]
        assert ragged.first_rejection[row] == alone.first_rejection[0]


def test_point_masses_have_the_answers_of_one_hot_rows() -> None:
    one_hot = np.eye(5)[TOKENS]
    for seed in range(20):
        built = outrider.verify_speculative_tokens(one_hot, TARGET, TOKENS, seed=seed)
        bare = outrider.verify_speculative_tokens(None, TARGET, TOKENS, seed=seed)
        assert answers(built) == answers(bare)


def test_a_target_row_that_is_never_reached_may_mean_nothing() -> None:
    draft = np.array([[[1.0, 0.0], [0.5, 0.5]]])
    target = np.array([[[0.0, 1.0], [0.0, 0.0], [np.nan, np.nan]]])
    tokens = np.array([[0, 1]])
    for method in ("token", "block"):
        found = outrider.verify_speculative_tokens(draft, target, tokens, seed=1, method=method)
        assert (found.num_accepted[0], found.next_token[0]) == (0, 1)
        target[0, 0] = [1.0, 0.0]
        with pytest.raises(DegenerateDistributionError, match=r"target_probs\[0, 1\]"):
            outrider.verify_speculative_tokens(draft, target, tokens, seed=1, method=method)
        target[0, 0] = [0.0, 1.0]


def test_lossy_methods_are_labelled() -> None:
    for method in (LenientVerification(0.5), MixtureVerification(0.1)):
        found = outrider.verify_speculative_tokens(DRAFT, TARGET, TOKENS, seed=1, method=method)
        assert found.lossy
    assert not outrider.verify_speculative_tokens(DRAFT, TARGET, TOKENS, seed=1).lossy


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"method": ["token"]}, InvalidConfigError, r"method=\['token'\].*one of 'block'"),
        ({"method": "lenient"}, InvalidConfigError, "one of 'block'"),
        ({"seed": [1, 2]}, InvalidConfigError, r"seed=\[1, 2\].*6 of them"),
        ({"seed": 10**400}, InvalidConfigError, "seed="),
        ({"seed": "x"}, InvalidConfigError, "seed='x'"),
        ({"lengths": [4] * 6}, InvalidConfigError, "lengths=4"),
        ({"lengths": [1]}, DraftShapeError, "lengths has 1 entries; expected 6"),
        ({"lengths": 2}, InvalidConfigError, "lengths=2"),
    ],
)
def test_odd_arguments_are_named(change: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        outrider.verify_speculative_tokens(DRAFT, TARGET, TOKENS, **({"seed": 1} | change))


def test_tensors_that_require_grad_and_integers_beyond_float64_are_named() -> None:
    rows = torch.tensor(TARGET[:, 0], requires_grad=True)
    with pytest.raises(InvalidConfigError, match=r"probs requires grad; expected .*detach"):
        outrider.sample_index(rows, torch.zeros(6, dtype=torch.float64))
    with pytest.raises(InvalidConfigError, match="uniform="):
        outrider.accept(-1.0, -1.0, 10**400)
    with pytest.raises(DegenerateDistributionError, match="draft_logprob has the entry inf"):
        outrider.accept(10**400, -1.0, 0.5)
    assert not outrider.accept(-1.0, -(10**400), 0.0)


def test_numpy_alone_is_enough() -> None:
    program = (
        "import sys\n"
        "class NoTorch:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == 'torch': raise ImportError('torch is blocked')\n"
        "sys.meta_path.insert(0, NoTorch())\n"
        "import numpy as np, outrider\n"
        "rows = np.full((2, 3, 4), .25)\n"
        "tokens = np.zeros((2, 2), int)\n"
        "found = outrider.verify_speculative_tokens(rows[:, :2], rows, tokens, seed=1)\n"
        "assert found.num_accepted.tolist() == [2, 2]\n"
        "outrider.compute_acceptance_probs(rows, rows)\n"
        "outrider.accept(-1.0, -1.0, 0.5)\n"
        "outrider.resample_from_adjusted_target(np.log(rows[0]), np.log(rows[1]), np.full(3, .1))\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def emitted(p: Any, q: Any, lenience: float, weight: float) -> Any:
    """The distribution of one token: kept by min(1, p / (l q)), corrected by norm((p - w q)+)."""
    kept = np.minimum(q, p / lenience)
    residual = np.maximum(p - weight * q, 0)
    total = residual.sum()
    residual = residual / total if total > 0 else p
    return kept + (1 - kept.sum()) * residual


def test_lenient_verification_is_never_further_from_the_target_than_the_papers_correction() -> None:
    rng = np.random.default_rng(0)
    gains = []
    for _ in range(400):
        p, q = rng.dirichlet(np.full(int(rng.integers(2, 9)), 0.7), 2)
        lenience = float(rng.uniform(0.2, 1))
        ours, papers = (emitted(p, q, lenience, w) for w in (1.0, lenience))
        assert np.all(ours <= p / lenience + 1e-12)
        gains.append((np.abs(papers - p).sum() - np.abs(ours - p).sum()) / 2)
        tokens = np.arange(len(p))[:, None]
        rows = np.tile(q, (len(p), 1, 1)), np.tile(p, (len(p), 2, 1))
        found = shipped(tokens, *rows, lenience)
        assert np.abs(q @ found - ours).max() < 1e-12
    assert min(gains) > -1e-12
    assert max(gains) > 0.02


def shipped(tokens: Any, draft: Any, target: Any, lenience: float) -> Any:
    """The first token's distribution after each draft, from the two functions of the method."""
    from outrider.types.records import Distributions, DraftProposal
    from outrider.verification import Tree

    method = LenientVerification(lenience)
    proposal: Any = DraftProposal(tokens, np.ones(len(tokens), int), Distributions(probs=draft))
    tree = Tree.of(proposal, target)
    stop, weights = method.stop_distribution(tree)
    residual = method.residual(tree, weights, np.zeros(len(tokens), int))
    return stop[:, 1:] * np.eye(len(tokens)) + stop[:, :1] * residual


@pytest.mark.parametrize("method", ["token", "block"])
def test_a_round_in_which_no_row_drafts_draws_from_the_target(method: str) -> None:
    draft, target = np.full((2, 3, 4), 0.25), np.tile([0.0, 0.0, 1.0, 0.0], (2, 4, 1))
    tokens = np.zeros((2, 3), dtype=np.int64)
    found = outrider.verify_speculative_tokens(
        draft, target, tokens, seed=1, method=method, lengths=[0, 0]
    )
    assert found.num_accepted.tolist() == [0, 0]
    assert found.next_token.tolist() == [2, 2]
