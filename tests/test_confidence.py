"""Depth by confidence: where drafts end, and that the output's distribution does not depend on it.

Drafts of these tests are sure of themselves after some tokens and not after others, so that where a
draft ends depends on the very tokens that were drawn: what an inexact rule would be caught by.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from outrider import SamplingParams, SpeculativeConfig, SpeculativeDecoder, TransformersModel
from outrider.certify import exact_distribution
from outrider.certify.reference import distance, target_distribution
from outrider.cli import main
from outrider.drafters.hybrid import HybridDrafter
from outrider.drafters.model import ModelDrafter
from outrider.drafters.ngram import NgramDrafter
from outrider.drafters.prediction import PredictionDrafter
from outrider.errors import DegenerateDistributionError, InvalidConfigError
from outrider.policies import AdaptiveDepth, ConfidenceDepth, Levels, policy_of
from outrider.policies.confidence import GAMMA, WorthDrawing
from outrider.runtimes.tabular import TabularModel, mock_pair
from outrider.types.acceptance import Acceptance
from outrider.types.protocols import DraftContext
from outrider.types.records import DraftPlan, DraftProposal, Prefix
from outrider.verification import METHODS

from .families import random_model, resembling

TOLERANCE = 1e-12
VERIFICATIONS = [*METHODS, "coupled"]
COST = 0.25


def configured(verification: str = "block", k: int = 3, **more: Any) -> SpeculativeConfig:
    settings = {"depth": "confidence", "cost_ratio": COST, "strict": True}
    asked = settings | {"num_speculative_tokens": k, "verification": verification} | more
    return SpeculativeConfig(**asked)


def wavering(vocab_size: int, seed: int) -> tuple[TabularModel, TabularModel]:
    """A random target, and a draft that is sure, less sure or unsure by the last token but one."""
    target, likeness = mock_pair(vocab_size, seed)

    def distribution(prefix: tuple[int, ...]) -> Any:
        sharpness = (6.0, 0.2, 1.5)[prefix[-min(2, len(prefix))] % 3]
        powers = likeness.probabilities(prefix) ** sharpness
        return powers / powers.sum()

    return target, TabularModel(distribution, vocab_size)


def error(
    target: TabularModel,
    drafter: Any,
    config: SpeculativeConfig,
    params: SamplingParams,
    **more: Any,
) -> float:
    decoder = SpeculativeDecoder(target, drafter, config=config)
    return distance(
        exact_distribution(decoder, (0, 1), params, **more),
        target_distribution(target, (0, 1), params),
    )


class TestRule:
    def test_a_token_is_drawn_if_it_raises_tokens_over_time(self) -> None:
        random = np.random.default_rng(0)
        for _ in range(200):
            cost = float(random.uniform(0.01, 1))
            entropies = random.exponential(0.5, size=(1, 8))
            chances = np.maximum(0, 1 - np.sqrt(GAMMA * entropies[0]))
            rule = WorthDrawing(np.array([cost]))
            for n in range(1, 8):
                emitted = 1 + sum(np.prod(chances[:i]) for i in range(1, n + 1))
                # The next token is taken to be as likely to be kept as the last.
                more = emitted + np.prod(chances[:n]) * chances[n - 1]
                pays = more / (1 + (n + 1) * cost) >= emitted / (1 + n * cost)
                assert bool(rule(entropies[:, :n], np.array([True]))[0]) == pays

    def test_rows_are_told_apart(self) -> None:
        rule = WorthDrawing(np.array([0.2, 0.2, 0.0, 0.2]))
        going = rule(np.array([[0.0], [9.0], [9.0], [np.nan]]), np.ones(4, dtype=np.bool_))
        assert going.tolist() == [True, False, True, True]

    def test_a_step_that_costs_more_than_a_forward_is_never_taken(self) -> None:
        target, draft = mock_pair(3, 0)
        decoder = SpeculativeDecoder(target, draft, config=configured(cost_ratio=1.01))
        assert set(decoder.generate([0], SamplingParams(max_tokens=9)).depths) == {0}

    def test_it_learns_nothing(self) -> None:
        assert not ConfidenceDepth(Levels(3)).learns

    @pytest.mark.parametrize("tree", [{"tree_shape": (2, 1)}, {"tree_budget": 3}])
    def test_trees_are_refused(self, tree: dict[str, Any]) -> None:
        with pytest.raises(InvalidConfigError, match=r"depth.*'confidence'.*for trees"):
            configured(**tree)

    def test_trees_are_refused_on_the_command_line(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        flags = ["--depth", "confidence", "--tree-shape", "2,1"]
        assert main(["generate", "-p", "x", *flags]) == 2
        assert "for trees" in capsys.readouterr().err

    def test_how_deep_it_goes_at_most(self) -> None:
        assert SpeculativeConfig(depth="confidence").deepest == 16


class TestWhereDraftsEnd:
    """The draft is sure of token 0 until a sequence has five tokens, and then of nothing."""

    @staticmethod
    def decoder(**more: Any) -> SpeculativeDecoder:
        def distribution(prefix: tuple[int, ...]) -> Any:
            return [1.0, 0, 0, 0] if len(prefix) < 5 else [0.25] * 4

        model = TabularModel(distribution, 4)
        return SpeculativeDecoder(model, model, config=configured(k=8, **more))

    @pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
    @pytest.mark.parametrize("sampling", ["probabilistic", "greedy"])
    def test_each_row_ends_where_its_draft_is_unsure(self, temperature: float, sampling: Any):
        decoder = self.decoder(draft_sample_method=sampling)
        params = SamplingParams(max_tokens=20, temperature=temperature)
        prompts = [[0] * 2, [0] * 7, [0] * 4, [0]]
        step = decoder.step(decoder.pack([decoder.start(p, params)[0] for p in prompts]))
        # By the bound one of four even tokens is kept with .47: it is included, and is the last.
        assert step.record.drafted == (4, 1, 2, 5)
        assert step.record.ended == (True,) * 4
        even = float(np.log(4))
        assert step.record.entropies[1] == pytest.approx((even,), abs=1e-6)
        assert step.record.entropies[2] == pytest.approx((0.0, even), abs=1e-6)

    def test_a_greedy_row_beside_a_sampled_one(self) -> None:
        decoder = self.decoder()
        both = [SamplingParams(max_tokens=20, temperature=t) for t in (0.0, 1.0)]
        states = [decoder.start([0, 0], params)[0] for params in both]
        assert decoder.step(decoder.pack(states)).record.drafted == (4, 4)

    def test_the_requests_own_filters_make_its_draft_sure(self) -> None:
        decoder = self.decoder()
        params = SamplingParams(max_tokens=20, top_k=1, logit_bias={2: 1.0})
        step = decoder.step(decoder.pack(decoder.start([0] * 7, params)))
        assert step.record.drafted == (8,)

    def test_shorter_than_planned_by_what_remains(self) -> None:
        decoder = self.decoder()
        step = decoder.step(decoder.pack(decoder.start([0], SamplingParams(max_tokens=3))))
        assert step.record.drafted == (2,)

    def test_no_forward_is_made_after_the_end(self) -> None:
        decoder = self.decoder()
        assert isinstance(decoder.drafter, ModelDrafter)
        seen: list[int] = []
        model = decoder.drafter.model
        assert isinstance(model, TabularModel)
        decoder.drafter.model = TabularModel(
            lambda prefix: seen.append(len(prefix)) or model.probabilities(prefix), 4
        )
        decoder.step(decoder.pack(decoder.start([0, 0], SamplingParams(max_tokens=20))))
        assert seen == [2, 3, 4, 5]

    def test_a_drafter_that_never_asks_goes_as_deep_as_planned(self) -> None:
        model = TabularModel(lambda _: [0.25] * 4, 4)
        decoder = SpeculativeDecoder(model, NgramDrafter(3), config=configured(k=4))
        step = decoder.step(decoder.pack(decoder.start([0, 1] * 4, SamplingParams())))
        assert step.record.drafted == (4,)

    def test_depths_vary_in_the_tests_of_exactness(self) -> None:
        for size in (3, 4):
            found = Counter[int]()
            for number in range(3):
                target, draft = wavering(size, number)
                decoder = SpeculativeDecoder(target, draft, config=configured())
                for seed in range(5):
                    params = SamplingParams(max_tokens=30, seed=seed)
                    found.update(decoder.generate([0, 1], params).depths)
            assert all(found[depth] > 10 for depth in (1, 2, 3)), found


class TestExactness:
    @pytest.mark.parametrize("verification", VERIFICATIONS)
    @pytest.mark.parametrize("vocab_size", [3, 4])
    @pytest.mark.parametrize("k", [1, 2, 3])
    def test_the_engine_emits_the_targets_distribution(
        self, verification: str, vocab_size: int, k: int
    ) -> None:
        config = configured(verification, k)
        for number in range(2):
            target, draft = wavering(vocab_size, number)
            seed = (None, 5)[number]
            params = SamplingParams(max_tokens=max(3, k + 1), stop_token_ids=(2,), seed=seed)
            assert error(target, draft, config, params) < TOLERANCE

    @pytest.mark.parametrize("verification", VERIFICATIONS)
    @pytest.mark.parametrize(
        "asked",
        [
            {"temperature": 0.6},
            {"temperature": 1.5, "top_k": 2},
            {"top_p": 0.8},
            {"min_p": 0.2, "repetition_penalty": 1.3},
            {"temperature": 0.0},
            {"frequency_penalty": 0.8, "bad_words": ((1, 2),)},
            {"depths": (3, 0, 2)},
        ],
        ids=str,
    )
    def test_under_sampling_parameters(self, verification: str, asked: dict[str, Any]) -> None:
        target, draft = wavering(3, 4)
        params = SamplingParams(max_tokens=4, **asked)
        assert error(target, draft, configured(verification), params) < TOLERANCE

    @pytest.mark.parametrize("verification", METHODS)
    @pytest.mark.parametrize(
        "more",
        [
            {"draft_sample_method": "greedy"},
            {"draft_params": SamplingParams(temperature=0.4, top_k=2)},
            {"cost_ratio": 0.5},
            {"cost_ratio": 0.0},
        ],
        ids=str,
    )
    def test_under_other_drafting(self, verification: str, more: dict[str, Any]) -> None:
        target, draft = wavering(3, 7)
        config = configured(verification, **more)
        assert error(target, draft, config, SamplingParams(max_tokens=4)) < TOLERANCE

    @pytest.mark.parametrize("verification", METHODS)
    @pytest.mark.parametrize("batch_size", [1, 5])
    def test_whoever_shares_the_batch(self, verification: str, batch_size: int) -> None:
        target, draft = wavering(3, 8)
        decoder = SpeculativeDecoder(target, draft, config=configured(verification))
        asked = [
            SamplingParams(max_tokens=2, temperature=0),
            SamplingParams(max_tokens=9, temperature=0.5),
            SamplingParams(max_tokens=9, top_k=2, depths=(3,)),
        ]
        mates = [decoder.start([1] * (i + 1), params)[0] for i, params in enumerate(asked)]
        params = SamplingParams(max_tokens=4, top_p=0.9)
        found = exact_distribution(decoder, (0, 1), params, batch_size=batch_size, mates=mates)
        assert distance(found, target_distribution(target, (0, 1), params)) < TOLERANCE

    @pytest.mark.parametrize("verification", ["block", "token", "coupled"])
    @pytest.mark.parametrize("number", range(2))
    def test_where_adaptive_depth_ends_drafts(self, verification: str, number: int) -> None:
        target, draft = wavering(3, number)
        config = configured(verification, depth="adaptive", cost_ratio=0.5)
        drafter = ModelDrafter(draft)
        policy = policy_of(config, drafter, target)
        assert isinstance(policy, AdaptiveDepth)
        # Else it drafts one token until one is kept, and enumeration teaches it nothing.
        policy._shown.acceptance = Acceptance().after(3, 3)
        decoder = SpeculativeDecoder(target, drafter, config=config, policy=policy)
        params = SamplingParams(max_tokens=4, stop_token_ids=(2,))
        found = exact_distribution(decoder, (0, 1), params)
        assert distance(found, target_distribution(target, (0, 1), params)) < TOLERANCE
        ended = set()
        for _ in range(20):
            batch = decoder.pack(decoder.start([0, 1], SamplingParams(max_tokens=20)))
            while batch.states[0].finish_reason is None:
                # With a chance of its own a step teaches the policy nothing, costs neither.
                step = decoder.step(batch, decoder.chance)
                ended.add((step.record.depth[0], step.record.ended[0]))
                batch = replace(step.batch, noise=None)
        assert {(1, True), (2, True)} <= ended

    @pytest.mark.parametrize("verification", VERIFICATIONS)
    def test_of_a_hybrid(self, verification: str) -> None:
        target, draft = wavering(3, 2)
        drafter = HybridDrafter(draft, PredictionDrafter(min_match=1), min_expected=0.8)
        params = SamplingParams(max_tokens=4, prediction=(0, 1, 2, 1, 0, 0))
        assert error(target, drafter, configured(verification), params) < TOLERANCE

    @pytest.mark.filterwarnings("ignore:the drafter failed")
    @pytest.mark.parametrize("verification", METHODS)
    @pytest.mark.parametrize("how", ["raises", "nan"])
    def test_of_a_draft_that_fails_after_some_tokens(self, verification: str, how: str) -> None:
        target, sound = wavering(3, 3)

        class Failing(TabularModel):
            def probabilities(self, prefix: tuple[int, ...]) -> Any:
                if prefix[-1] != 1 or len(prefix) < 4:
                    return sound.probabilities(prefix)
                if how == "raises":
                    raise ValueError("no more after a 1")
                return np.full(3, np.nan)

        config = configured(verification, strict=False)
        draft = Failing(sound.probabilities, 3)
        params = SamplingParams(max_tokens=4)
        assert error(target, draft, config, params, batch_size=1) < TOLERANCE

    def test_a_distribution_that_means_nothing_is_a_failure_not_an_end(self) -> None:
        target, _ = mock_pair(3, 0)

        class Nan(TabularModel):
            def probabilities(self, prefix: tuple[int, ...]) -> Any:
                return np.full(3, np.nan)

        draft = Nan(lambda _: [1.0, 0, 0], 3)
        with pytest.raises(DegenerateDistributionError, match="draft"):
            SpeculativeDecoder(target, draft, config=configured()).generate([0])
        decoder = SpeculativeDecoder(target, draft, config=configured(strict=False))
        with pytest.warns(RuntimeWarning, match="the drafter failed"):
            decoder.generate([0], SamplingParams(max_tokens=3))
        assert decoder.metrics.draft_failures == 2


class EndsByItsLastToken(ModelDrafter):
    """A planted fault: the last token that was drawn is left out if it was not the likeliest."""

    def propose(
        self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: DraftContext
    ) -> DraftProposal:
        """The sound draft, shortened by what was drawn."""
        sound = super().propose(prefixes, plan, ctx)
        return shortened(sound, lambda distributions, token: token != distributions.argmax())


class LooksOnBeforeItIncludes(ModelDrafter):
    """A planted fault: a token is left out if the draft is not sure of what comes after it."""

    def propose(
        self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: DraftContext
    ) -> DraftProposal:
        """The sound draft, without a last token that leads to where the draft is unsure."""
        sound = super().propose(prefixes, plan, ctx)
        after = [
            self.model.open([prefix.extended(tokens[:n])], 1).logits[0]
            for prefix, tokens, n in zip(
                prefixes, sound.tokens.tolist(), sound.lengths.tolist(), strict=True
            )
        ]
        unsure = [torch.special.entr(logits.softmax(-1)).sum() > 0.5 for logits in after]
        rows = iter(unsure)
        return shortened(sound, lambda *_: bool(next(rows)))


def shortened(sound: DraftProposal, drops: Any) -> DraftProposal:
    lengths = sound.lengths.copy()
    if sound.distributions is None or sound.distributions.probs is None:
        return sound
    for row, length in enumerate(lengths.tolist()):
        last = max(0, length - 1)
        if drops(sound.distributions.probs[row, last], sound.tokens[row, last]) and length:
            lengths[row] -= 1
    return DraftProposal(sound.tokens, lengths, sound.distributions)


@pytest.mark.parametrize("fault", [EndsByItsLastToken, LooksOnBeforeItIncludes])
@pytest.mark.parametrize("verification", METHODS)
def test_a_rule_that_drops_what_was_drawn_is_caught(fault: Any, verification: str) -> None:
    """By the test that the shipped rule passes."""
    params = SamplingParams(max_tokens=4, stop_token_ids=(2,))
    errors = []
    for number in range(2):
        target, draft = wavering(3, number)
        errors.append(error(target, fault(draft), configured(verification), params))
    assert min(errors) > 1e-6


class TestTexts:
    """Under Philox, as in production."""

    PROMPTS = ([1, 2, 3], [4], [0, 5, 6, 7, 2], [3, 3])

    def test_a_seeded_text_does_not_depend_on_its_batch(self) -> None:
        target, draft = wavering(9, 0)
        decoder = SpeculativeDecoder(target, draft, config=configured(k=6))
        asked = [
            SamplingParams(max_tokens=40, seed=7),
            SamplingParams(max_tokens=25, temperature=0),
            SamplingParams(max_tokens=31, seed=2, temperature=0.6, top_k=4),
            SamplingParams(max_tokens=33),
        ]
        together = decoder.generate(self.PROMPTS, asked)
        assert len({depth for output in together for depth in output.depths}) > 3
        for prompt, params, output in zip(self.PROMPTS, asked, together, strict=True):
            own = SamplingParams(
                max_tokens=params.max_tokens,
                temperature=params.temperature,
                top_k=params.top_k,
                seed=output.seed,
            )
            alone = decoder.generate(prompt, own)
            assert (alone.token_ids, alone.depths) == (output.token_ids, output.depths)

    @pytest.mark.parametrize("verification", VERIFICATIONS)
    @pytest.mark.parametrize("depth", ["confidence", "fixed"])
    def test_seed_and_depths_replay_a_run(self, verification: str, depth: str) -> None:
        target, draft = wavering(9, 1)
        decoder = SpeculativeDecoder(target, draft, config=configured(verification, 6))
        for temperature in (1.0, 0.5):
            params = SamplingParams(max_tokens=40, temperature=temperature)
            first = decoder.generate([1, 2], params)
            replay = SamplingParams(
                max_tokens=40, temperature=temperature, seed=first.seed, depths=first.depths
            )
            config = configured(verification, 6, depth=depth)
            again = SpeculativeDecoder(target, draft, config=config).generate([1, 2], replay)
            assert (again.token_ids, again.depths) == (first.token_ids, first.depths)

    def test_a_replay_is_never_ended(self) -> None:
        model = TabularModel(lambda _: [0.25] * 4, 4)
        decoder = SpeculativeDecoder(model, model, config=configured())
        params = SamplingParams(max_tokens=30, depths=(3, 1, 3, 0, 5))
        assert decoder.generate([0], params).depths[:5] == (3, 1, 3, 0, 5)

    def test_coupled_and_greedy_texts_are_the_plain_ones(self) -> None:
        target, draft = wavering(9, 2)
        for verification, temperature in (("coupled", 0.9), ("block", 0.0), ("token", 0.0)):
            config = configured(verification, 6)
            params = SamplingParams(max_tokens=50, temperature=temperature, seed=3)
            output = SpeculativeDecoder(target, draft, config=config).generate([4, 1], params)
            plain = SpeculativeDecoder(target, config=config).generate([4, 1], params)
            assert output.token_ids == plain.token_ids
            assert len(set(output.depths)) > 2

    def test_with_models_that_keep_a_cache(self) -> None:
        """Rows end at different depths, and go on from what they were fed."""
        whole = random_model("llama")
        target = TransformersModel(whole, max_sequences=4)
        draft = TransformersModel(resembling(whole), max_sequences=4)
        decoder = SpeculativeDecoder(target, draft, config=configured(k=6, cost_ratio=0.125))
        asked = [SamplingParams(max_tokens=24, temperature=t, seed=5) for t in (0, 1, 0.3, 0.7)]
        together = decoder.generate(self.PROMPTS, asked)
        assert len({depth for output in together for depth in output.depths}) > 3
        for prompt, params, output in zip(self.PROMPTS, asked, together, strict=True):
            alone = decoder.generate(prompt, params)
            assert (alone.token_ids, alone.depths) == (output.token_ids, output.depths)
        greedy = SpeculativeDecoder(target).generate(self.PROMPTS[0], asked[0])
        assert greedy.token_ids == together[0].token_ids
