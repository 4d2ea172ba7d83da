"""Structured output: exact distributions under speculation, against languages written out."""

from __future__ import annotations

import itertools
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import llguidance
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from outrider import (
    NgramDrafter,
    SamplingParams,
    SpeculativeDecoder,
    StructuredOutput,
)
from outrider.certify import exact_distribution
from outrider.certify.reference import distance
from outrider.config.params import Verification
from outrider.drafters.base import Drafter
from outrider.errors import DegenerateDistributionError, InvalidConfigError
from outrider.runtimes.tabular import TabularModel, mock_pair
from outrider.sampling.grammar import Grammar
from outrider.types.records import Distributions, DraftProposal
from tests.support.alphabet import alphabet
from tests.support.forms import (
    END,
    LANGUAGES,
    PROMPT,
    TEXTS,
    TOKENIZER,
    V,
    decoder_of,
    form_distribution,
)

TOLERANCE = 1e-12
SHAPES: list[dict[str, Any]] = [
    {"num_speculative_tokens": 2, "verification": "block"},
    {"num_speculative_tokens": 3, "verification": "token"},
    {"num_speculative_tokens": 2, "verification": "coupled"},
    {"num_speculative_tokens": 2, "draft_sample_method": "greedy"},
    {"num_speculative_tokens": 2, "tree_shape": (2, 2), "verification": "traversal"},
    {"tree_shape": (2, 1), "tree_children": "without_replacement", "verification": "recursive"},
    {"num_speculative_tokens": 2, "tree_shape": (2, 1), "verification": "coupled"},
    {"num_speculative_tokens": 2, "tree_budget": 3, "verification": "recursive"},
]


def error(name: str, speculation: dict[str, Any], seed: int = 1, **fields: Any) -> float:
    """The largest error in an output's probability."""
    target, draft = mock_pair(V, seed)
    return error_of(name, decoder_of(target, draft, speculation), **fields)


def error_of(name: str, decoder: SpeculativeDecoder, **fields: Any) -> float:
    asked, language = LANGUAGES[name]
    fields = {"max_tokens": 4, "stop_token_ids": (END,), **fields}
    expected = form_distribution(decoder.target, SamplingParams(**fields), language, PROMPT)
    found = exact_distribution(decoder, PROMPT, SamplingParams(structured_output=asked, **fields))
    return distance(found, expected)


@pytest.mark.parametrize("speculation", SHAPES, ids=str)
@pytest.mark.parametrize("name", LANGUAGES)
def test_the_distribution_in_a_form(speculation: dict[str, Any], name: str) -> None:
    length = 3 if speculation.get("tree_shape") else 4
    assert error(name, speculation, max_tokens=length) < TOLERANCE


ANY = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0.0, 0.5, 1.7]),
        "top_k": st.sampled_from([1, 2]),
        "top_p": st.sampled_from([0.6, 0.9]),
        "min_p": st.sampled_from([0.1, 0.4]),
        "repetition_penalty": st.sampled_from([0.5, 1.2]),
        "frequency_penalty": st.sampled_from([-0.3, 1.1]),
        "logit_bias": st.dictionaries(st.integers(0, V - 1), st.sampled_from([-5.0, 1.0])),
        "stop_token_ids": st.sampled_from([(), (END,)]),
        "max_tokens": st.integers(1, 3),
    },
)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, 50), st.sampled_from(SHAPES), st.sampled_from(sorted(LANGUAGES)), ANY)
def test_the_distribution_in_a_form_with_any_parameters(
    seed: int, speculation: dict[str, Any], name: str, fields: dict[str, Any]
) -> None:
    assert error(name, speculation, seed, **fields) < TOLERANCE


class Blind(Drafter):
    """A drafter that draws from the draft's own logits and knows of no mask."""

    @property
    def vocab_size(self) -> int:
        return V

    def __init__(self, model: TabularModel) -> None:
        self.model = model

    def propose(self, prefixes: Any, plan: Any, ctx: Any) -> DraftProposal:
        cursor = self.model.open(prefixes, plan.deepest)
        tokens, distributions = [], []
        for position in range(plan.deepest):
            logits = cursor.step(tokens[-1]) if position else cursor.logits
            distributions.append(logits.softmax(-1))
            tokens.append(ctx.pick(Distributions(probs=distributions[-1]), position))
        return DraftProposal(
            torch.stack(tokens, 1), plan.depth, Distributions(probs=torch.stack(distributions, 1))
        )


@pytest.mark.parametrize("speculation", [SHAPES[0], SHAPES[4]], ids=str)
def test_masks_of_another_position_are_seen(
    speculation: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted fault: every node has the mask of the one before it."""
    mask = Grammar.mask
    monkeypatch.setattr(Grammar, "mask", lambda self, out, path=(): mask(self, out, path[:-1]))
    # Or it leads where nothing may follow.
    with suppress(DegenerateDistributionError):
        assert error("regex", speculation, max_tokens=3) > 1e-3


@pytest.mark.parametrize("verification", ["block", "token", "coupled"])
@pytest.mark.parametrize("drafter", [NgramDrafter(3), Blind(mock_pair(V, 1)[1])], ids=["n", "b"])
def test_drafts_outside_the_form_are_refused(verification: Verification, drafter: Any) -> None:
    """A drafter that ignores the masks may propose anything; the distribution stays as it is."""
    target, _ = mock_pair(V, 1)
    shape = {"num_speculative_tokens": 2, "verification": verification}
    assert error_of("regex", decoder_of(target, drafter, shape), max_tokens=3) < TOLERANCE


@pytest.mark.parametrize("name", LANGUAGES)
def test_a_perfect_draft_is_accepted_in_a_form(name: str) -> None:
    """The drafter is masked as the target is."""
    target, _ = mock_pair(V, 3)
    for speculation in SHAPES[:3]:
        for temperature in (0.0, 0.4, 1.0):
            decoder = decoder_of(target, target, speculation)
            params = SamplingParams(
                max_tokens=12,
                temperature=temperature,
                seed=2,
                stop_token_ids=(END,),
                structured_output=LANGUAGES[name][0],
            )
            metrics = decoder.generate(list(PROMPT), params).metrics
            # Tokens after the end count as not accepted.
            assert metrics.drafted - metrics.accepted <= speculation["num_speculative_tokens"]
            assert metrics.rounds <= 6


def test_coupled_text_in_a_form_is_that_of_plain_keyed_sampling() -> None:
    target, draft = mock_pair(V, 4)
    plain = decoder_of(target, None, {"verification": "coupled"})
    for speculation in (SHAPES[2], {"verification": "coupled", "tree_shape": (3, 2)}):
        decoder = decoder_of(target, draft, speculation)
        for name, seed in itertools.product(LANGUAGES, range(6)):
            params = SamplingParams(
                max_tokens=8, seed=seed, structured_output=LANGUAGES[name][0], n=2
            )
            found, expected = decoder.generate([0], params), plain.generate([0], params)
            assert [c.token_ids for c in found.choices] == [c.token_ids for c in expected.choices]


def test_rows_with_and_without_a_form_share_a_batch() -> None:
    target, draft = mock_pair(V, 2)
    forms = [None, *(asked for asked, _ in LANGUAGES.values())]
    for speculation in SHAPES:
        decoder = decoder_of(target, draft, speculation)
        params = [
            SamplingParams(
                max_tokens=7,
                seed=seed,
                n=2,
                stop_token_ids=[(END,), ()][seed % 3 == 0],
                temperature=[0.8, 0.0][seed % 2],
                top_k=[0, 2][seed % 2],
                structured_output=form,
            )
            for seed, form in enumerate(forms * 2)
        ]
        prompts = [list(PROMPT)] * len(params)
        together = decoder.generate(prompts, params)
        alone = [decoder.generate(list(PROMPT), asked) for asked in params]
        streamed: dict[tuple[int, int], str] = {}
        for event in decoder.stream(prompts, params):
            key = (event.request, event.choice)
            streamed[key] = streamed.get(key, "") + (event.text or "")
        for number, (one, other) in enumerate(zip(together, alone, strict=True)):
            assert [c.token_ids for c in one.choices] == [c.token_ids for c in other.choices]
            for choice in one.choices:
                assert streamed[number, choice.index] == choice.text
                asked = params[number].structured_output
                if asked is not None and choice.finish_reason == "stop":
                    assert choice.text in next(x for a, x in LANGUAGES.values() if a is asked)


def spelling(*, ends: tuple[int, ...] = (), **fields: Any) -> SpeculativeDecoder:
    """A decoder over the alphabet whose target likes the tokens that are given weights."""
    weights = np.array([fields.get(f"t{i}", 1.0) for i in range(V)])
    target = TabularModel(lambda prefix: weights / weights.sum(), V)
    return decoder_of(target, mock_pair(V, 5)[1], SHAPES[0])


def test_a_text_that_is_whole_ends_without_a_token_to_say_so() -> None:
    """A model without an end-of-text token, or a request that ignores it."""
    asked = StructuredOutput(choice=("ab", "aba"))
    texts = {
        spelling().generate([0], SamplingParams(seed=seed, structured_output=asked)).text
        for seed in range(20)
    }
    # "ab" can always go on, so that it is never the end.
    assert texts == {"aba"}


def test_an_end_is_allowed_where_the_text_is_whole_only() -> None:
    asked = StructuredOutput(regex="(ab)+")
    decoder = spelling(t7=1000.0)
    for seed in range(20):
        params = SamplingParams(seed=seed, structured_output=asked, stop_token_ids=(END,))
        out = decoder.generate([0], params)
        assert out.token_ids[-1] == END
        assert out.token_ids in {(0, 1, END), (2, END)} or out.text.count("ab") > 1


def test_a_dead_end_is_told_where_it_is_reached() -> None:
    asked = StructuredOutput(choice=("ab", "1"))
    params = SamplingParams(
        seed=1, structured_output=asked, bad_words=((0, 1),), temperature=1.0, max_tokens=9
    )
    with pytest.raises(
        DegenerateDistributionError, match=r"no token could follow.*choice=.*bad_words"
    ):
        spelling(t0=1000.0).generate([0], params)


@pytest.mark.parametrize("ends", [(), (END,)], ids=["no end", "end"])
@pytest.mark.parametrize("speculation", SHAPES, ids=str)
def test_a_text_that_is_whole_before_min_tokens_ends_where_nothing_may_follow(
    speculation: dict[str, Any], ends: tuple[int, ...]
) -> None:
    """Whether or not there is a token that ends it, and drafted or not."""
    target, draft = mock_pair(V, 4)
    params = SamplingParams(
        structured_output=StructuredOutput(choice=("b", "1ab1", "11")),
        min_tokens=3,
        max_tokens=9,
        stop_token_ids=ends,
        logit_bias={END: 2.0},
    )
    expected: dict[tuple[int, ...], float] = {}

    def extend(output: tuple[int, ...], mass: float) -> None:
        text = "".join(TEXTS[token] for token in output if token < END)
        follows = [
            token
            for token, piece in enumerate(TEXTS)
            if any(whole.startswith(text + piece) for whole in ("b", "1ab1", "11"))
        ]
        if output[-1:] == (END,) or (not follows and not ends):
            expected[output] = mass
            return
        row = target.probabilities((4, *output))[follows]
        shares = row / row.sum() if follows else [1.0]
        for token, share in zip(follows or [END], shares, strict=True):
            extend((*output, token), mass * share)

    extend((), 1.0)
    decoder = decoder_of(target, draft, speculation)
    found = exact_distribution(decoder, [4], params)
    assert distance(found, expected) < TOLERANCE
    assert any(len(output) < 3 for output in found)
    outputs = decoder.generate([4], replace(params, n=8, seed=1)).choices
    assert {output.finish_reason for output in outputs} == {"stop"}
    assert {output.text for output in outputs} <= {"b", "1ab1", "11"}


def test_an_end_that_may_come_among_others_waits_for_min_tokens() -> None:
    asked = StructuredOutput(regex="b+")
    params = SamplingParams(
        structured_output=asked, min_tokens=3, max_tokens=9, stop_token_ids=(END,), n=16, seed=1
    )
    outputs = spelling(t7=1000.0).generate([0], params).choices
    assert {output.token_ids for output in outputs} == {(1, 1, 1, END)}
    forbidden = replace(params, bad_words=((1, 1),))
    outputs = spelling(t7=1000.0).generate([0], forbidden).choices
    assert {output.token_ids for output in outputs} == {(1, END)}, "bad_words leave nothing else"


@pytest.mark.parametrize("speculation", SHAPES, ids=str)
def test_a_dead_end_that_is_only_drafted_is_not(speculation: dict[str, Any]) -> None:
    """The drafter likes "a", after which nothing is left; the target never says "a"."""
    asked = StructuredOutput(choice=("ab", "1", "b"))
    weights = np.array([0, 1, 1, 1, 1, 1, 1, 1, 1]) / 8
    target = TabularModel(lambda prefix: weights, V)
    draft = TabularModel(lambda prefix: np.array([0.92, *[0.01] * 8]), V)
    params = SamplingParams(
        structured_output=asked, bad_words=((0, 1),), stop_token_ids=(END,), max_tokens=3
    )
    found = exact_distribution(decoder_of(target, draft, speculation), [3], params)
    expected = {(1, END): 1 / 3, (2, END): 1 / 3, (3, END): 1 / 3}
    assert distance(found, expected) < TOLERANCE


def test_a_dead_end_in_the_grammar_itself_is_told() -> None:
    asked = StructuredOutput(grammar='start: "a" /[ab&&[^ab]]/ | "b" | "1"')
    params = SamplingParams(structured_output=asked)
    assert spelling(t1=1e9).generate([0], params).text == "b"
    with pytest.raises(DegenerateDistributionError, match=r"structured_output\.grammar"):
        spelling(t0=1e9).generate([0], params)


@pytest.mark.parametrize("limit", [{"step_max_items": 3}, {"max_items_in_row": 5}], ids=str)
def test_a_limit_of_the_librarys_is_told(
    limit: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llguidance, "LLParserLimits", partial(llguidance.LLParserLimits, **limit))
    asked = StructuredOutput(grammar='start: s\ns: s s | "a" | "b" s?')
    with pytest.raises(InvalidConfigError, match=r"grammar='start.*a simpler one.*items"):
        spelling().generate([0], SamplingParams(structured_output=asked, max_tokens=50))


def unasked(prefix: tuple[int, ...]) -> Any:
    raise AssertionError("a forward was made")


BAD: list[tuple[dict[str, Any], str]] = [
    ({"json_schema": {"type": "intger"}}, "json_schema=.*Invalid type"),
    ({"json_schema": {"type": "integer", "minimum": 5, "maximum": 3}}, "Unsatisfiable schema"),
    ({"json_schema": {"not": {"type": "null"}}}, "Unimplemented keys"),
    ({"json_schema": '{"type": 3}'}, "type must be a string"),
    ({"json_schema": {"type": "null"}}, "none could be the first"),
    ({"regex": "(ab"}, "regex parse error"),
    ({"regex": "a(?=b)"}, "look-around"),
    ({"regex": "[a&&b]"}, "none could be the first"),
    ({"regex": "x+"}, "none could be the first"),
    ({"regex": ""}, "more than the empty text"),
    ({"grammar": "start: a"}, "unknown name"),
    ({"grammar": ""}, "Empty grammar"),
    ({"choice": ("x", "yz")}, "none could be the first"),
    ({"json_schema": '{"const": NaN}'}, "json_schema=.*the library says 'expected value"),
    ({"json_schema": {"const": "\ud800"}}, "json_schema=.*the library says"),
]


@pytest.mark.parametrize(("form", "message"), BAD, ids=str)
def test_what_cannot_be_fulfilled_is_refused_before_any_forward(
    form: dict[str, Any], message: str
) -> None:
    decoder = SpeculativeDecoder(TabularModel(unasked, V), tokenizer=TOKENIZER)
    for method in (decoder.generate, decoder.stream, decoder.start):
        with pytest.raises(InvalidConfigError, match=f"(?s){message}"):
            method([0], SamplingParams(structured_output=StructuredOutput(**form)))


CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"bad_words": ((0,), (2,), (3,))}, "bad_words="),
    ({"bad_words": ((2,), (3,), (1, 0))}, "bad_words="),
    ({"bad_words": ((2,), (3,), (0, 1))}, "bad_words=.*leave structured_output a text"),
    ({"allowed_token_ids": (0,)}, "allowed_token_ids=.*leave structured_output a text"),
    ({"allowed_token_ids": (0, 1), "bad_words": ((0, 1),)}, "bad_words="),
    ({"min_tokens": 4, "stop_token_ids": (END,)}, "min_tokens=4"),
]


@pytest.mark.parametrize(("fields", "message"), CONTRADICTIONS, ids=str)
def test_parameters_that_contradict_a_form_are_refused(
    fields: dict[str, Any], message: str
) -> None:
    asked = StructuredOutput(choice=("ab", "1", "abb"))
    decoder = SpeculativeDecoder(TabularModel(unasked, V), tokenizer=TOKENIZER)
    with pytest.raises(InvalidConfigError, match=message):
        decoder.start([0, 1], SamplingParams(structured_output=asked, **fields))
    empty = StructuredOutput(regex="")
    params = SamplingParams(structured_output=empty, stop_token_ids=(END,), min_tokens=1)
    with pytest.raises(InvalidConfigError, match="min_tokens"):
        decoder.start([0], params)


POSSIBLE: list[dict[str, Any]] = [
    {"allowed_token_ids": (0, 1)},
    {"allowed_token_ids": (0,), "max_tokens": 1},
    {"allowed_token_ids": (0,), "stop": "a"},
    {"allowed_token_ids": (0,), "stop_token_ids": (0,)},
    {"bad_words": ((0, 1), (2, 1))},
]


@pytest.mark.parametrize("fields", POSSIBLE, ids=str)
def test_a_form_of_which_some_beginning_can_be_an_answer_is_decoded(fields: dict[str, Any]) -> None:
    asked = StructuredOutput(choice=("ab", "1", "abb"))
    params = SamplingParams(structured_output=asked, **fields)
    assert spelling().start([0], params)


def test_a_form_needs_a_tokenizer_that_can_be_read() -> None:
    class Own:
        def encode(self, text: str) -> list[int]:
            return [0]

        def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
            return ""

    params = SamplingParams(structured_output=StructuredOutput(choice=("a",)))
    for tokenizer, found in ((None, "no tokenizer"), (Own(), "a Own")):
        decoder = SpeculativeDecoder(TabularModel(unasked, V), tokenizer=tokenizer)
        with pytest.raises(InvalidConfigError, match=f"tokenizer, which is {found}"):
            decoder.start([0], params)
    words = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    with pytest.raises(InvalidConfigError, match="one that works on bytes"):
        SpeculativeDecoder(TabularModel(unasked, V), tokenizer=words).start([0], params)
    gaps = alphabet(("a", "b"), ids=(0, 2), end=False)
    with pytest.raises(InvalidConfigError, match="whose ids have gaps"):
        SpeculativeDecoder(TabularModel(unasked, V), tokenizer=gaps).start([0], params)


def test_a_method_that_keeps_what_is_forbidden_is_refused() -> None:
    params = SamplingParams(structured_output=StructuredOutput(choice=("a",)))
    decoder = decoder_of(*mock_pair(V), {"verification": "mixture"})
    with pytest.raises(InvalidConfigError, match="None with verification='mixture'"):
        decoder.start([0], params)
    for lossy in ("typical", "lenient"):
        decoder = decoder_of(mock_pair(V)[0], NgramDrafter(2), {"verification": lossy})
        assert decoder.generate([0, 1, 0], params).text == "a"
