"""The engine as it ships emits exactly the target's distribution: by enumeration, error < 1e-12.

Every draw of the engine is walked through all of its outcomes. Branches of one enumeration are in
different states, so with more than one to a batch every step is a ragged batch. The planted faults
at the end show that the same test sees a biased engine.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from outrider import SamplingParams, SpeculativeDecoder
from outrider import random as chance
from outrider.certify import exact_distribution, faults
from outrider.certify.ceilings import expected
from outrider.certify.reference import distance, target_distribution
from outrider.drafters.ngram import NgramDrafter
from outrider.errors import DegenerateDistributionError, InvalidConfigError, KeyReuseError
from outrider.runtimes.tabular import TabularModel, mock_pair
from outrider.sampling import batch
from outrider.verification import METHODS
from tests.support.exactness import TOLERANCE, configured, error


@pytest.mark.parametrize("verification", METHODS)
@pytest.mark.parametrize(("k", "vocab_size"), [(1, 5), (2, 4), (3, 3)])
@pytest.mark.parametrize("stop", [(), (1,)], ids=["no_stop", "stop"])
def test_the_engine_emits_the_targets_distribution(
    verification: str, k: int, vocab_size: int, stop: tuple[int, ...]
) -> None:
    params = SamplingParams(max_tokens=4, stop_token_ids=stop)
    for seed in range(2):
        target, draft = mock_pair(vocab_size, seed)
        assert error(target, draft, configured(verification, k), params) < TOLERANCE


@pytest.mark.parametrize("verification", METHODS)
@pytest.mark.parametrize("batch_size", [1, 2, 7])
def test_the_distribution_does_not_depend_on_the_batch(verification: str, batch_size: int) -> None:
    target, draft = mock_pair(3, 5)
    params = SamplingParams(max_tokens=4, stop_token_ids=(2,))
    config = configured(verification, 2)
    assert error(target, draft, config, params, batch_size=batch_size) < TOLERANCE


@pytest.mark.parametrize("verification", METHODS)
@pytest.mark.parametrize("agreement", [0.0, 0.9, 1.0])
def test_the_distribution_does_not_depend_on_the_draft(verification: str, agreement: float) -> None:
    target, draft = mock_pair(3, 6, agreement)
    params = SamplingParams(max_tokens=4)
    assert error(target, draft, configured(verification, 3), params) < TOLERANCE


@pytest.mark.parametrize("verification", METHODS)
@pytest.mark.parametrize(
    "filters",
    [
        {"temperature": 0.0},
        {"temperature": 1.7},
        {"top_k": 2},
        {"top_p": 0.7},
        {"min_p": 0.3},
        {"temperature": 0.8, "top_k": 3, "top_p": 0.85, "min_p": 0.1},
    ],
    ids=str,
)
def test_the_distribution_under_sampling_parameters(
    verification: str, filters: dict[str, Any]
) -> None:
    target, draft = mock_pair(4, 20)
    params = SamplingParams(max_tokens=3, **filters)
    assert error(target, draft, configured(verification, 2), params) < TOLERANCE


@pytest.mark.parametrize("verification", METHODS)
def test_the_distribution_with_greedy_drafts_as_point_masses(verification: str) -> None:
    target, draft = mock_pair(4, 8)
    config = configured(verification, 3, draft_sample_method="greedy")
    assert error(target, draft, config, SamplingParams(max_tokens=4)) < TOLERANCE


@pytest.mark.parametrize("verification", METHODS)
def test_the_distribution_with_prompt_lookup(verification: str) -> None:
    target, _ = mock_pair(3, 9)
    prompt = (0, 1, 2, 0, 1, 2, 0)
    config = configured(verification, 3)
    params = SamplingParams(max_tokens=4, stop_token_ids=(1,))
    assert error(target, NgramDrafter(3), config, params, prompt) < TOLERANCE


@pytest.mark.parametrize("verification", METHODS)
def test_the_distribution_with_replayed_depths(verification: str) -> None:
    target, draft = mock_pair(3, 10)
    params = SamplingParams(max_tokens=4, depths=(0, 2, 1))
    assert error(target, draft, configured(verification, 3), params) < TOLERANCE


def test_coupled_rows_that_share_an_adaptive_depth_are_walked_one_by_one() -> None:
    """A seed does not make their depths their own, since their text does not depend on them."""
    target, draft = mock_pair(3, 734, 0.95)
    shape = (1, 2, 1)
    config = configured("coupled", 3, depth="adaptive", cost_ratio=0.4, tree_shape=shape)
    params = SamplingParams(max_tokens=4, seed=1)
    assert error(target, draft, config, params, (0, 1, 1)) < TOLERANCE


@pytest.mark.parametrize("verification", METHODS)
def test_models_with_zero_probabilities(verification: str) -> None:
    """Tokens that only the draft likes, and tokens that only the target likes."""

    def distribution(shift: int) -> TabularModel:
        rows = [[0.5, 0.5, 0.0, 0.0], [0.0, 0.25, 0.75, 0.0], [0.2, 0.0, 0.3, 0.5]]
        return TabularModel(lambda prefix: rows[(prefix[-1] + len(prefix) + shift) % 3], 4)

    for shift in range(3):
        params = SamplingParams(max_tokens=4)
        assert (
            error(distribution(0), distribution(shift), configured(verification, 3), params)
            < TOLERANCE
        )


def test_requests_of_every_kind_in_one_batch_each_keep_their_distribution() -> None:
    """Rows of other parameters, depths and histories share steps: each has its own distribution."""
    target, draft = mock_pair(3, 12)
    decoder = SpeculativeDecoder(target, draft, config=configured("block", 3))
    asked = [
        SamplingParams(max_tokens=2, temperature=0),
        SamplingParams(max_tokens=9, temperature=0.5),
        SamplingParams(max_tokens=5, top_k=1),
    ]
    mates = [decoder.start([1] * (1 + i), params)[0] for i, params in enumerate(asked)]
    params = SamplingParams(max_tokens=3, top_p=0.9, stop_token_ids=(0,))
    found = exact_distribution(decoder, (1, 2), params, mates=mates)
    assert distance(found, target_distribution(target, (1, 2), params)) < TOLERANCE


def test_block_keeps_more_than_token_on_the_papers_example() -> None:
    """p = (1/3, 2/3), q = (2/3, 1/3), k = 2: 11/9 accepted tokens against 10/9 (Sun et al.)."""
    target = TabularModel(lambda _: [1 / 3, 2 / 3], 2)
    draft = TabularModel(lambda _: [2 / 3, 1 / 3], 2)
    for verification, known in (("token", 10 / 9), ("block", 11 / 9)):
        decoder = SpeculativeDecoder(target, draft, config=configured(verification, 2))
        mean = expected(decoder, lambda record, row: record.accepted[row])
        assert mean == pytest.approx(known, abs=1e-12)


PARAMS = SamplingParams(max_tokens=4)


@pytest.mark.parametrize(
    ("verification", "fault"),
    [
        ("block", faults.plain_residual()),
        ("block", faults.stops_at_first_refusal()),
        ("token", faults.bonus_from_the_row_before()),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else value,
)
def test_a_faulty_verification_is_seen(
    monkeypatch: pytest.MonkeyPatch, verification: str, fault: Any
) -> None:
    target, draft = mock_pair(3, 1)
    monkeypatch.setitem(METHODS, verification, fault)
    assert error(target, draft, configured(verification, 3), PARAMS) > 1e-4


@pytest.mark.parametrize("verification", METHODS)
def test_a_softmax_reported_for_an_argmax_draft_is_seen(verification: str) -> None:
    target, draft = mock_pair(3, 1)
    drafter = faults.argmax_reported_as_sampled(draft)
    assert error(target, drafter, configured(verification, 2), PARAMS) > 1e-3


def test_one_key_used_twice_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft = mock_pair(3, 1)

    def reused(states: Any, width: int) -> Any:
        made = chance.round_keys(states, width)
        made[:, 1] = made[:, 0]
        return made

    monkeypatch.setattr(batch, "round_keys", reused)
    with pytest.raises(KeyReuseError, match="was used for two draws"):
        error(target, draft, configured("token", 2), PARAMS)


def test_no_key_is_used_twice_over_rounds_choices_and_prompts() -> None:
    """An enumeration sees the keys of one round at a time; here are those of whole requests."""
    target, draft = mock_pair(3, 1)
    used: list[tuple[int, ...]] = []

    class Recorder:
        def draw(self, distributions: torch.Tensor, keys: Any) -> torch.Tensor:
            used.extend(map(tuple, keys.tolist()))
            return chance.Philox4x32().draw(distributions, keys)

    prompts = [(0, 1), (1, 1), (2,)]
    params = SamplingParams(max_tokens=12, seed=3, n=2)
    recorded = SpeculativeDecoder(target, draft, chance=Recorder()).generate(prompts, params)
    ahead = SpeculativeDecoder(target, draft).generate(prompts, params)
    assert [[c.token_ids for c in out.choices] for out in recorded] == [
        [c.token_ids for c in out.choices] for out in ahead
    ]
    assert len(used) > 100
    assert len(used) == len(set(used))


def test_a_distribution_that_is_not_one_is_refused() -> None:
    enumerator = chance.Enumerator([()])
    keys = np.zeros((1, 5), dtype=np.uint64)
    with pytest.raises(DegenerateDistributionError, match=r"total mass 0\.5"):
        enumerator.draw(torch.tensor([[0.25, 0.25]]), keys)


def test_enumeration_refuses_to_run_away() -> None:
    target, draft = mock_pair(4, 1)
    decoder = SpeculativeDecoder(target, draft)
    with pytest.raises(InvalidConfigError, match="max_branches=50"):
        exact_distribution(decoder, (0,), SamplingParams(max_tokens=6), max_branches=50)
    with pytest.raises(InvalidConfigError, match="n=2"):
        exact_distribution(decoder, (0,), SamplingParams(max_tokens=2, n=2))
