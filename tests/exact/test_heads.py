"""Draft heads: what they draft is what their network says, and the output's law the target's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from outrider import (
    HybridDrafter,
    SamplingParams,
    SpeculativeConfig,
    SpeculativeDecoder,
    SuffixDrafter,
    TransformersModel,
)
from outrider.certify import exact_distribution
from outrider.certify.reference import distance, target_distribution
from outrider.drafters.heads.loading import load_head
from outrider.drafters.heads.model import BlockCursor, HeadModel
from outrider.types.records import Distributions as Made
from outrider.types.records import DraftPlan, DraftProposal, RoundRecord
from tests.support.families import Distributions, greedy_reference, random_model
from tests.support.heads import compared, drafted_logits, head_checkpoint

pytestmark = pytest.mark.exact

PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8], [2, 7], [7, 7, 7, 1], [4], [9, 8, 7, 6, 5]]

FLAGS: dict[str, dict[str, Any]] = {
    "eagle3": {},
    "normed residual": {"norm_before_residual": True},
    "norm before fc": {"norm_before_fc": True},
    "fc norm": {"fc_norm": True},
    "norm output": {"norm_output": True},
    "two layers": {"layers": 2},
    "sliding": {"layers": 2, "window": 6},
    "reduced": {"reduced": 23},
    "peagle": {"kind": "peagle"},
    "peagle reduced": {"kind": "peagle", "reduced": 23},
    "dflash": {"kind": "dflash"},
    "dflash anchor": {"kind": "dflash", "sample_from_anchor": True},
    "dflash sliding": {"kind": "dflash", "layers": 2, "window": 6},
    "dflash sliding both ways": {
        "kind": "dflash",
        "layers": 2,
        "window": 6,
        "sliding_window_non_causal": True,
    },
    "dspark": {"kind": "dspark"},
    "dspark gated": {"kind": "dspark", "markov_head_type": "gated", "reduced": 23},
    "dspark rnn": {"kind": "dspark", "markov_head_type": "rnn"},
    "dspark rnn fill-in": {
        "kind": "dspark",
        "markov_head_type": "rnn",
        "sample_from_anchor": False,
        "confidence_head_with_markov": False,
    },
    "dflash2": {"kind": "dflash2"},
    "xpress": {"kind": "xpress"},
    "xpress anchor": {"kind": "xpress", "sample_from_anchor": True, "reduced": 23},
}
ONE_OF_EACH = ("eagle3", "reduced", "peagle", "dflash", "dspark gated", "dflash2", "xpress")

SHAPES: dict[str, dict[str, Any]] = {
    "chain": {"num_speculative_tokens": 3},
    "tree": {"num_speculative_tokens": 2, "tree_shape": (2, 1)},
    "grown": {"num_speculative_tokens": 3, "tree_budget": 5},
}


def decoder_of(
    folder: Path, model: Any, flags: dict[str, Any], **speculation: Any
) -> tuple[SpeculativeDecoder, Any, list[tuple[Any, DraftProposal]]]:
    """A decoder with a random head, the head, and what it proposes."""
    target = TransformersModel(model, max_sequences=5, prefill_chunk=8)
    head: Any = load_head(head_checkpoint(folder, model, **flags), target)
    propose, seen = head.propose, list[tuple[Any, DraftProposal]]()

    def watched(prefixes: Any, plan: DraftPlan, ctx: Any) -> DraftProposal:
        seen.append((list(prefixes), propose(prefixes, plan, ctx)))
        return seen[-1][1]

    head.propose = watched
    config = SpeculativeConfig(**{"depth": "fixed", "num_speculative_tokens": 3} | speculation)
    return SpeculativeDecoder(target, head, config=config), head, seen


@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS)
@pytest.mark.parametrize("family", ["llama"])
def test_drafts_are_drawn_from_what_the_network_says(
    family: str, flags: dict[str, Any], tmp_path: Path
) -> None:
    model = random_model(family)
    decoder, head, seen = decoder_of(tmp_path, model, flags)
    params = SamplingParams(max_tokens=14, seed=1)
    decoder.generate(PROMPTS, params)
    assert compared(seen, head, model) > 50


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_greedy_text_is_plain(name: str, shape: dict[str, Any], tmp_path: Path) -> None:
    model = random_model("llama")
    decoder, _, _ = decoder_of(tmp_path, model, FLAGS[name], **shape)
    outputs = decoder.generate(PROMPTS, SamplingParams(max_tokens=20, temperature=0))
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        assert tuple(output.token_ids) == greedy_reference(model, prompt, 20)
    assert decoder.metrics.drafted


@pytest.mark.parametrize("k", [1, 2, 5, 8])
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_greedy_text_is_plain_at_every_depth_and_after_known_prompts(
    name: str, k: int, tmp_path: Path
) -> None:
    model = random_model("llama")
    decoder, _, _ = decoder_of(tmp_path, model, FLAGS[name], num_speculative_tokens=k)
    params = SamplingParams(max_tokens=12, temperature=0)
    texts = [tuple(prompt) for prompt in PROMPTS]
    for _ in range(2):
        outputs = decoder.generate([list(text) for text in texts], params)
        for text, output in zip(texts, outputs, strict=True):
            assert tuple(output.token_ids) == greedy_reference(model, list(text), 12)
        texts = [(*t, *o.token_ids, 7) for t, o in zip(texts, outputs, strict=True)]
    assert decoder.metrics.drafted


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_the_distribution_is_the_targets(name: str, shape: dict[str, Any], tmp_path: Path) -> None:
    model = random_model("llama")
    decoder, _, seen = decoder_of(tmp_path, model, FLAGS[name], **shape)
    params = SamplingParams(max_tokens=4, top_k=3)
    found = exact_distribution(decoder, (5, 9, 2), params)
    expected = target_distribution(Distributions(model), (5, 9, 2), params)
    assert distance(found, expected) < 1e-9
    assert seen


def test_what_is_recorded_under_another_condition_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens are drawn given the token before, and recorded as if all followed token 1."""
    model = random_model("llama")
    decoder, head, _ = decoder_of(tmp_path, model, FLAGS["dspark"], num_speculative_tokens=2)
    step = BlockCursor.step

    def after_one(self: BlockCursor, tokens: torch.Tensor) -> torch.Tensor:
        return step(self, torch.ones_like(tokens))

    propose = head.propose

    def wrongly(prefixes: Any, plan: DraftPlan, ctx: Any) -> DraftProposal:
        made = propose(prefixes, plan, ctx)
        if not made.lengths.any():
            return made
        with monkeypatch.context() as patch:
            patch.setattr(BlockCursor, "step", after_one)
            cursor = head._opened(list(prefixes), np.minimum(plan.model_depth, made.lengths))
            logits = [cursor.logits, cursor.step(made.tokens[:, 0])][: made.width]
        probs = [ctx.distribution(head._aligned(each)).probs for each in logits]
        return replace(made, distributions=Made(probs=torch.stack(probs, 1)))

    head.propose = wrongly
    decoder = SpeculativeDecoder(
        decoder.target, head, config=replace(decoder.config, validate="never")
    )
    params = SamplingParams(max_tokens=4, top_k=9)
    found = exact_distribution(decoder, (5, 9, 2), params)
    expected = target_distribution(Distributions(model), (5, 9, 2), params)
    assert distance(found, expected) > 1e-4


def test_a_distribution_over_the_heads_own_tokens_is_noticed(tmp_path: Path) -> None:
    """What is recorded was not spread over the target's tokens."""
    model = random_model("llama")
    decoder, head, _ = decoder_of(tmp_path, model, FLAGS["reduced"], num_speculative_tokens=1)
    propose = head.propose

    def wrongly(prefixes: Any, plan: DraftPlan, ctx: Any) -> DraftProposal:
        made = propose(prefixes, plan, ctx)
        if made.distributions is None or made.distributions.probs is None:
            return made
        probs = torch.zeros_like(made.distributions.probs)
        probs[..., : len(head.model.net.tokens)] = made.distributions.probs[
            ..., head.model.net.tokens
        ]
        return replace(made, distributions=Made(probs=probs))

    head.propose = wrongly
    config = replace(decoder.config, validate="never")
    decoder = SpeculativeDecoder(decoder.target, head, config=config)
    params = SamplingParams(max_tokens=3, top_k=9)
    found = exact_distribution(decoder, (5, 9, 2), params)
    expected = target_distribution(Distributions(model), (5, 9, 2), params)
    assert distance(found, expected) > 1e-4


@pytest.mark.parametrize("name", ["eagle3", "dspark"])
def test_states_of_another_token_are_noticed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive = HeadModel.receive

    def shifted(self: HeadModel, hidden: Any) -> None:
        receive(self, [replace(each, states=each.states.roll(1, 0)) for each in hidden])

    monkeypatch.setattr(HeadModel, "receive", shifted)
    with pytest.raises(AssertionError, match="Mismatched elements"):
        test_drafts_are_drawn_from_what_the_network_says("llama", FLAGS[name], tmp_path)


@pytest.mark.parametrize("name", ["eagle3", "dflash"])
def test_no_token_of_a_known_prompt_is_computed_again_for_a_head(name: str, tmp_path: Path) -> None:
    model = random_model("llama")
    prompt = [(7 * place) % 59 + 1 for place in range(70)]
    cached = []
    for drafts in (False, True):
        target, records = TransformersModel(model, max_sequences=5), list[Any]()
        head = load_head(head_checkpoint(tmp_path, model, **FLAGS[name]), target)
        decoder = SpeculativeDecoder(
            target,
            head if drafts else None,
            config=SpeculativeConfig(depth="fixed", num_speculative_tokens=3),
            on_round=records.append,
        )
        for tail in ([3, 4], [5], [3, 4, 8]):
            decoder.generate([[*prompt, *tail]] * 2, SamplingParams(max_tokens=9, temperature=0))
        cached.append([sum(each.cached) for each in records if sum(each.cached)])
    assert decoder.metrics.drafted > 20
    assert cached[0] == cached[1]


def test_what_others_compute_with_its_target_takes_no_room_of_a_head(tmp_path: Path) -> None:
    decoder, head, _ = decoder_of(tmp_path, random_model("llama"), FLAGS["eagle3"])
    params = SamplingParams(max_tokens=5, temperature=0)
    for target in (decoder.target, decoder.target.fresh(5)):
        for place in range(6):  # the head has room for 5
            SpeculativeDecoder(target).generate([3, place, 4], params)
    assert not head.model.live_sequences
    assert decoder.generate(PROMPTS[0], params).token_ids


@pytest.mark.parametrize("name", ["eagle3", "dflash2"])
def test_a_seed_repeats_whatever_the_caches_hold(name: str, tmp_path: Path) -> None:
    model = random_model("llama")
    decoder, head, _ = decoder_of(tmp_path, model, FLAGS[name])
    params = SamplingParams(max_tokens=20, seed=3)
    first = decoder.generate(PROMPTS[0], params).token_ids
    again = decoder.generate(PROMPTS[0], params).token_ids
    decoder.target.reset()
    third = decoder.generate(PROMPTS[0], params).token_ids
    head.model.reset()
    assert first == again == third == decoder.generate(PROMPTS[0], params).token_ids


def test_resets_of_target_and_head_forget_weights_that_changed(tmp_path: Path) -> None:
    model = random_model("llama")
    decoder, head, seen = decoder_of(tmp_path, model, FLAGS["eagle3"])
    prompt, params = PROMPTS[0] * 4, SamplingParams(max_tokens=14, seed=1)
    decoder.generate(prompt, params)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.down_proj.weight.mul_(-1)
    decoder.target.reset()
    head.model.reset()
    seen.clear()
    decoder.generate(prompt, params)
    assert compared(seen, head, model)


@pytest.mark.parametrize("name", ["eagle3", "peagle", "dspark"])
def test_a_head_that_lost_its_states_is_given_them_again(name: str, tmp_path: Path) -> None:
    """As an interrupt in one of its forwards leaves it: the target still has its own."""
    model = random_model("llama")
    texts = []
    for lost in (False, True):
        decoder, head, _ = decoder_of(tmp_path, model, FLAGS[name])
        states = decoder.start(PROMPTS[0], SamplingParams(max_tokens=30, seed=5))
        batch = decoder.pack(states)
        for place in range(8):
            if lost and place % 3 == 2:
                head.model.reset()
            result = decoder.step(batch)
            batch = result.batch
        texts.append((batch.states[0].output_ids, batch.states[0].depths))
    assert texts[0] == texts[1]


@pytest.mark.parametrize("name", ["eagle3", "peagle", "dflash", "dspark", "dflash2", "xpress"])
def test_a_round_that_is_repeated_is_the_same(name: str, tmp_path: Path) -> None:
    """And what is drafted in the next one is what the network says."""
    model = random_model("llama")
    decoder, head, seen = decoder_of(tmp_path, model, FLAGS[name])
    batch = decoder.pack(decoder.start(PROMPTS[0], SamplingParams(max_tokens=30, seed=5)))
    for _ in range(5):
        first = decoder.step(batch)
        again = decoder.step(batch)
        assert first.emitted == again.emitted
        assert first.record.drafted == again.record.drafted
        batch = again.batch
        prefixes, proposal = seen[-1] if seen else ([], None)
        for place in range(int(proposal.lengths[0]) if proposal else 0):
            assert proposal is not None
            path = proposal.tokens[0, :place].tolist()
            logits = drafted_logits(head.model.net, model, prefixes[0].tokens.tolist(), path)
            found = proposal.distributions.probs[0, place].double()
            torch.testing.assert_close(found, logits.softmax(-1), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["eagle3", "dflash"])
def test_a_text_that_goes_on_is_found_as_without_a_head(name: str, tmp_path: Path) -> None:
    """By a text that ended, and by prompts that begin alike at the same time."""
    model = random_model("llama")
    headed, _, _ = decoder_of(tmp_path, model, FLAGS[name])
    plain = TransformersModel(model, max_sequences=5, prefill_chunk=8)
    params = SamplingParams(max_tokens=13, temperature=0)
    found: list[list[int]] = []
    for target, drafter in ((headed.target, headed.drafter), (plain, None)):
        records: list[RoundRecord] = []
        decoder = SpeculativeDecoder(target, drafter, config=headed.config, on_round=records.append)
        text = list(range(1, 36))
        for _ in range(3):
            outputs = decoder.generate([text, [*text, 3]], params)
            text = [*text, *outputs[0].token_ids, 7]
        found.append([sum(record.cached) for record in records if any(record.cached)])
    assert found[0] == found[1]
    assert len(found[0]) >= 3


@pytest.mark.parametrize("name", ["eagle3", "dspark"])
def test_a_prompt_of_one_token_is_drafted_the_same_whatever_was_before(
    name: str, tmp_path: Path
) -> None:
    model = random_model("llama")
    target = TransformersModel(model, max_sequences=2)
    head = load_head(head_checkpoint(tmp_path, model, **FLAGS[name]), target)
    hybrid = HybridDrafter.usual(head, SuffixDrafter(max_pool_tokens=0))
    config = SpeculativeConfig(depth="fixed", num_speculative_tokens=3)
    decoder = SpeculativeDecoder(target, hybrid, config=config)
    params = SamplingParams(max_tokens=12, seed=4)
    first = decoder.generate([4], params)
    for prompt in PROMPTS:
        decoder.generate(prompt, SamplingParams(max_tokens=9))
    assert decoder.generate([4], params).token_ids == first.token_ids
    assert first.metrics.drafted
