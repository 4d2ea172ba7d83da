"""A decoder with an adaptive depth knows what rounds cost before its first request."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from outrider import (
    HybridDrafter,
    ModelDrafter,
    SamplingParams,
    SpeculativeConfig,
    SpeculativeDecoder,
    SuffixDrafter,
)
from outrider.drafters.candidate import Candidate
from outrider.engine.calibration import ABREAST, DEPTHS
from outrider.errors import DegenerateDistributionError
from outrider.policies import AdaptiveDepth
from outrider.policies.costs import Costs
from outrider.policies.round import Round
from outrider.runtimes.tabular import TabularModel
from outrider.runtimes.transformers.model import TransformersModel


def tiny(context: int = 128, sequences: int = 2) -> TransformersModel:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=context,
    )
    model = AutoModelForCausalLM.from_config(config).eval()
    return TransformersModel(model, max_sequences=sequences)


def decoder(context: int = 128, depth: str = "adaptive") -> SpeculativeDecoder:
    config = SpeculativeConfig(depth=depth)
    return SpeculativeDecoder(tiny(context), ModelDrafter(tiny(context)), config=config)


def test_it_is_calibrated_and_nothing_else_has_changed() -> None:
    made = decoder()
    assert isinstance(made.policy, AdaptiveDepth)
    assert made.policy.calibrated
    assert made.metrics.rounds == 0
    assert not made.target.live_sequences
    plan = made.policy.plan(made.start([1, 2], SamplingParams(max_tokens=50)))
    assert plan.deepest <= 16


def rounds_counted(monkeypatch: pytest.MonkeyPatch) -> list[Round]:
    """The rounds whose costs are counted from now on."""
    seen = []
    add = Costs.add

    def added(self, round_, reading=True) -> None:
        seen.append(round_)
        add(self, round_, reading)

    monkeypatch.setattr(Costs, "add", added)
    return seen


def test_no_made_up_token_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they find, and how long that takes, is no other text's."""
    seen = rounds_counted(monkeypatch)

    def candidates(self, prefixes, plan, ctx) -> list[Candidate]:
        raise AssertionError("a made-up token was looked up")

    monkeypatch.setattr(SuffixDrafter, "candidates", candidates)
    models = [tiny(sequences=4) for _ in range(2)]
    made = SpeculativeDecoder(models[0], HybridDrafter.usual(models[1], SuffixDrafter()))
    assert made.policy.calibrated
    assert len(seen) == len(DEPTHS) + len(ABREAST)
    assert not any(round_.looked or round_.found for round_ in seen)


def test_drafts_of_batches_are_told_with_nothing_to_be_read_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """But for the first, which reads prompts, and one; all of them are kept here."""
    seen = rounds_counted(monkeypatch)
    draft = tiny(sequences=4)
    target = tiny(sequences=4)
    SpeculativeDecoder(target, ModelDrafter(draft))
    drafts = [round_ for round_ in seen if round_.rows == 4 and round_.steps]
    assert [bool(round_.caught_up) for round_ in drafts] == [True] + [False] * 6
    assert [bool(round_.behind) for round_ in drafts[1:]] == [False] * 2 + [True] + [False] * 3


def test_what_is_kept_of_made_up_tokens_is_not_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The draft is the target here, so that all of them are."""
    observed = []
    observe = AdaptiveDepth.observe

    def seen(self, states, record) -> None:
        observed.append(record)
        observe(self, states, record)

    monkeypatch.setattr(AdaptiveDepth, "observe", seen)
    made = decoder()
    assert made.policy.calibrated
    assert not observed
    made.generate([1, 2], SamplingParams(max_tokens=5, ignore_eos=True))
    assert len(observed) == made.metrics.rounds


def test_models_with_a_short_context_are_not() -> None:
    made = decoder(context=24)
    assert not made.policy.calibrated
    made.generate([1, 2], SamplingParams(max_tokens=20, ignore_eos=True))
    assert made.policy.calibrated


@pytest.mark.parametrize(("context", "prompt"), [(512, 128), (128, 81), (63, 16), (62, None)])
def test_rounds_are_measured_in_the_middle_of_a_text(
    context: int, prompt: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one sequence and of batches, as far in as the context allows."""
    prompts = []
    measure = AdaptiveDepth.measure

    def measured(self, states, record, reading=True) -> None:
        prompts.append((len(states), max(state.prompt_length for state in states)))
        measure(self, states, record, reading)

    monkeypatch.setattr(AdaptiveDepth, "measure", measured)
    models = [tiny(context, sequences=4) for _ in range(2)]
    made = SpeculativeDecoder(models[0], ModelDrafter(models[1]))
    assert set(prompts) == ({(1, prompt), (4, prompt)} if prompt else set())
    assert made.policy.calibrated == bool(prompt)


@pytest.mark.parametrize("config", [{"depth": "fixed"}, {"depth": "adaptive"}])
def test_models_without_caches_are_not(config) -> None:
    model = TabularModel(lambda prefix: np.full(3, 1 / 3), 3)
    made = SpeculativeDecoder(model, model, config=SpeculativeConfig(**config))
    assert made.policy.learns == (config["depth"] == "adaptive")
    assert not (made.policy.learns and made.policy.calibrated)


def test_models_whose_room_is_taken_are_not_calibrated_and_no_harm_is_done() -> None:
    first = decoder()
    events = first.stream([[1, 2], [1, 3]], SamplingParams(max_tokens=30, ignore_eos=True))
    next(events)
    config = SpeculativeConfig(depth="adaptive")
    second = SpeculativeDecoder(first.target, first.drafter, config=config)
    assert not second.policy.calibrated
    assert len(list(events)) == 59
    second.generate([1, 2], SamplingParams(max_tokens=20, ignore_eos=True))
    assert second.metrics.draft_failures == 0


def test_a_policy_of_ones_own_is_left_alone() -> None:
    from outrider.policies import Levels

    policy = AdaptiveDepth(Levels(4))
    made = SpeculativeDecoder(tiny(), ModelDrafter(tiny()), policy=policy)
    assert made.policy is policy
    assert not policy.calibrated


def test_greedy_text_is_that_of_plain_decoding() -> None:
    made = decoder()
    params = SamplingParams(max_tokens=60, temperature=0, ignore_eos=True)
    plain = SpeculativeDecoder(tiny()).generate([1, 2, 3], params)
    assert made.generate([1, 2, 3], params).token_ids == plain.token_ids


class Failing(ModelDrafter):
    """Raises as long as it is told to, or drafts from distributions of NaN."""

    def __init__(self, how: str) -> None:
        super().__init__(tiny())
        self.how = how

    def propose(self, prefixes, plan, ctx):
        if self.how == "raises":
            raise ValueError("no draft today")
        if self.how == "nan":
            ctx.distribution(torch.full((len(prefixes), 40), torch.nan))
        return super().propose(prefixes, plan, ctx)


ADAPTIVE = SpeculativeConfig(depth="adaptive")
LONG = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True, depths=(2,) * 20)
LONG_PLAIN = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)


@pytest.mark.parametrize("how", ["raises", "nan"])
def test_a_drafter_that_fails_then_is_warned_of_in_the_first_round(how: str) -> None:
    """And not before: warnings are errors here."""
    made = SpeculativeDecoder(tiny(), Failing(how), config=ADAPTIVE)
    assert not made.policy.calibrated
    assert made.metrics.draft_failures == 0
    assert not made.target.live_sequences
    with pytest.warns(RuntimeWarning, match="the drafter failed"):
        made.generate([1, 2], LONG)
    assert made.metrics.draft_failures > 0


def test_a_drafter_that_fails_on_made_up_tokens_alone_does_no_harm() -> None:
    drafter = Failing("raises")
    made = SpeculativeDecoder(tiny(), drafter, config=ADAPTIVE)
    drafter.how = "well"
    made.generate([1, 2], LONG_PLAIN)
    assert made.metrics.draft_failures == 0
    assert made.policy.calibrated


def test_strict_is_strict_from_the_first_round_on() -> None:
    config = SpeculativeConfig(depth="adaptive", strict=True)
    made = SpeculativeDecoder(tiny(), Failing("raises"), config=config)
    with pytest.raises(ValueError, match="no draft today"):
        made.generate([1, 2], LONG)


@pytest.mark.parametrize("how", ["nan", "raises"])
@pytest.mark.parametrize("late", [False, True])
def test_a_target_that_fails_on_made_up_tokens_is_not_refused(how: str, late: bool) -> None:
    """Its logits are NaN after a token that requests need not have, or it raises there."""
    target, made_up = tiny(), 3
    verify, calls = target.verify, []

    def failing(prefixes, proposal):
        scores = verify(prefixes, proposal)
        calls.append(len(prefixes))
        if made_up in prefixes[0].tokens and len(calls) > 5 * late:
            if how == "raises":
                raise IndexError(made_up)
            scores.logits.fill_(torch.nan)
        return scores

    target.verify = failing
    made = SpeculativeDecoder(target, ModelDrafter(tiny()), config=ADAPTIVE)
    assert len(calls) == 1 + 5 * late
    assert not made.policy.calibrated
    assert not target.live_sequences
    expected = SpeculativeDecoder(tiny()).generate([1, 2], LONG_PLAIN).token_ids
    assert made_up not in expected
    assert made.generate([1, 2], LONG_PLAIN).token_ids == expected
    assert made.policy.calibrated
    with pytest.raises((DegenerateDistributionError, IndexError)):
        made.generate([1, made_up], LONG_PLAIN)


@pytest.mark.parametrize(("room", "expected"), [(3, [1]), (4, [1, 4]), (16, [1, 4, 16])])
def test_batches_are_measured_as_far_as_there_is_room(
    room: int, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = []
    measure = AdaptiveDepth.measure

    def seen(self, states, record, reading) -> None:
        measured.append((len(states), max(record.drafted)))
        measure(self, states, record, reading)

    monkeypatch.setattr(AdaptiveDepth, "measure", seen)
    made = SpeculativeDecoder(tiny(sequences=room), ModelDrafter(tiny(sequences=room)))
    assert sorted({rows for rows, _ in measured}) == expected
    assert all((rows, width) in measured for rows in expected for width in (0, 1))
    assert not made.target.live_sequences


def test_what_slots_hold_is_not_given_up_for_a_batch() -> None:
    target, draft = tiny(sequences=4), tiny(sequences=4)
    first = SpeculativeDecoder(target, ModelDrafter(draft))
    first.generate([5, 6, 7, 8], SamplingParams(max_tokens=8, ignore_eos=True))
    slot = target._table.slots[0]
    held = slot.tokens[: slot.length].tolist()
    assert target.empty_slots == 3
    SpeculativeDecoder(target, ModelDrafter(draft))
    # What the last round kept may have been put in order since.
    assert slot.length >= len(held) > 4
    assert slot.tokens[: len(held)].tolist() == held
    assert target.empty_slots == 3


def test_what_prompts_take_is_not_learnt_from_batches() -> None:
    """Theirs begin alike, so that they are copied from one another, in next to no time."""
    alone, several = tiny(sequences=3), tiny(sequences=4)
    for target in (alone, several):
        made = SpeculativeDecoder(target, ModelDrafter(tiny(sequences=4)))
        assert isinstance(made.policy, AdaptiveDepth)
        assert len(made.policy._costs._prompts) == 1
        assert len(made.policy._costs._readings) == 0


def test_prompts_that_the_target_has_read_before_do_not_tell_what_reading_takes() -> None:
    """A drafter that has not would be thought to read them in no time, and be tried too soon."""
    target, params = tiny(sequences=4), SamplingParams(max_tokens=4, ignore_eos=True)
    prompts = [[row + 1, *range(30)] for row in range(3)]
    SpeculativeDecoder(target).generate(prompts, params)
    made = SpeculativeDecoder(target, ModelDrafter(tiny(sequences=4)))
    assert isinstance(made.policy, AdaptiveDepth)
    made.generate(prompts[:1], params)
    assert len(made.policy._costs._prompts) == 1
    made.generate([[9, *range(30)]], params)
    assert len(made.policy._costs._prompts) == 2


def test_a_batch_that_fails_leaves_what_one_sequence_took() -> None:
    target = tiny(sequences=4)
    verify = target.verify

    def failing(prefixes, proposal):
        if len(prefixes) > 1:
            raise IndexError("too many")
        return verify(prefixes, proposal)

    target.verify = failing
    made = SpeculativeDecoder(target, ModelDrafter(tiny(sequences=4)))
    assert made.policy.calibrated
    assert not target.live_sequences
