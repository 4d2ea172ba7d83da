"""Find which tokens may follow, by a request's grammar: llguidance's matcher as a pure function.

A mask depends on nothing but the grammar and the tokens before. What is kept from call to call is a
matcher after the tokens emitted so far. Each round it is given the tokens that are new to it, and a
copy of it goes along the drafts.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..config.structured import StructuredOutput
from ..errors import InvalidConfigError, missing
from ..types.prefix import Prefix
from ..types.protocols import SpellingTokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

Mask = NDArray[np.uint8]
T = TypeVar("T")

_DEAD_END = "NoExtension"
"""How a matcher's error begins where its grammar leads nowhere; other errors are limits of its."""

_WHITESPACE = r"( |\n[ \t]{0,40})?"
"""Between tokens of JSON: nothing, a space, or a new line with an indentation.

A model that may write any whitespace may never write anything else.
"""

_STACK = 2**26
"""Bytes for the compiler, which recurses: 5 KiB a level of a form, of 8192 at most."""

_STACK_SIZE = threading.Lock()
"""Held while a thread is started: the size of stacks is one of the whole process."""

_KEPT = 32
_LONGEST = 300
_END = "<|outrider: the end|>"


class Grammars:
    """Makes grammars over one vocabulary.

    Args:
        tokenizer: a fast tokenizer of transformers, a `tokenizers.Tokenizer`, or one that says what
            its tokens spell; looked at when the first grammar is asked for.
        vocab_size: the target's V; ids that the tokenizer does not have are never allowed.
        eos_token_ids: of the target.
    """

    def __init__(self, tokenizer: Any, vocab_size: int, eos_token_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos = eos_token_ids
        # Many requests ask for the same form.
        self._of = lru_cache(_KEPT)(self._made)

    def of(self, asked: StructuredOutput, stop_ids: frozenset[int]) -> Grammar:
        """Return the grammar that a request asks for, which `stop_ids` end.

        Raises:
            InvalidConfigError: the library refuses it, no text fulfils it, or the vocabulary cannot
                spell any; or there is no tokenizer that could be read.
        """
        return self._of(asked, stop_ids).copy()

    def _made(self, asked: StructuredOutput, stop_ids: frozenset[int]) -> Grammar:
        with missing("grammar"):
            from llguidance import LLMatcher, LLParserLimits

        vocabulary, end = self._vocabulary
        field = f"structured_output.{asked.kind}"
        limits = LLParserLimits(verbose_errors=False)

        def make() -> LLMatcher:
            return LLMatcher(vocabulary, _source(asked), log_level=0, limits=limits)

        try:
            matcher = _with_stack(make)
            error = matcher.get_error() if matcher.is_error() else ""
        except ValueError as refused:
            error = str(refused)
        if error:
            said = brief(error)
            raise InvalidConfigError(
                field, asked.value, f"one that llguidance can compile; the library says {said}"
            )
        special = frozenset(t for t in stop_ids if vocabulary.is_special_token(t))
        texts = (stop_ids & self._eos) - special
        grammar = Grammar(asked, matcher, self._vocab_size, end, special | texts, texts)
        empty = Prefix(0, ())
        first = grammar.mask(empty)
        if first is None or not first.any():
            expected = "one that tokens can fulfil: none could be the first"
            if grammar.over(empty):
                expected = "more than the empty text, which no token of the request ends"
            raise InvalidConfigError(field, asked.value, expected)
        return grammar

    @cached_property
    def _vocabulary(self) -> tuple[LLTokenizer, int]:
        """The vocabulary, and the id that stands for the end in it."""
        with missing("grammar"):
            from llguidance import LLTokenizer
            from tokenizers import Tokenizer
            from transformers import PreTrainedTokenizerFast

        given = self._tokenizer
        if isinstance(given, SpellingTokenizer):
            return _spelled(given, self._vocab_size)
        backend = given.backend_tokenizer if isinstance(given, PreTrainedTokenizerFast) else given
        if not isinstance(backend, Tokenizer):
            found = "no tokenizer" if given is None else f"a {type(given).__name__}"
            raise _unread(given, found, "a fast transformers tokenizer or a tokenizers.Tokenizer")
        # The end is an id of its own: a request may end at any of several tokens, or at none.
        own = Tokenizer.from_str(backend.to_str())
        own.no_padding()
        own.no_truncation()
        taken = backend.get_vocab(with_added_tokens=True).values()
        own.add_special_tokens([_END])
        end = own.get_vocab(with_added_tokens=True)[_END]
        if end in taken:
            raise _unread(given, "a tokenizer whose ids have gaps", "one that has none")
        size = max(self._vocab_size, end, *taken) + 1
        try:
            return LLTokenizer(own.to_str(), n_vocab=size, eos_token=end), end
        except ValueError as error:
            found = f"a tokenizer that cannot be read ({brief(str(error))})"
            raise _unread(given, found, "one that works on bytes") from error


def _spelled(tokenizer: Any, vocab_size: int) -> tuple[LLTokenizer, int]:
    """The vocabulary of a tokenizer that says what its tokens spell, and the id of the end."""
    from llguidance import LLTokenizer, TokenizerWrapper

    words, specials = tokenizer.words(), tokenizer.specials()
    end = max(vocab_size, len(tokenizer.get_vocab()), *words, *specials) + 1
    named = specials | {end: _END}
    vocabulary = _Vocabulary(
        encode=partial(tokenizer.encode, add_special_tokens=False),
        tokens=[
            named[index].encode() if index in named else words.get(index, b"")
            for index in range(end + 1)
        ],
        special_token_ids=sorted(named),
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=end,
    )
    return LLTokenizer(TokenizerWrapper(vocabulary)), end


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """A vocabulary as llguidance's wrapper of tokenizers takes it."""

    encode: Callable[[str], list[int]]
    tokens: list[bytes]
    special_token_ids: list[int]
    bos_token_id: int | None
    eos_token_id: int

    def __call__(self, text: str) -> list[int]:
        return self.encode(text)


def _unread(given: object, found: str, expected: str) -> InvalidConfigError:
    said = f"structured_output needs the decoder's tokenizer, which is {found}"
    return InvalidConfigError("tokenizer", given, expected, given=said)


@dataclass(eq=False)
class Grammar:
    """What may follow in one sequence. Made by `Grammars.of`.

    A path is the tokens that the sequence has emitted, and drafted ones after them. Of the tokens
    that end the sequence where the text is whole, `texts` are text as well, which they are not to
    be; `end` is the id that stands for the end in the matcher's vocabulary.

    Matchers go on only, and are copied to go two ways. After llguidance's own `rollback` (1.9.1) a
    mask may be that of the tokens rolled back: Earley rows that it kept are taken for those of the
    new path where they end in the same lexeme (`start: "a" X "b" | "c" X "d"` with X: /x+/; "ax",
    back, "cx": the mask has "b").
    """

    asked: StructuredOutput
    start: LLMatcher
    vocab_size: int
    end: int
    ends: frozenset[int]
    texts: frozenset[int]
    begin: int = 0
    # After the tokens emitted so far; None for nothing that is known.
    _emitted: tuple[LLMatcher, Prefix] | None = field(default=None, init=False)
    _length: int = field(default=0, init=False)

    def copy(self, begin: int = 0) -> Grammar:
        """The same for another sequence, whose prompt has `begin` tokens."""
        return replace(self, begin=begin)

    def mask(self, prefix: Prefix, drafted: tuple[int, ...] = ()) -> Mask | None:
        """Return which tokens may follow a path: a bit each, uint8 [ceil(V / 8)], lowest first.

        All zeros where none may; None where a token on the path is refused.
        """
        matcher = self._after(prefix, drafted)
        return None if matcher is None else self._allowed(matcher)

    def over(self, prefix: Prefix, drafted: tuple[int, ...] = ()) -> bool:
        """Return whether the text is whole, nothing can follow, and no token can say so."""
        matcher = None if self.ends else self._after(prefix, drafted)
        if matcher is None:
            return False
        mask, whole = self._following(matcher)
        return whole and not mask.any()

    def _after(self, prefix: Prefix, drafted: tuple[int, ...]) -> LLMatcher | None:
        """A matcher at the end of a path, None if a token on it is refused."""
        known = self._emitted
        # Until it is where it is to be: an interrupt leaves nothing that is known.
        self._emitted = None
        if known is not None and known[1].begins(prefix):
            matcher, at = known[0], len(known[1])
        else:
            matcher, at = self.start.deep_copy(), self.begin
        self._length = len(prefix) - self.begin
        if not self._goes(matcher, prefix.tokens[at:].tolist()):
            return None
        self._emitted = matcher, prefix
        if not drafted:
            return matcher
        matcher = matcher.deep_copy()
        return matcher if self._goes(matcher, list(drafted)) else None

    def _goes(self, matcher: LLMatcher, tokens: list[int]) -> bool:
        """Whether a matcher takes tokens; one that does not is of no use any more."""
        taken = not tokens or matcher.try_consume_tokens(tokens) == len(tokens)
        if not taken:
            self._check_limits(matcher)
        return taken

    def _allowed(self, matcher: LLMatcher) -> Mask:
        """The mask of what may follow, with the tokens that may end the text."""
        mask, whole = self._following(matcher)
        for token in self.ends if whole else ():
            mask[token >> 3] |= 1 << (token & 7)
        return mask

    def _following(self, matcher: LLMatcher) -> tuple[Mask, bool]:
        """The mask without the tokens that end the sequence, and whether the text is whole."""
        mask = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8).copy()
        width = (self.vocab_size + 7) // 8
        if matcher.is_error():
            self._check_limits(matcher)
            return np.zeros(width, dtype=np.uint8), False
        whole = bool(mask[self.end >> 3] >> (self.end & 7) & 1)
        for token in (self.end, *self.texts):
            mask[token >> 3] &= ~(1 << (token & 7)) & 255
        mask = mask[:width]
        if self.vocab_size % 8:
            mask[-1] &= (1 << self.vocab_size % 8) - 1
        return mask, whole

    def _check_limits(self, matcher: LLMatcher) -> None:
        """Raise InvalidConfigError if a matcher gave up for any other reason than a dead end."""
        said = matcher.get_error()
        if said and not said.startswith(_DEAD_END):
            raise InvalidConfigError(
                f"structured_output.{self.asked.kind}",
                self.asked.value,
                f"a simpler one; after {self._length} tokens the library says {brief(said)}",
            )


def _with_stack(work: Callable[[], T]) -> T:
    """Do something on a thread whose stack holds the deepest form that is taken."""
    with ThreadPoolExecutor(1) as pool:
        with _STACK_SIZE:
            before = threading.stack_size(_STACK)
            try:
                going = pool.submit(work)
            finally:
                threading.stack_size(before)
        return going.result()


def _source(asked: StructuredOutput) -> str:
    """The grammar as the library reads it."""
    from llguidance import LLMatcher

    if asked.json_schema is not None:
        assert isinstance(asked.json_schema, str)
        options = json.loads(asked.json_schema).get("x-guidance")
        return LLMatcher.grammar_from_json_schema(
            asked.json_schema, None if options else {"whitespace_pattern": _WHITESPACE}
        )
    if asked.regex is not None:
        return LLMatcher.grammar_from_regex(asked.regex)
    if asked.grammar is not None:
        return LLMatcher.grammar_from_lark(asked.grammar)
    assert asked.choice is not None
    return LLMatcher.grammar_from_regex("|".join(map(re.escape, asked.choice)))


def brief(message: str) -> str:
    """A message of the library on one line, shortened."""
    line = " ".join(message.removesuffix("<non-verbose/>").split())
    return repr(line if len(line) <= _LONGEST else f"{line[:_LONGEST]}...")
