"""Where the drafts of sampled requests with a seed end: by what the request's own rounds taught."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch

from outrider import HybridDrafter, SamplingParams, SpeculativeConfig, SpeculativeDecoder
from outrider.certify import exact_distribution
from outrider.certify.reference import distance, target_distribution
from outrider.drafters.model import ModelDrafter
from outrider.engine.context import RoundContext
from outrider.policies import AdaptiveDepth, Levels
from outrider.policies.sureness import Pool
from outrider.runtimes.tabular import TabularModel
from outrider.types.acceptance import DRAWN, Acceptance, Sureness
from outrider.types.protocols import DraftContext
from outrider.types.records import DraftPlan, DraftProposal, Prefix, RoundRecord, SequenceState

from .test_confidence import wavering

TOLERANCE = 1e-12
PROMPTS = ([1, 2, 3], [4], [0, 5, 6, 7, 2], [3, 3])


def configured(verification: str = "block", k: int = 3, cost: float = 0.5) -> SpeculativeConfig:
    return SpeculativeConfig(
        num_speculative_tokens=k,
        verification=verification,
        cost_ratio=cost,
        strict=True,
    )


class TestSureness:
    def test_what_was_reached_is_counted_by_class(self) -> None:
        """Two tokens kept, the third refused, the fourth not looked at."""
        after = Sureness().after((0.0, 2.2, float("nan"), 0.0), 2)
        assert {i: n for i, n in enumerate(after.reached) if n} == {0: 1, 6: 1, 10: 1}
        assert {i: n for i, n in enumerate(after.kept) if n} == {0: 1, 6: 1}
        found = after.chances(DRAWN)
        assert found.classes[0] > DRAWN.classes[0]
        assert found.classes[6] > DRAWN.classes[6]
        assert found.classes[10] < DRAWN.classes[10]
        assert found.classes[1:6] == pytest.approx(DRAWN.classes[1:6])
        assert found.overall == pytest.approx((2 + 4 * DRAWN.overall) / 7)

    def test_a_class_ends_where_the_next_begins(self) -> None:
        after = Sureness().after((0.05,), 0)
        assert after.reached[:2] == (0, 1)

    def test_acceptance_carries_it_where_entropies_are_told(self) -> None:
        assert Acceptance().after(2, 1).sureness == Sureness()
        assert Acceptance().after(2, 1, (0.1, 0.1)).sureness == Sureness().after((0.1, 0.1), 1)

    def test_rows_are_judged_by_their_own_tokens_and_what_others_kept(self) -> None:
        """A row that is alone is judged by its own only; greedy rows by greedy ones."""
        asked = SamplingParams(max_tokens=9)
        row = SequenceState(Prefix(0, [1]), 1, asked, frozenset(), 0)
        pool = Pool()
        for _ in range(50):
            pool.add(False, (3.5,), 0)
            pool.add(True, (3.5,), 1)
        assert pool.chances(row, True).classes == pytest.approx(DRAWN.classes)
        assert pool.chances(row, False).classes[8] < 0.1
        greedy = replace(row, params=replace(asked, temperature=0))
        assert pool.chances(greedy, False).classes[8] > 0.9
        for _ in range(8):
            row = row.advanced([0, 0], 1, None, row.acceptance.after(1, 1, (3.5,)), ())
        assert 0.6 < pool.chances(row, False).classes[8] < pool.chances(row, True).classes[8]


@pytest.mark.parametrize("verification", ["block", "token"])
@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("batch_size", [1, 5])
def test_the_distribution_where_seeded_drafts_end_early(
    verification: str, k: int, batch_size: int
) -> None:
    for number in range(2):
        target, draft = wavering(3, number)
        decoder = SpeculativeDecoder(target, draft, config=configured(verification, k))
        params = SamplingParams(max_tokens=k + 2, stop_token_ids=(2,), seed=3)
        found = exact_distribution(decoder, (0, 1), params, batch_size=batch_size)
        assert distance(found, target_distribution(target, (0, 1), params)) < TOLERANCE


def test_the_distribution_beside_others_and_of_a_hybrid() -> None:
    target, draft = wavering(3, 1)
    for drafter in (draft, HybridDrafter.usual(draft)):
        decoder = SpeculativeDecoder(target, drafter, config=configured())
        asked = [SamplingParams(max_tokens=9), SamplingParams(max_tokens=9, temperature=0)]
        mates = [decoder.start([1, 0], params)[0] for params in asked]
        params = SamplingParams(max_tokens=5, seed=1)
        found = exact_distribution(decoder, (0, 1, 0), params, batch_size=3, mates=mates)
        assert distance(found, target_distribution(target, (0, 1, 0), params)) < TOLERANCE


def test_drafts_end_in_the_tests_of_exactness() -> None:
    seen: list[tuple[int, bool]] = []
    for number in range(2):
        target, draft = wavering(3, number)
        decoder = SpeculativeDecoder(
            target,
            draft,
            config=configured(),
            on_round=lambda record: seen.append((record.depth[0], record.ended[0])),
        )
        for seed in range(10):
            decoder.generate([0, 1], SamplingParams(max_tokens=20, seed=seed))
    assert {(1, True), (2, True), (3, False)} <= set(seen)


def test_a_seed_gives_one_text_in_any_batch_and_order() -> None:
    """Beside rows that share a depth, that are greedy, and that repeat others' depths."""
    target, draft = wavering(9, 0)
    asked = [
        SamplingParams(max_tokens=40, seed=7),
        SamplingParams(max_tokens=33),
        SamplingParams(max_tokens=31, seed=2, temperature=0.6, top_k=4),
        SamplingParams(max_tokens=25, temperature=0),
    ]
    alone = [
        SpeculativeDecoder(target, draft, config=configured(k=6, cost=0.2)).generate(prompt, params)
        for prompt, params in zip(PROMPTS, asked, strict=True)
    ]
    assert len(set(alone[0].depths)) > 2
    decoder = SpeculativeDecoder(target, draft, config=configured(k=6, cost=0.2))
    for order in permutations(range(4)):
        outputs = decoder.generate([PROMPTS[i] for i in order], [asked[i] for i in order])
        for place, i in enumerate(order):
            if asked[i].seed is not None:
                found = outputs[place]
                assert (found.token_ids, found.depths) == (alone[i].token_ids, alone[i].depths)


@pytest.mark.parametrize("verification", ["block", "token"])
@pytest.mark.parametrize("depth", ["adaptive", "fixed", "confidence"])
def test_seed_and_depths_replay_a_run(verification: str, depth: Any) -> None:
    target, draft = wavering(9, 1)
    config = configured(verification, 6, 0.2)
    for seed in range(4):
        params = SamplingParams(max_tokens=40, seed=seed)
        first = SpeculativeDecoder(target, draft, config=config).generate([1, 2], params)
        given = replace(config, depth=depth, cost_ratio=None)
        replay = replace(params, depths=first.depths)
        again = SpeculativeDecoder(target, draft, config=given).generate([1, 2], replay)
        assert (again.token_ids, again.depths) == (first.token_ids, first.depths)


def lived(
    decoder: SpeculativeDecoder, prompt: list[int], params: SamplingParams
) -> list[tuple[SequenceState, RoundRecord]]:
    """A request's state after each of its rounds, and what the round did."""
    batch = decoder.pack(decoder.start(prompt, params))
    rounds = []
    while not rounds or rounds[-1][0].finish_reason is None:
        step = decoder.step(batch)
        batch = step.batch
        rounds.append((batch.states[0], step.record))
    decoder.release(batch.states)
    return rounds


def usual(target: Any, draft: Any, config: SpeculativeConfig) -> SpeculativeDecoder:
    return SpeculativeDecoder(target, HybridDrafter.usual(draft), config=config)


def test_no_source_drafts_more_than_depths_ask() -> None:
    target, draft = wavering(9, 1)
    for depths in ((0,) * 99, (2,) * 99):
        params = SamplingParams(max_tokens=60, seed=0, temperature=0.4, depths=depths)
        rounds = lived(usual(target, draft, configured(k=6)), [1, 2, 3, 4] * 3, params)
        assert max(record.depth[0] for _, record in rounds) == depths[0]


@pytest.mark.parametrize(
    "shape", [{}, {"tree_shape": (2, 2, 1)}, {"tree_budget": 7}], ids=["chain", "shape", "budget"]
)
def test_a_replay_of_a_hybrid_learns_what_the_run_learnt(shape: dict[str, Any]) -> None:
    """After every round: what is looked up rests on it."""
    target, draft = wavering(9, 1)
    config = replace(configured(k=6, cost=0.1), **shape)
    seen = set()
    prompt = [1, 2, 3, 4, 1, 2, 3, 4, 1, 2]
    for seed in range(6):
        params = SamplingParams(max_tokens=80, seed=seed, temperature=0.4)
        first = lived(usual(target, draft, config), prompt, params)
        params = replace(params, depths=first[-1][0].depths)
        again = lived(usual(target, draft, config), prompt, params)
        for (before, record), (after, repeated) in zip(first, again, strict=True):
            assert after.output_ids == before.output_ids
            assert after.acceptance == before.acceptance
            assert repeated.looked_up == record.looked_up
            assert repeated.drafted == record.drafted
            seen.add((record.looked_up[0], record.ended[0]))
    assert seen >= {(True, False), (False, False), (False, not shape)}


@pytest.mark.parametrize(
    "settings",
    [{"depth": "confidence"}, {"depth": "fixed"}, {"depth": "fixed", "tree_budget": 7}],
    ids=str,
)
def test_a_replay_of_a_hybrid_chooses_as_the_run_chose(settings: dict[str, Any]) -> None:
    """Between its sources, by what a draft as deep as planned was to bring."""
    target, draft = wavering(9, 1)
    config = SpeculativeConfig(num_speculative_tokens=5, strict=True, **settings)
    for seed in range(12):
        params = SamplingParams(max_tokens=80, seed=seed, temperature=0.4)
        first = usual(target, draft, config).generate([1, 2, 3, 4, 1, 2, 3, 4], params)
        replay = replace(params, depths=first.depths)
        again = usual(target, draft, config).generate([1, 2, 3, 4, 1, 2, 3, 4], replay)
        assert (again.token_ids, again.depths) == (first.token_ids, first.depths)
    params = SamplingParams(max_tokens=60, seed=0, temperature=0.4, depths=(1,) * 99)
    rounds = lived(usual(target, draft, config), [1, 2, 3, 4] * 3, params)
    assert max(record.depth[0] for _, record in rounds) == 1


@pytest.mark.filterwarnings("ignore:the drafter failed")
def test_a_replay_learns_of_failures_as_well() -> None:
    class Failing(ModelDrafter):
        """Fails before or after a token, if others come before it that make it."""

        def propose(self, prefixes: Any, plan: DraftPlan, ctx: DraftContext) -> DraftProposal:
            if prefixes[0].tokens[-1] == 3:
                raise ValueError("never after a 3")
            proposal = super().propose(prefixes, plan, ctx)
            if prefixes[0].tokens[-1] == 5:
                raise ValueError("never again after a 5")
            return proposal

    target, draft = wavering(9, 1)
    config = replace(configured(k=6, cost=0.1), strict=False)
    params = SamplingParams(max_tokens=80, seed=2)
    first = lived(SpeculativeDecoder(target, Failing(draft), config=config), [1, 2], params)
    failed = {record.depth[0] for _, record in first if record.draft_failed}
    assert min(failed) == 0 < max(failed)
    params = replace(params, depths=first[-1][0].depths)
    again = lived(SpeculativeDecoder(target, Failing(draft), config=config), [1, 2], params)
    for (before, _), (after, _) in zip(first, again, strict=True):
        assert (after.output_ids, after.acceptance) == (before.output_ids, before.acceptance)


def test_depths_of_a_larger_draft_are_replayed_beside_others() -> None:
    """Deeper than any draft of the decoder that replays them, alone and in a batch."""
    target, draft = wavering(9, 1)
    params = SamplingParams(max_tokens=60, seed=3, temperature=0.4)
    large = SpeculativeDecoder(target, draft, config=configured(k=12, cost=0.02))
    first = large.generate([1, 2], params)
    assert max(first.depths) > 6
    replay = replace(params, depths=first.depths)
    small = configured(k=4, cost=0.2)
    for mates in ([], [SamplingParams(max_tokens=40, seed=1), SamplingParams(max_tokens=40)]):
        decoder = SpeculativeDecoder(target, draft, config=small)
        outputs = decoder.generate([[1, 2], *PROMPTS[: len(mates)]], [replay, *mates])
        assert (outputs[0].token_ids, outputs[0].depths) == (first.token_ids, first.depths)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_mates_depths_do_not_disturb_a_batch(temperature: float) -> None:
    target, draft = wavering(9, 0)
    asked = SamplingParams(max_tokens=40, seed=7)
    alone = SpeculativeDecoder(target, draft, config=configured(k=4)).generate([1, 2, 3], asked)
    mate = SamplingParams(max_tokens=60, depths=(20, 0, 9), temperature=temperature)
    decoder = SpeculativeDecoder(target, draft, config=configured(k=4))
    together, other = decoder.generate([[1, 2, 3], [4]], [asked, mate])
    assert (together.token_ids, together.depths) == (alone.token_ids, alone.depths)
    assert other.depths[:3] == (20, 0, 9)


def test_what_a_seeded_row_was_taught_is_not_shared() -> None:
    """Nor does it learn of others: the rule for it is that of a policy that has seen nothing."""
    learnt = AdaptiveDepth(Levels(4), ends_early=True)
    fresh = AdaptiveDepth(Levels(4), ends_early=True)
    seeded = SequenceState(Prefix(0, [1]), 1, SamplingParams(max_tokens=50, seed=1), frozenset(), 0)
    shared = SequenceState(Prefix(1, [1]), 1, SamplingParams(max_tokens=50), frozenset(), 0)
    record = RoundRecord(
        sequence_ids=(0,),
        drafted=(3,),
        depth=(3,),
        accepted=(0,),
        emitted=(1,),
        bonus=(False,),
        ceiling=(None,),
        first_ceiling=(None,),
        draft_failed=False,
        looked_up=(False,),
        ended=(True,),
        entropies=((0.1, 0.1, 3.0),),
        cached=(0,),
        draft_s=0.3,
        target_s=1.0,
        total_s=1.4,
    )
    after = shared.advanced([0], 3, None, shared.acceptance.after(4, 0), ())
    plain = replace(
        record, drafted=(0,), depth=(0,), ended=(False,), entropies=((),), draft_s=0.0, total_s=1.1
    )
    for policy in (learnt, fresh):
        # Often enough for a gain to be sure, so that no plain round is due.
        for _ in range(12):
            policy.measure([after.advanced([0], 0, None, after.acceptance, ())], plain)
    for _ in range(30):
        learnt.observe([after], replace(record, sequence_ids=(1,)))
    own, untaught = (policy.plan([seeded]).keep_going for policy in (learnt, fresh))
    np.testing.assert_equal(own.chances, untaught.chances)
    np.testing.assert_equal(own.needed, untaught.needed)
    # Of which one was kept, so that there is something to end.
    kept = shared.advanced([0, 0], 1, None, shared.acceptance.after(1, 1), ())
    before = fresh.plan([kept]).keep_going
    for _ in range(30):
        fresh.observe([replace(after, params=seeded.params)], record)
    np.testing.assert_equal(fresh.plan([kept]).keep_going.chances, before.chances)


def test_where_drafts_never_pay_few_are_tried_and_none_is_ended() -> None:
    """A trial is one token; a step that costs as much as a forward is not taken."""
    target, draft = wavering(3, 0)
    decoder = SpeculativeDecoder(target, draft, config=configured(cost=1.0))
    output = decoder.generate([0], SamplingParams(max_tokens=60, seed=1))
    assert set(output.depths) == {0}


@pytest.mark.parametrize("rows", [1, 5])
def test_entropies_are_summed_in_float64(rows: int) -> None:
    """A float32 sum of a long row comes out otherwise in another batch, by the last bits."""
    size = 20_000
    logits = 3 * torch.randn(rows, size, generator=torch.Generator().manual_seed(0))
    model = TabularModel(lambda prefix: np.full(size, 1 / size), size)
    decoder = SpeculativeDecoder(model, model, config=configured())
    batch = decoder.pack([decoder.start([1], SamplingParams(seed=i))[0] for i in range(rows)])
    plan = decoder.policy.plan(batch.states)
    draws = batch.draws(decoder.chance, plan.width, None, coupled=False)
    context = RoundContext(batch, draws, plan, batch.device, decoder.config)
    probs = context.distribution(logits).probs
    context.settle()
    assert probs is not None
    assert probs.dtype == torch.float32
    expected = torch.special.entr(probs).double().numpy().sum(-1)
    found = [row[0] for row in context.told.entropies]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
