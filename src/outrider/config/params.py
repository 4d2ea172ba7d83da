"""What a user may ask for: how tokens are sampled, and how speculation is done.

Both records are validated once, when they are made; everything behind them may rely on their
values. This module imports no framework, so that a bad flag is refused before a model is loaded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from itertools import accumulate
from operator import mul
from typing import Any, Literal, get_args

from ..errors import InvalidConfigError
from .processors import StatefulProcessor
from .structured import StructuredOutput
from .validation import (
    Check,
    boolean,
    check_fields,
    choice,
    integer,
    integers,
    optional,
    real,
    text,
    texts,
    token_biases,
    token_sequences,
)

Verification = Literal[
    "block", "token", "traversal", "recursive", "coupled", "typical", "lenient", "mixture"
]
Depth = Literal["fixed", "adaptive", "confidence"]
DraftSampleMethod = Literal["probabilistic", "greedy"]
TreeChildren = Literal["greedy", "without_replacement", "with_replacement"]
OnDraftError = Literal["raise", "disable"]
Validate = Literal["auto", "always", "never"]

DRAFT_FIELDS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "bad_words",
    "allowed_token_ids",
)
"""What `SpeculativeConfig.draft_params` may say; the rest of a request is its own."""

_MOST_NODES = 1024
"""The largest tree that may be asked for."""

WITH_MODEL = ("draft_model", "hybrid")
"""Methods of drafting that need a draft model."""

LOSSY: frozenset[str] = frozenset({"typical", "lenient", "mixture"})
"""The methods that change the distribution of the output; every figure about them says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the tokens of one request are drawn, and when the request ends.

    The distribution of the next token is made in transformers' order: logit bias, repetition
    penalty, presence and frequency penalties, bad words, allowed tokens, minimum length; then
    processors of your own and structured output; then temperature, top-k, top-p, min-p. What looks
    at earlier tokens sees drafted ones as if they had been emitted. Token ids come as lists, NumPy
    arrays or tensors.

    Args:
        max_tokens: the most tokens to emit, at least 1.
        temperature: divides the logits, in [1e-6, 1e30]; 0 is greedy decoding.
        top_k: keep the k most likely tokens (ties with the k-th are kept); 0 keeps all.
        top_p: keep the likeliest tokens until their mass reaches this, in (0, 1]; 1 keeps all.
        min_p: keep tokens at least this share as likely as the likeliest, in [0, 1]; 0 keeps all.
        repetition_penalty: divides the positive logits, and multiplies the negative ones, of tokens
            in the prompt or the output so far; in [1e-20, 1e20], 1 for none.
        presence_penalty: taken from the logits of tokens in the output so far, in [-2, 2].
        frequency_penalty: likewise, once for each time the token was emitted, in [-2, 2].
        logit_bias: added to the logits of these tokens, by token id, in [-100, 100]; a mapping or
            pairs.
        bad_words: token id sequences that are never completed: their last token is forbidden where
            the others came just before.
        allowed_token_ids: the only tokens that may come; one that ends the request has to be among
            them to come. By default all may.
        min_tokens: no stop token, and no stop string, ends the request before this many tokens;
            unless its form is whole, and nothing but its end may follow.
        logits_processors: called in turn after all of the above and before the temperature. Each is
            called for each position of each hypothesis, and is a transformers `LogitsProcessor`, or
            a function of the tokens so far, int64 [L], and their logits [V], that returns logits
            [V]. One that remembers earlier calls comes in a `StatefulProcessor`, since drafts that
            are refused are seen as well. Behind a stop none is called.
        structured_output: the form of the text: JSON of a schema, a regex, a grammar, or a choice.
            Needs a tokenizer. Tokens that would leave the form are forbidden, after all of the
            above and before the temperature.
        stop: strings that end the request once the text holds one; the text is cut before it. One
            string or several; needs a tokenizer. One that is the name of a special token, such as
            "<|endoftext|>", makes that token a stop token; a part of such a name is looked for in
            the text alone, which has no special tokens.
        include_stop_str_in_output: cut the text behind the stop string that ended it, not before.
        stop_token_ids: the request ends once one of these is emitted. It is one of the
            output's tokens, and no part of its text.
        ignore_eos: do not stop at the model's own end-of-sequence tokens.
        logprobs: report each token's log-probability under the target's raw logits, and those of
            this many likeliest tokens, in [0, 20]; by default nothing is reported.
        n: how many independent continuations of the prompt to produce, at least 1.
        seed: makes the output repeatable where all else is asked alike, `max_tokens` too, in
            [0, 2^64); without one a fresh one is drawn, and reported.
        prediction: what the output is expected to be, text or token ids: a `PredictionDrafter`, by
            itself or in a `HybridDrafter`, drafts from it, and no other drafter looks at it. It
            never changes the distribution of the output.
        depths: how far to draft in each round: n for n tokens of a model, -n for n looked up. It
            replays a run whose `depths` were reported (see `Choice`). Rounds beyond its end are
            planned as usual. A text that is sampled and not coupled may differ from the run's, its
            distribution not, if the run had no seed, since its looked-up tokens may have come from
            other requests; or if its depth was fixed and it reached the draft model's context.

    Raises:
        InvalidConfigError: a value is outside its range; the message names field, value and range.
    """

    max_tokens: int = 128
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    min_tokens: int = 0
    logits_processors: tuple[Callable[..., Any] | StatefulProcessor, ...] = ()
    structured_output: StructuredOutput | None = None
    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    n: int = 1
    seed: int | None = None
    prediction: str | tuple[int, ...] | None = None
    depths: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        check_fields(self, _SAMPLING)
        if self.min_tokens > self.max_tokens:
            most = f"at most max_tokens={self.max_tokens}"
            raise InvalidConfigError("min_tokens", self.min_tokens, most)

    @property
    def biases(self) -> tuple[tuple[int, float], ...]:
        """The logit biases as pairs of token id and value."""
        assert isinstance(self.logit_bias, tuple)
        return self.logit_bias

    @property
    def greedy(self) -> bool:
        """Whether the distribution of every token is a point mass on the argmax of the logits."""
        return self.temperature == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeConfig:
    """How speculation is done. Unless `lossy`, none of it changes the distribution of the output.

    Args:
        num_speculative_tokens: the most tokens drafted in a row, at least 0; 0 decodes plainly.
            By default 4 where the depth is fixed, and 16 otherwise.
        verification: "block" keeps the most tokens and is "traversal" on trees; "token" is the
            classical rule and is "recursive" on trees; "coupled" draws each position's token from
            noise that the drafter shares, so that a seed's text does not depend on the draft. These
            are lossless. "typical", "lenient" and "mixture" are not, and for chains only.
        depth: how far to draft, `num_speculative_tokens` at most and less where fewer tokens
            remain. "fixed" drafts that far every round; "adaptive" as far as pays by measured costs
            and acceptance, 0 included; "confidence" while the draft's distribution is sure enough
            for another token to pay by the `cost_ratio`, chains only.
        cost_ratio: what a draft step costs beside a plain forward of the target, a number >= 0.
            Confidence goes by it, and an adaptive depth for a sampled request with a seed, so
            that its text repeats, and for the others until costs were measured. By default what
            the drafter says of itself, as one of early exits does, or else .125.
        draft_params: how the draft model's logits become the distributions that it draws from.
            Temperature, filters, penalties and logit_bias take the place of each request's own, and
            bad_words and allowed_token_ids forbid besides what it forbids. None takes the request's
            own, so that a perfect draft is always kept. A greedy request is drafted greedily, and a
            structured one in its form, in any case.
        draft_sample_method: "probabilistic" draws from the draft model's own distribution; "greedy"
            proposes its most likely tokens, verified as the point masses that they are.
        tree_shape: draft trees, each node with this many children at each depth, such as 2, 2, 1.
            They are no deeper than that, nor than `num_speculative_tokens`. By default chains.
        tree_budget: draft trees of this many nodes, grown where the draft model is surest. At most
            `num_speculative_tokens` of them are in a row; not together with `tree_shape`.
        tree_children: what the children of a node are: "greedy" the likeliest tokens and
            one drawn from the rest; "without_replacement" all drawn, each from what its siblings
            left; "with_replacement" all drawn from one distribution.
        lenience: of "lenient", in (0, 1]: a token is kept with probability min(1, p / (lenience
            q)), so that no token becomes more than 1 / lenience times as likely; 1 is lossless.
        typical_epsilon: of "typical", in (0, 1]: a token is kept if its probability is above the
            lesser of this and `typical_delta` times exp(-entropy).
        typical_delta: see `typical_epsilon`; a number > 0.
        mixture_budget: of "mixture", in [0, 1]: how far, in total variation, the distribution of a
            token may be from the target's; 0 is lossless.
        on_draft_error: what happens where a drafter raises or breaks its contract. "raise" hands
            the error on as a `DraftError`; "disable" logs the first one, and decodes the request
            that the error names (`sequence_id`), or else all of the round, plainly from there. If
            a failure depends on drawn values, the text is no longer exactly the target's: a round's
            distribution is off by at most the probability of such a failure, in total variation.
        validate: whether what drafters, models and verification methods return is checked.
            "always" and "never" in every round and in none; "auto" of classes that are not this
            library's own.

    Raises:
        InvalidConfigError: a value is not allowed; the message names field, value and choices.
    """

    num_speculative_tokens: int | None = None
    verification: Verification = "block"
    depth: Depth = "adaptive"
    cost_ratio: float | None = None
    draft_params: SamplingParams | None = None
    draft_sample_method: DraftSampleMethod = "probabilistic"
    tree_shape: tuple[int, ...] | None = None
    tree_budget: int | None = None
    tree_children: TreeChildren = "greedy"
    lenience: float = 0.7
    typical_epsilon: float = 0.09
    typical_delta: float = 0.3
    mixture_budget: float = 0.05
    on_draft_error: OnDraftError = "raise"
    validate: Validate = "auto"

    def __post_init__(self) -> None:
        check_fields(self, _SPECULATION)
        if self.drafts_trees:
            self._check_tree()

    def _check_tree(self) -> None:
        """Refuse trees that are too large, and what does not go together with trees."""
        if self.tree_shape is not None:
            nodes = sum(accumulate(self.tree_shape[: _MOST_NODES + 1], mul))
            if not 0 < nodes <= _MOST_NODES:
                limit = f"children of a node at each depth, {_MOST_NODES} nodes in all at most"
                raise InvalidConfigError("tree_shape", self.tree_shape, limit)
            if self.tree_budget is not None:
                one = "none beside a tree_shape; give one of the two"
                raise InvalidConfigError("tree_budget", self.tree_budget, one)
        elif self.tree_children != "greedy":
            raise InvalidConfigError(
                "tree_children", self.tree_children, "'greedy' with a tree_budget"
            )
        if self.lossy:
            lossless = ", ".join(map(repr, sorted(set(get_args(Verification)) - LOSSY)))
            expected = f"a lossless method for trees: {lossless}"
            raise InvalidConfigError("verification", self.verification, expected)
        if self.depth == "confidence":
            raise InvalidConfigError("depth", self.depth, "'fixed' or 'adaptive' for trees")

    @property
    def deepest(self) -> int:
        """The most tokens drafted in a row."""
        if self.num_speculative_tokens is None:
            return 4 if self.depth == "fixed" else 16
        return self.num_speculative_tokens

    @property
    def drafts_trees(self) -> bool:
        """Whether drafts are trees and not chains."""
        return self.tree_shape is not None or self.tree_budget is not None

    @property
    def lossy(self) -> bool:
        """Whether the output's distribution is allowed to differ from the target's."""
        return self.verification in LOSSY


def _processors(field: str, given: object) -> tuple[Any, ...]:
    """Check logits processors."""
    items = tuple(given) if isinstance(given, Iterable) else (None,)
    if not all(callable(item) or isinstance(item, StatefulProcessor) for item in items):
        expected = "a sequence of functions, LogitsProcessors or StatefulProcessors"
        raise InvalidConfigError(field, given, expected)
    return items


def _prediction(field: str, given: object) -> str | tuple[int, ...]:
    """Check an expected output, text or token ids."""
    if isinstance(given, str):
        return text(field, given)
    return integers(field, given, expected="a text, a sequence of token ids, or None")


def _allowed(field: str, given: object) -> tuple[int, ...]:
    """Check the tokens that alone may come."""
    expected = "one or more token ids, or None for all"
    found = integers(field, given, expected=expected)
    if not found:
        raise InvalidConfigError(field, given, expected)
    return found


def _draft_params(field: str, given: object) -> SamplingParams:
    """Check that only fields of `DRAFT_FIELDS` are set."""
    if not isinstance(given, SamplingParams):
        raise InvalidConfigError(field, given, "SamplingParams, or None")
    for item in fields(SamplingParams):
        value = getattr(given, item.name)
        if item.name not in DRAFT_FIELDS and value != item.default:
            raise InvalidConfigError(
                f"{field}.{item.name}", value, f"none; it takes {', '.join(DRAFT_FIELDS)}"
            )
    return given


def _form(field: str, given: object) -> StructuredOutput:
    """Check the form of the text."""
    if not isinstance(given, StructuredOutput):
        raise InvalidConfigError(field, given, "a StructuredOutput, or None")
    return given


def _is_temperature(value: float) -> bool:
    return value == 0 or 1e-6 <= value <= 1e30


def _number(expected: str, allowed: Callable[[float], bool]) -> Check:
    return partial(real, expected=f"a number {expected}", allowed=allowed)


_AT_LEAST_1 = partial(integer, low=1)
_SHARE = _number("in [0, 1]", lambda x: 0 <= x <= 1)
_POSITIVE_SHARE = _number("in (0, 1]", lambda x: 0 < x <= 1)
_PENALTY = _number("in [-2, 2]", lambda x: -2 <= x <= 2)
_TOKENS = "an integer >= 0 (0 decodes plainly)"
_TEMPERATURE = "0 for greedy decoding, or a number >= 1e-6, at most 1e30"
_DEPTHS = "a sequence of integers: n tokens drafted by a model, or -n looked up, a round"
_SHAPE = "a sequence of integers >= 1, the children of a node at each depth"

_SAMPLING: dict[str, Check] = {
    "max_tokens": _AT_LEAST_1,
    "n": _AT_LEAST_1,
    "top_k": partial(integer, low=0, expected="an integer >= 0 (0 keeps every token)"),
    "min_tokens": partial(integer, low=0),
    "temperature": partial(real, expected=_TEMPERATURE, allowed=_is_temperature),
    "top_p": _POSITIVE_SHARE,
    "min_p": _SHARE,
    "repetition_penalty": _number("> 0, from 1e-20 to 1e20", lambda x: 1e-20 <= x <= 1e20),
    "presence_penalty": _PENALTY,
    "frequency_penalty": _PENALTY,
    "logit_bias": token_biases,
    "bad_words": token_sequences,
    "allowed_token_ids": optional(_allowed),
    "stop": texts,
    "include_stop_str_in_output": boolean,
    "stop_token_ids": integers,
    "logits_processors": _processors,
    "structured_output": optional(_form),
    "ignore_eos": boolean,
    "logprobs": optional(integer, low=0, high=20, expected="an integer in [0, 20], or None"),
    "seed": optional(integer, low=0, high=2**64 - 1, expected="an integer in [0, 2**64)"),
    "prediction": optional(_prediction),
    "depths": optional(integers, low=-math.inf, expected=_DEPTHS),
}
_SPECULATION: dict[str, Check] = {
    "num_speculative_tokens": optional(integer, low=0, expected=_TOKENS),
    "verification": partial(choice, choices=get_args(Verification)),
    "depth": partial(choice, choices=get_args(Depth)),
    "cost_ratio": optional(_number(">= 0", lambda x: x >= 0)),
    "draft_params": optional(_draft_params),
    "draft_sample_method": partial(choice, choices=get_args(DraftSampleMethod)),
    "tree_shape": optional(integers, low=1, expected=_SHAPE),
    "tree_budget": optional(integer, low=1, high=_MOST_NODES),
    "tree_children": partial(choice, choices=get_args(TreeChildren)),
    "lenience": _POSITIVE_SHARE,
    "typical_epsilon": _POSITIVE_SHARE,
    "typical_delta": _number("> 0", lambda x: x > 0),
    "mixture_budget": _SHARE,
    "on_draft_error": partial(choice, choices=get_args(OnDraftError)),
    "validate": partial(choice, choices=get_args(Validate)),
}
