"""Masks of grammars: they depend on the path alone, and say what may follow."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from outrider import SamplingParams, StructuredOutput
from outrider.engine.stopping import until_stop
from outrider.errors import InvalidConfigError
from outrider.sampling import grammar as grammar_module
from outrider.sampling.grammar import Grammar, Grammars
from outrider.types.records import Prefix, SequenceState
from tests.support.alphabet import every_byte
from tests.support.forms import END, LANGUAGES, TOKENIZER, V
from tests.support.interrupts import interrupted_at

GRAMMARS = Grammars(TOKENIZER, V, frozenset())


FORMS = {name: asked for name, (asked, _) in LANGUAGES.items()} | {
    "shared lexeme": StructuredOutput(grammar='start: "a" X "[" | "b" X "]"\nX: /1+/')
}


def emitted(*tokens: int) -> Prefix:
    """Tokens of a sequence without a prompt."""
    return Prefix(0, tokens)


def allowed(grammar: Grammar, *path: int) -> set[int]:
    mask = grammar.mask(emitted(*path))
    assert mask is not None
    return set(np.flatnonzero(np.unpackbits(mask, bitorder="little")).tolist())


def fault_only_on(self: Any, prefix: Prefix, drafted: tuple[int, ...] = ()) -> Any:
    """Rejected tokens stay in the matcher."""
    path = [*prefix.tokens[self.begin :].tolist(), *drafted]
    # As many tokens as it was given, whichever they were.
    rest, self.count = path[getattr(self, "count", 0) :], max(getattr(self, "count", 0), len(path))
    matcher, _ = self._emitted = self._emitted or (self.start.deep_copy(), prefix)
    return matcher if matcher.try_consume_tokens(rest) == len(rest) else None


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
@pytest.mark.slow
def test_masks_depend_on_the_path_alone(name: str, ends: frozenset[int]) -> None:
    assert differing(ends, name) == 0


def test_a_matcher_that_remembers_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault."""
    monkeypatch.setattr(Grammar, "_after", fault_only_on)
    assert differing(frozenset(), "shared lexeme") > 0


@pytest.mark.parametrize("line", range(1, 40))
def test_an_interrupt_at_any_line_leaves_later_masks_right(line: int) -> None:
    asked = FORMS["shared lexeme"]
    path = walk(asked, [], 3, random.Random(1))
    expected = allowed(GRAMMARS.of(asked, frozenset()), *path)
    grammar = GRAMMARS.of(asked, frozenset())
    allowed(grammar, *path[:1])
    with interrupted_at(line, {str(grammar_module.__file__)}):
        allowed(grammar, *path)
    assert allowed(grammar, *path) == expected


def lines(asked: StructuredOutput, grammar: Grammar, params: SamplingParams) -> int:
    """As `differing`, of states that go on from each other in rounds, as the engine's do."""
    rng, found = random.Random(1), 0
    prompt, grammar = Prefix(0, [4, 4, 4]), grammar.copy(3)
    start = SequenceState(prompt, 3, params, frozenset(), 0, grammar=grammar)
    known = [start]
    for _ in range(150):
        state = known[-1] if rng.random() < 0.7 else rng.choice(known)
        output = state.output_ids
        drafted = tuple(walk(asked, output, rng.randrange(1, 4), rng))
        for length in range(len(drafted) + 1):
            one = grammar.mask(state.prefix, drafted[:length])
            other = GRAMMARS.of(asked, frozenset()).mask(emitted(*output, *drafted[:length]))
            found += (one is None) != (other is None) or bool(np.any(one != other))
        kept = list(drafted[: rng.randint(1, len(drafted))])
        if grammar.mask(state.prefix, tuple(kept)) is None:
            continue
        kept, reason = until_stop(state, kept, None)
        if reason is None:
            known.append(replace(state, prefix=state.prefix.extended(kept)))
    return found


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.slow
def test_masks_of_states_that_branch_depend_on_the_path_alone(name: str) -> None:
    """A state may be stepped several times, each time with another outcome."""
    params = SamplingParams(max_tokens=1000)
    assert lines(FORMS[name], GRAMMARS.of(FORMS[name], frozenset()), params) == 0


@pytest.mark.slow
def test_tokens_that_are_taken_for_those_before_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: any output is taken for one that goes on from the last."""
    monkeypatch.setattr(Prefix, "begins", lambda self, other: self.length <= other.length)
    asked, params = FORMS["regex"], SamplingParams(max_tokens=1000)
    assert lines(asked, GRAMMARS.of(asked, frozenset()), params) > 0


def test_tokens_that_are_no_text_and_those_that_end_it() -> None:
    form = StructuredOutput(regex="ab|b|a|1")
    # The model's end is text to the tokenizer: allowed as the end only.
    grammar = Grammars(TOKENIZER, V, frozenset({1})).of(form, frozenset({1}))
    assert allowed(grammar) == {0, 2, 3}
    assert allowed(grammar, 0) == {1}
    # A stop token of the request's own that is text stays text.
    grammar = GRAMMARS.of(form, frozenset({1}))
    assert allowed(grammar) == {0, 1, 2, 3}
    # A special token ends it, whether or not the model calls it an end.
    assert allowed(GRAMMARS.of(form, frozenset({1, END})), 0) == {1, END}
    # One that the grammar itself names is text of it.
    named = StructuredOutput(grammar='start: "a" <end> "b"')
    grammar = GRAMMARS.of(named, frozenset())
    assert [allowed(grammar, *path) for path in ((), (0,), (0, END))] == [{0}, {END}, {1}]


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


BYTES = Grammars(every_byte(), 256, frozenset())


CHOICES = st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=4, unique=True)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(CHOICES)
def test_choices_are_taken_literally(choices: list[str]) -> None:
    """Whatever is in them: brackets, new lines, characters of several bytes."""
    grammar = BYTES.of(StructuredOutput(choice=tuple(choices)), frozenset())
    for text in choices:
        spelled = list(text.encode())
        assert all(byte in allowed(grammar, *spelled[:i]) for i, byte in enumerate(spelled))
        other = [*spelled[:-1], (spelled[-1] + 1) % 128]
        if bytes(other).decode(errors="replace") not in "\0".join(choices):
            prefixes = {whole.encode()[: len(other)] for whole in choices}
            assert (other[-1] in allowed(grammar, *other[:-1])) == (bytes(other) in prefixes)


def test_a_text_is_over_where_nothing_can_follow_and_no_token_says_so() -> None:
    form = StructuredOutput(choice=("ab", "aba"))
    open_ended, ended = (GRAMMARS.of(form, ends) for ends in (frozenset(), frozenset({END})))
    assert [open_ended.over(emitted(), path) for path in ((2,), (2, 0), (1,))] == [
        False,
        True,
        False,
    ]
    assert not ended.over(emitted(), (2, 0))
    assert allowed(ended, 2, 0) == {END}
    assert allowed(open_ended, 2, 0) == set()


def test_what_is_certain_is_spelled_as_the_tokenizer_would() -> None:
    grammar = GRAMMARS.of(StructuredOutput(choice=("1ab",)), frozenset())
    assert [allowed(grammar, *path) for path in ((), (3,), (3, 0))] == [{3}, {0}, {1}]
