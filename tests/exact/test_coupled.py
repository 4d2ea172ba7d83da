"""Coupled mode: a seed's text is the text of plain keyed sampling, whatever is proposed.

Its distribution is proven in test_trees and below: one draw of the target's distribution at each
position, over every proposal.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from outrider import (
    ModelDrafter,
    NgramDrafter,
    SamplingParams,
    SpeculativeConfig,
    SpeculativeDecoder,
)
from outrider.drafters.base import Drafter
from outrider.random import POSITION, Philox4x32, Race
from outrider.runtimes.tabular import TabularModel, mock_pair
from outrider.types.records import Distributions, DraftPlan, DraftProposal
from tests.support.exactness import TOLERANCE, configured, error

CASES = 300


class Stubborn(Drafter):
    """Proposes random tokens of its own, in chains of random length."""

    vocab_size = 0

    def __init__(self, vocab_size: int, rng: random.Random) -> None:
        self.vocab_size = vocab_size
        self.rng = rng

    def propose(self, prefixes: Any, plan: DraftPlan, ctx: Any) -> DraftProposal:
        lengths = np.array([self.rng.randint(0, depth) for depth in plan.depth.tolist()])
        shape = (len(prefixes), int(lengths.max()))
        tokens = torch.tensor(
            [[self.rng.randrange(self.vocab_size) for _ in range(shape[1])] for _ in prefixes],
            dtype=torch.int64,
        ).reshape(shape)
        return DraftProposal(tokens, lengths, Distributions(point_masses=tokens))


def drafter_and_config(
    rng: random.Random, draft: TabularModel, vocab_size: int
) -> tuple[Any, SpeculativeConfig]:
    """A random drafter and a random way to use it."""
    k = rng.randint(0, 4)
    more: dict[str, Any] = {"num_speculative_tokens": k}
    drafter: Any = rng.choice([None, ModelDrafter(draft), NgramDrafter(2), ...])
    if drafter is ...:
        drafter = Stubborn(vocab_size, rng)
    if isinstance(drafter, ModelDrafter):
        shape = tuple(rng.randint(1, 3) for _ in range(max(1, k)))
        more |= rng.choice(
            [
                {},
                {"draft_sample_method": "greedy"},
                {"tree_shape": shape},
                {"tree_shape": shape, "draft_sample_method": "greedy"},
                {"tree_budget": rng.randint(1, 7)},
            ]
        )
    return drafter, SpeculativeConfig(depth="fixed", verification="coupled", **more)


def test_random_cases_give_the_text_of_plain_keyed_sampling() -> None:
    rng = random.Random(0)
    accepted = drafted = compared = 0
    while compared < CASES:
        vocab_size = rng.randint(2, 9)
        target, draft = mock_pair(vocab_size, rng.randrange(1000), rng.random())
        batch = rng.randint(1, 5)
        prompts = [[rng.randrange(vocab_size)] * rng.randint(1, 3) for _ in range(batch)]
        params = [
            SamplingParams(
                max_tokens=rng.randint(1, 16),
                temperature=rng.choice([0.0, 0.5, 1.0, 1.3]),
                top_k=rng.choice([0, 0, 2]),
                top_p=rng.choice([1.0, 0.8]),
                n=rng.choice([1, 1, 2]),
                stop_token_ids=rng.choice([(), (0,)]),
                seed=rng.randrange(2**64),
            )
            for _ in prompts
        ]
        plain = SpeculativeDecoder(
            target, config=SpeculativeConfig(depth="fixed", verification="coupled")
        )
        expected = [plain.generate(*pair) for pair in zip(prompts, params, strict=True)]
        for _ in range(3):
            drafter, config = drafter_and_config(rng, draft, vocab_size)
            decoder = SpeculativeDecoder(target, drafter, config=config)
            found = decoder.generate(prompts, params)
            for one, other in zip(found, expected, strict=True):
                for choice, same in zip(one.choices, other.choices, strict=True):
                    assert choice.token_ids == same.token_ids, (config, drafter)
                    assert choice.finish_reason == same.finish_reason
                    compared += 1
            accepted += decoder.metrics.accepted
            drafted += decoder.metrics.drafted
    # Drafts were made, many kept and many refused.
    assert accepted > 150
    assert drafted - accepted > 150


@pytest.mark.parametrize("k", [0, 1, 2, 3])
def test_the_distribution_of_coupled_chains(k: int) -> None:
    target, draft = mock_pair(3, 11)
    params = SamplingParams(max_tokens=4, stop_token_ids=(1,))
    assert error(target, draft, configured("coupled", k), params) < TOLERANCE
    assert error(target, NgramDrafter(2), configured("coupled", k), params) < TOLERANCE


def test_noise_is_exponential_and_the_same_however_it_is_asked_for() -> None:
    chance = Philox4x32()
    keys = np.zeros((3, 5), dtype=np.uint64)
    keys[:, 0], keys[:, 3] = (7, 8, 7), POSITION
    keys[2, 2] = 1
    noise = chance.race(keys, 9)
    rows, tokens = np.divmod(np.arange(27), 9)
    assert (chance.race_at(keys[rows], tokens).reshape(3, 9) == noise).all()
    assert len(np.unique(noise)) == 27
    # The mean of 40,000 exponentials is 1 within 5 / 200 but for one in 1.7 million.
    assert abs(chance.race(keys[:1], 40_000).mean() - 1) < 5 / 200


def test_filtered_tokens_get_no_noise_and_none_is_made_twice() -> None:
    asked: list[int] = []

    class Counted(Philox4x32):
        def race_at(self, keys: Any, tokens: Any) -> Any:
            asked.append(len(tokens))
            return super().race_at(keys, tokens)

    keys = np.zeros((1, 5), dtype=np.uint64)
    race = Race(Counted(), keys)
    distribution = torch.zeros(1, 1000)
    distribution[0, :10] = 0.1
    first = race.times(distribution, 2)
    assert asked == [10]
    assert (race.times(distribution, 2) == first).all()
    assert asked == [10]
    wider = distribution.clone()
    wider[0, 10:14] = 0.1
    assert (race.times(wider, 2)[0, :10] == first[0, :10]).all()
    assert asked == [10, 4]
    assert int(first.isfinite().sum()) == 10


def test_one_noise_for_two_positions_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: the position is left out of the key. By frequencies, 2,000 samples.

    Sound, the second token equals the first with probability 0.5: the count is beyond 5 standard
    deviations (112) of 1,000 once in 1.7 million times.
    """
    target = TabularModel(lambda _: [0.5, 0.5], 2)
    decoder = SpeculativeDecoder(
        target, config=SpeculativeConfig(depth="fixed", verification="coupled")
    )
    params = SamplingParams(max_tokens=2, n=2000, seed=1)

    def repeats() -> int:
        choices = decoder.generate([0], params).choices
        return sum(c.token_ids[0] == c.token_ids[1] for c in choices)

    assert abs(repeats() - 1000) < 112
    race = Philox4x32.race

    def positionless(self: Philox4x32, keys: Any, size: int) -> Any:
        keys = keys.copy()
        keys[:, 2] = 0
        return race(self, keys, size)

    monkeypatch.setattr(Philox4x32, "race", positionless)
    assert repeats() == 2000
