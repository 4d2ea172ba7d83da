"""Structured output: exact distributions in every shape of speculation, against languages written out."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from functools import partial
from typing import Any

import llguidance
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from outrider import (
    NgramDrafter,
    SamplingParams,
    SpeculativeConfig,
    SpeculativeDecoder,
    StructuredOutput,
)
from outrider.certify import exact_distribution
from outrider.certify.reference import distance, filtered, shaped
from outrider.config.params import Verification
from outrider.engine.stopping import until_stop
from outrider.errors import DegenerateDistributionError, InvalidConfigError
from outrider.runtimes.tabular import TabularModel, mock_pair
from outrider.sampling.grammar import Grammar, Grammars
from outrider.sampling.masks import RoundMasks
from outrider.sampling.paths import Path
from outrider.types.records import (
    Distributions,
    DraftProposal,
    Output,
    Prefix,
    SequenceState,
    TargetScores,
)
from tests.alphabet import alphabet, every_byte

TOLERANCE = 1e-12
TEXTS = ("a", "b", "ab", "1", "[", "]", ",1")
END = len(TEXTS)
V = END + 2  # the last id is padding that no token has
TOKENIZER = alphabet(TEXTS)
PROMPT = (0, 1)

LANGUAGES: dict[str, tuple[StructuredOutput, set[str]]] = {
    "choice": (StructuredOutput(choice=("ab", "aba", "1")), {"ab", "aba", "1"}),
    "regex": (
        StructuredOutput(regex="(ab|b){1,2}1?"),
        {x + y + z for x in ("ab", "b") for y in ("", "ab", "b") for z in ("", "1")},
    ),
    "json": (
        StructuredOutput(json_schema={"type": "array", "items": {"const": 1}, "maxItems": 2}),
        {"[]", "[1]", "[1,1]"},
    ),
    "grammar": (
        StructuredOutput(grammar='start: "[" inner "]"\ninner: "a" | "b"*'),
        {"[a]", *("[" + "b" * i + "]" for i in range(9))},
    ),
}
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

Distribution = dict[tuple[int, ...], float]


def form_distribution(
    target: Any, params: SamplingParams, language: set[str], prompt: Sequence[int]
) -> Distribution:
    """The distribution of sampling token by token among those by which a text of the language is reached."""
    distribution: Distribution = {}
    ends = END in params.stop_token_ids

    def extend(output: tuple[int, ...], probability: float) -> None:
        text = "".join(TEXTS[token] for token in output if token < END)
        follows = [
            token
            for token, piece in enumerate(TEXTS)
            if any(whole.startswith(text + piece) for whole in language)
        ]
        whole = text in language
        over = END in output or (whole and not follows and not ends)
        if over or len(output) == params.max_tokens:
            distribution[output] = probability
            return
        row = shaped(target.probabilities((*prompt, *output)), tuple(prompt), output, params)
        allowed = np.zeros(len(row))
        allowed[follows] = 1
        allowed[END] = whole and ends
        row = filtered(row * allowed / (row * allowed).sum(), params)
        for token in np.flatnonzero(row):
            extend((*output, int(token)), probability * float(row[token]))

    extend((), 1.0)
    return distribution


def decoder_of(
    target: TabularModel, drafter: Any, speculation: dict[str, Any], tokenizer: Any = TOKENIZER
) -> SpeculativeDecoder:
    config = SpeculativeConfig(depth="fixed", **speculation)
    return SpeculativeDecoder(target, drafter, tokenizer=tokenizer, config=config)


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


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 50), st.sampled_from(SHAPES), st.sampled_from(sorted(LANGUAGES)), ANY)
def test_the_distribution_in_a_form_with_any_parameters(
    seed: int, speculation: dict[str, Any], name: str, fields: dict[str, Any]
) -> None:
    assert error(name, speculation, seed, **fields) < TOLERANCE


class Blind:
    """A drafter that draws from the draft's own logits and knows of no mask."""

    vocab_size = V

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


@pytest.mark.parametrize("verification", ["block", "token", "coupled"])
@pytest.mark.parametrize("drafter", [NgramDrafter(3), Blind(mock_pair(V, 1)[1])], ids=["n", "b"])
def test_drafts_outside_the_form_are_refused(verification: Verification, drafter: Any) -> None:
    """A drafter that ignores the masks may propose anything; the distribution stays as it is."""
    target, _ = mock_pair(V, 1)
    shape = {"num_speculative_tokens": 2, "verification": verification}
    assert error_of("regex", decoder_of(target, drafter, shape), max_tokens=3) < TOLERANCE


def broken(speculation: dict[str, Any]) -> bool:
    """Whether the distribution is wrong, or a token is emitted that the grammar refuses."""
    try:
        return error("regex", speculation | {"strict": True}, max_tokens=3) > 1e-3
    except DegenerateDistributionError:
        return True


@pytest.mark.parametrize("speculation", [SHAPES[0], SHAPES[4]], ids=str)
def test_masks_of_another_position_are_seen(
    speculation: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted fault: every node has the mask of the one before it."""
    mask = RoundMasks._mask
    monkeypatch.setattr(RoundMasks, "_mask", lambda self, row, path: mask(self, row, path[:-1]))
    assert broken(speculation)


def emitted(*tokens: int) -> Output:
    """Tokens as a sequence's output."""
    return Output(Prefix(0, tokens))


def fault_only_on(self: Grammar, output: Output, drafted: tuple[int, ...] = ()) -> Any:
    """Rejected tokens stay in the matcher."""
    path, at = output.plus(drafted), self._emitted.at
    rest = (path.since(None) or [])[len(at or ()) :]
    # As many tokens as it was given, whichever they were.
    self._emitted.at = path if at is None or len(path) > len(at) else at
    taken = self._emitted.matcher.try_consume_tokens(rest)
    return self._emitted if taken == len(rest) else None


@pytest.mark.parametrize("speculation", [SHAPES[0], SHAPES[4]], ids=str)
def test_a_matcher_that_does_not_go_back_is_seen(
    speculation: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted fault."""
    monkeypatch.setattr(Grammar, "_place", fault_only_on)
    assert broken(speculation)


GRAMMARS = Grammars(TOKENIZER, V, frozenset())
FORMS = {name: asked for name, (asked, _) in LANGUAGES.items()} | {
    "shared lexeme": StructuredOutput(grammar='start: "a" X "[" | "b" X "]"\nX: /1+/')
}


def differing(ends: frozenset[int], name: str) -> int:
    """In how many masks one grammar that wanders about differs from one made for each path."""
    rng = random.Random(name)
    asked = FORMS[name]
    wanderer, found = GRAMMARS.of(asked, ends), 0
    output: list[int] = []
    for _ in range(150):
        if rng.random() < 0.3:  # on, or from the beginning
            output = [] if rng.random() < 0.3 else [*output, walk(asked, output, 1, rng)[0]]
        drafted = tuple(walk(asked, output, rng.randrange(4), rng))
        if rng.random() < 0.2:
            drafted += (rng.randrange(V),)
        one = wanderer.mask(emitted(*output), drafted)
        other = GRAMMARS.of(asked, ends).mask(emitted(*output, *drafted))
        found += (one is None) != (other is None) or bool(np.any(one != other))
    return found


def walk(asked: StructuredOutput, path: list[int], length: int, rng: random.Random) -> list[int]:
    """Some tokens that may follow, as long as any may."""
    grammar, added = GRAMMARS.of(asked, frozenset()), list(path)
    for _ in range(length):
        mask = grammar.mask(emitted(*added))
        allowed = [] if mask is None else np.flatnonzero(np.unpackbits(mask, bitorder="little"))
        added.append(int(rng.choice(allowed)) if len(allowed) else rng.randrange(V))
    return added[len(path) :]


@pytest.mark.parametrize("ends", [frozenset(), frozenset({END})], ids=["no end", "end"])
@pytest.mark.parametrize("name", FORMS)
def test_masks_depend_on_the_path_alone(name: str, ends: frozenset[int]) -> None:
    assert differing(ends, name) == 0


def test_a_matcher_that_remembers_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault."""
    monkeypatch.setattr(Grammar, "_place", fault_only_on)
    assert differing(frozenset(), "shared lexeme") > 0


def lines(asked: StructuredOutput, grammar: Grammar, params: SamplingParams) -> int:
    """As `differing`, of states that go on from each other in rounds, as the engine's do."""
    rng, found = random.Random(1), 0
    prompt = Prefix(0, [4, 4, 4])
    start = SequenceState(prompt, 3, params, frozenset(), 0, grammar=grammar)
    known = [start]
    for _ in range(150):
        state = known[-1] if rng.random() < 0.7 else rng.choice(known)
        output = state.output_ids
        drafted = tuple(walk(asked, output, rng.randrange(1, 4), rng))
        for length in range(len(drafted) + 1):
            one = grammar.mask(state.output, drafted[:length])
            other = GRAMMARS.of(asked, frozenset()).mask(emitted(*output, *drafted[:length]))
            found += (one is None) != (other is None) or bool(np.any(one != other))
        kept = list(drafted[: rng.randint(1, len(drafted))])
        try:
            kept, reason = until_stop(state, kept, None)
        except DegenerateDistributionError:
            continue
        if reason is None:
            known.append(state.advanced(kept, len(drafted), None, state.acceptance, ()))
    return found


@pytest.mark.parametrize("name", FORMS)
def test_masks_of_states_that_branch_depend_on_the_path_alone(name: str) -> None:
    """A state may be stepped several times, each time with another outcome."""
    params = SamplingParams(max_tokens=1000)
    assert lines(FORMS[name], GRAMMARS.of(FORMS[name], frozenset()), params) == 0


def test_tokens_that_are_taken_for_those_before_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: any output is taken for one that goes on from the last."""
    monkeypatch.setattr(Prefix, "begins", lambda self, other: self.length <= other.length)
    asked, params = FORMS["regex"], SamplingParams(max_tokens=1000)
    assert lines(asked, GRAMMARS.of(asked, frozenset()), params) > 0


def looked_at(length: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many tokens of outputs are made into lists in twenty rounds after `length` tokens."""
    form = StructuredOutput(regex="[ab]*")
    grammar = GRAMMARS.of(form, frozenset({END}))
    params = SamplingParams(max_tokens=10**6)
    state = SequenceState(Prefix(0, [4] * 9), 9, params, frozenset({END}), 0, grammar=grammar)

    def played(state: SequenceState) -> SequenceState:
        masks = RoundMasks([state], V)
        masks(torch.zeros(1, 3, V), Path.of(torch.tensor([[[0, 1]] * 3])))
        tokens, reason = until_stop(state, [0, 1, 0], None)
        assert reason is None
        return state.advanced(tokens, 2, reason, state.acceptance, ())

    state = played(state.advanced([0] * length, 0, None, state.acceptance, ()))
    assert len(state.output) == length + 3
    total = 0
    since, output_ids = Output.since, SequenceState.output_ids

    def counted(self: Output, earlier: Output | None) -> list[int] | None:
        nonlocal total
        rest = since(self, earlier)
        total += len(rest or ()) + len(self.more)
        return rest

    def whole(self: SequenceState) -> list[int]:
        nonlocal total
        ids = output_ids.fget(self)
        total += len(ids)
        return list(ids)

    with monkeypatch.context() as patched:
        patched.setattr(Output, "since", counted)
        patched.setattr(SequenceState, "output_ids", property(whole))
        for _ in range(20):
            state = played(state)
    return total


def test_what_a_round_looks_at_does_not_grow_with_the_output(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    short, long = looked_at(10, monkeypatch), looked_at(2000, monkeypatch)
    assert 0 < long == short < 20 * 60
    # Planted fault: each round is given all tokens anew.
    monkeypatch.setattr(Prefix, "begins", lambda self, other: False)
    assert looked_at(2000, monkeypatch) > 20 * 2000


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
        DegenerateDistributionError, match=r"no token could follow the 1 .*choice=.*bad_words"
    ):
        spelling(t0=1000.0).generate([0], params)


@pytest.mark.parametrize("ends", [(), (END,)], ids=["no end", "end"])
@pytest.mark.parametrize("speculation", SHAPES, ids=str)
def test_a_text_that_is_whole_before_min_tokens_is_a_dead_end(
    speculation: dict[str, Any], ends: tuple[int, ...]
) -> None:
    """Whether or not there is a token that would end it, and drafted or not."""
    asked = StructuredOutput(choice=("b", "1ab1"))
    params = SamplingParams(
        structured_output=asked, min_tokens=3, max_tokens=9, temperature=0, stop_token_ids=ends
    )
    for likes, text in ((1, None), (3, "1ab1")):
        weights = np.ones(V)
        weights[likes] = 100
        target = TabularModel(lambda prefix, weights=weights: weights / weights.sum(), V)
        decoder = decoder_of(target, target, speculation)
        if text is not None:
            assert decoder.generate([4], params).text == text
            continue
        with pytest.raises(
            DegenerateDistributionError, match=r"follow the 1 .*choice=.*min_tokens"
        ):
            decoder.generate([4], params)


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


class Unasked:
    """A target that must not be asked."""

    vocab_size = V

    def verify(self, prefixes: Sequence[Prefix], proposal: DraftProposal) -> TargetScores:
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
    # What the library's own binding raises.
    ({"json_schema": '{"const": NaN}'}, "json_schema=.*the library says 'expected value"),
    ({"json_schema": {"const": "\ud800"}}, "json_schema=.*the library says"),
    ({"choice": ("\ud800",)}, "choice=.*surrogates"),
]


@pytest.mark.parametrize(("form", "message"), BAD, ids=str)
def test_what_cannot_be_fulfilled_is_refused_before_any_forward(
    form: dict[str, Any], message: str
) -> None:
    decoder = SpeculativeDecoder(Unasked(), tokenizer=TOKENIZER)
    for method in (decoder.generate, decoder.stream, decoder.start):
        with pytest.raises(InvalidConfigError, match=f"(?s){message}"):
            method([0], SamplingParams(structured_output=StructuredOutput(**form)))


CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"bad_words": ((0,), (2,), (3,))}, "bad_words="),
    ({"bad_words": ((2,), (3,), (1, 0))}, "bad_words="),
    ({"min_tokens": 4, "stop_token_ids": (END,)}, "min_tokens=4"),
]


@pytest.mark.parametrize(("fields", "message"), CONTRADICTIONS, ids=str)
def test_parameters_that_contradict_a_form_are_refused(
    fields: dict[str, Any], message: str
) -> None:
    asked = StructuredOutput(choice=("ab", "1", "abb"))
    decoder = SpeculativeDecoder(Unasked(), tokenizer=TOKENIZER)
    with pytest.raises(InvalidConfigError, match=message):
        decoder.start([0, 1], SamplingParams(structured_output=asked, **fields))
    empty = StructuredOutput(regex="")
    params = SamplingParams(structured_output=empty, stop_token_ids=(END,), min_tokens=1)
    with pytest.raises(InvalidConfigError, match="min_tokens"):
        decoder.start([0], params)


def test_a_form_needs_a_tokenizer_that_can_be_read() -> None:
    class Own:
        def encode(self, text: str) -> list[int]:
            return [0]

        def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
            return ""

    params = SamplingParams(structured_output=StructuredOutput(choice=("a",)))
    for tokenizer, found in ((None, "no tokenizer"), (Own(), "a Own")):
        decoder = SpeculativeDecoder(Unasked(), tokenizer=tokenizer)
        with pytest.raises(InvalidConfigError, match=f"tokenizer, which is {found}"):
            decoder.start([0], params)
    words = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    with pytest.raises(InvalidConfigError, match="one that works on bytes"):
        SpeculativeDecoder(Unasked(), tokenizer=words).start([0], params)
    gaps = alphabet(("a", "b"), ids=(0, 2), end=False)
    with pytest.raises(InvalidConfigError, match="whose ids have gaps"):
        SpeculativeDecoder(Unasked(), tokenizer=gaps).start([0], params)


def allowed(grammar: Grammar, *path: int) -> set[int]:
    mask = grammar.mask(emitted(*path))
    assert mask is not None
    return set(np.flatnonzero(np.unpackbits(mask, bitorder="little")).tolist())


def test_tokens_that_are_no_text_and_those_that_end_it() -> None:
    form = StructuredOutput(regex="ab|b|a|1")
    # The model's end is text to the tokenizer: allowed as the end only.
    grammar = Grammars(TOKENIZER, V, frozenset({1})).of(form, frozenset({1}))
    assert allowed(grammar) == {0, 2, 3}
    assert allowed(grammar, 0) == {1}
    assert not grammar.takes(emitted(), 1)
    assert grammar.takes(emitted(0), 1)
    # A stop token of the request's own that is text stays text.
    grammar = GRAMMARS.of(form, frozenset({1}))
    assert allowed(grammar) == {0, 1, 2, 3}
    # A special token ends it, whether or not the model calls it an end.
    assert allowed(GRAMMARS.of(form, frozenset({1, END})), 0) == {1, END}
    # One that the grammar itself names is text of it.
    named = StructuredOutput(grammar='start: "a" <end> "b"')
    grammar = GRAMMARS.of(named, frozenset())
    assert [allowed(grammar, *path) for path in ((), (0,), (0, END))] == [{0}, {END}, {1}]


def test_what_is_certain_is_spelled_as_the_tokenizer_would() -> None:
    form = StructuredOutput(choice=("1ab",))
    grammar = GRAMMARS.of(form, frozenset())
    assert [allowed(grammar, *path) for path in ((), (3,), (3, 0))] == [{3}, {0}, {1}]
    # Another spelling is refused, even where nothing else is left.
    assert not grammar.takes(emitted(3), 2)
    decoder = SpeculativeDecoder(mock_pair(V)[0], tokenizer=TOKENIZER)
    for seed in range(20):
        params = SamplingParams(structured_output=form, bad_words=((3, 0),), seed=seed)
        with pytest.raises(DegenerateDistributionError, match="no token could follow the 1 "):
            decoder.generate([4], params)


def test_a_tokenizer_wider_than_the_model() -> None:
    narrow = Grammars(TOKENIZER, 2, frozenset())
    assert allowed(narrow.of(StructuredOutput(regex="ab|1b"), frozenset())) == {0}
    with pytest.raises(InvalidConfigError, match="none could be the first"):
        narrow.of(StructuredOutput(regex="1b"), frozenset())


def test_a_tokenizer_that_falls_back_to_bytes() -> None:
    """As SentencePiece vocabularies do; and one that comes without transformers."""
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)}
    vocabulary |= {"▁a": 256, "a": 257, "▁": 258, "bé": 259, "<unk>": 260}
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    spaces, joined = decoders.Replace("▁", " "), decoders.Fuse()
    tokenizer.decoder = decoders.Sequence([spaces, decoders.ByteFallback(), joined])
    grammar = Grammars(tokenizer, 300, frozenset()).of(StructuredOutput(regex=" a|bé"), frozenset())
    assert allowed(grammar) == {ord(" "), ord("b"), 256, 258, 259}
    # What is certain to come is spelled in one way.
    assert allowed(grammar, 258) == {257}
    assert allowed(grammar, ord("b")) == {"é".encode()[0]}


def test_a_method_that_keeps_what_is_forbidden_is_refused() -> None:
    params = SamplingParams(structured_output=StructuredOutput(choice=("a",)))
    decoder = decoder_of(*mock_pair(V), {"verification": "mixture"})
    with pytest.raises(InvalidConfigError, match="None with verification='mixture'"):
        decoder.start([0], params)
    for lossy in ("typical", "lenient"):
        decoder = decoder_of(mock_pair(V)[0], NgramDrafter(2), {"verification": lossy})
        assert decoder.generate([0, 1, 0], params).text == "a"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "exactly one of"),
        ({"regex": "a", "choice": ("a",)}, "regex and choice; expected exactly one"),
        ({"regex": 3}, "structured_output.regex=3"),
        ({"grammar": b"start"}, "structured_output.grammar"),
        ({"choice": "yes"}, "structured_output.choice"),
        ({"choice": ()}, "structured_output.choice"),
        ({"choice": ("a", "")}, "structured_output.choice"),
        ({"json_schema": "{"}, "structured_output.json_schema"),
        ({"json_schema": "[1]"}, "structured_output.json_schema"),
        ({"json_schema": 3}, "structured_output.json_schema"),
        ({"json_schema": {"const": {1}}}, "structured_output.json_schema"),
        ({"json_schema": {"const": float("nan")}}, "structured_output.json_schema"),
    ],
)
def test_forms_of_the_wrong_type_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        StructuredOutput(**fields)
    with pytest.raises(InvalidConfigError, match="a StructuredOutput, or None"):
        SamplingParams(structured_output="regex")


def test_a_form_is_kept_as_it_was_given() -> None:
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    form = StructuredOutput(json_schema=schema)
    schema["type"] = "array"
    assert form.kind == "json_schema"
    assert form.value == '{"type": "object", "properties": {"b": {}, "a": {}}}'


BYTES = Grammars(every_byte(), 256, frozenset())
CHOICES = st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=4, unique=True)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(CHOICES)
def test_choices_are_taken_literally(choices: list[str]) -> None:
    """Whatever is in them: brackets, new lines, characters of several bytes."""
    grammar = BYTES.of(StructuredOutput(choice=tuple(choices)), frozenset())
    for text in choices:
        spelled = list(text.encode())
        assert all(grammar.takes(emitted(*spelled[:i]), byte) for i, byte in enumerate(spelled))
        other = [*spelled[:-1], (spelled[-1] + 1) % 128]
        if bytes(other).decode(errors="replace") not in "\0".join(choices):
            prefixes = {whole.encode()[: len(other)] for whole in choices}
            assert grammar.takes(emitted(*other[:-1]), other[-1]) == (bytes(other) in prefixes)
