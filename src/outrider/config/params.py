"""What a user may ask for: how tokens are sampled, and how speculation is done.

Both records are validated once, when they are made; everything behind them may rely on their
values. This module imports no framework, so that a bad flag is refused before a model is loaded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from numbers import Integral, Real
from operator import mul
from typing import Any, Literal, get_args

from ..errors import InvalidConfigError
from .processors import StatefulProcessor
from .structured import StructuredOutput

Verification = Literal[
    "block", "token", "traversal", "recursive", "coupled", "typical", "lenient", "mixture"
]
Depth = Literal["fixed", "adaptive", "confidence"]
DraftSampleMethod = Literal["probabilistic", "greedy"]
TreeChildren = Literal["greedy", "without_replacement", "with_replacement"]

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
)
"""What `SpeculativeConfig.draft_params` may say; the rest of a request is its own."""

_MOST_NODES = 1024
"""The largest tree that may be asked for."""

LOSSY: frozenset[str] = frozenset({"typical", "lenient", "mixture"})
"""The methods that change the distribution of the output; every figure about them says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the tokens of one request are drawn, and when the request ends.

    The distribution of the next token is made in transformers' order: logit bias, repetition penalty,
    presence and frequency penalties, bad words, minimum length; then processors of your own and
    structured output; then temperature, top-k, top-p, min-p. What looks at earlier tokens sees
    drafted ones as if they had been emitted.

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
        min_tokens: no stop token, and no stop string, ends the request before this many tokens.
        stop: strings that end the request once the text holds one; the text is cut before it. One
            string or several; needs a tokenizer.
        logits_processors: called in turn after all of the above and before the temperature, for
            each position of each hypothesis: a transformers `LogitsProcessor`, or a function of the
            tokens so far, int64 [L], and their logits [V], that returns logits [V]. One that
            remembers earlier calls comes in a `StatefulProcessor`, since drafts that are refused
            are seen as well.
        structured_output: the form of the text: JSON of a schema, a regex, a grammar, or a choice.
            Needs a tokenizer. Tokens that would leave the form are forbidden, after all of the
            above and before the temperature.
        stop_token_ids: the request ends once one of these is emitted (it is part of the output).
        ignore_eos: do not stop at the model's own end-of-sequence tokens.
        logprobs: report each token's log-probability under the target's raw logits, and those of
            this many likeliest tokens, in [0, 20]; None reports none.
        n: how many independent continuations of the prompt to produce, at least 1.
        seed: makes the output repeatable, in [0, 2**64); None draws a fresh one, which is reported.
        prediction: what the output is expected to be, text or token ids: a `PredictionDrafter`, by
            itself or in a `HybridDrafter`, drafts from it, and no other drafter looks at it. It
            never changes the distribution of the output.
        depths: number of tokens to draft in each round; replays a run whose `depths` were reported
            (see `Choice`). Rounds beyond its end are planned as usual.

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
    min_tokens: int = 0
    logits_processors: tuple[Callable[..., Any] | StatefulProcessor, ...] = ()
    structured_output: StructuredOutput | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    n: int = 1
    seed: int | None = None
    prediction: str | tuple[int, ...] | None = None
    depths: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        _require_int("max_tokens", self.max_tokens, 1)
        _require_real(
            "temperature",
            self.temperature,
            lambda x: x == 0 or 1e-6 <= x <= 1e30,
            "0 for greedy decoding, or a number >= 1e-6, at most 1e30",
        )
        _require_int("top_k", self.top_k, 0, "an integer >= 0 (0 keeps every token)")
        _require_real("top_p", self.top_p, lambda x: 0 < x <= 1, "a number in (0, 1]")
        _require_real("min_p", self.min_p, lambda x: 0 <= x <= 1, "a number in [0, 1]")
        _require_real(
            "repetition_penalty",
            self.repetition_penalty,
            lambda x: 1e-20 <= x <= 1e20,
            "a number > 0, from 1e-20 to 1e20",
        )
        for field in ("presence_penalty", "frequency_penalty"):
            _require_real(
                field, getattr(self, field), lambda x: -2 <= x <= 2, "a number in [-2, 2]"
            )
        object.__setattr__(self, "logit_bias", _bias(self.logit_bias))
        object.__setattr__(self, "bad_words", _sequences("bad_words", self.bad_words))
        _require_int("min_tokens", self.min_tokens, 0)
        if self.min_tokens > self.max_tokens:
            raise InvalidConfigError(
                "min_tokens", self.min_tokens, f"at most max_tokens={self.max_tokens}"
            )
        object.__setattr__(self, "stop", _strings("stop", self.stop))
        processors = self.logits_processors
        if not isinstance(processors, Iterable) or not all(
            callable(item) or isinstance(item, StatefulProcessor) for item in processors
        ):
            raise InvalidConfigError(
                "logits_processors",
                processors,
                "a sequence of functions, LogitsProcessors or StatefulProcessors",
            )
        object.__setattr__(self, "logits_processors", tuple(processors))
        form = self.structured_output
        if form is not None and not isinstance(form, StructuredOutput):
            raise InvalidConfigError("structured_output", form, "a StructuredOutput, or None")
        if self.logprobs is not None:
            _require_int("logprobs", self.logprobs, 0, "an integer in [0, 20], or None")
            if self.logprobs > 20:
                raise InvalidConfigError(
                    "logprobs", self.logprobs, "an integer in [0, 20], or None"
                )
        _require_bool("ignore_eos", self.ignore_eos)
        _require_int("n", self.n, 1)
        if self.seed is not None:
            _require_int("seed", self.seed, 0, "an integer in [0, 2**64)")
            if self.seed >= 2**64:
                raise InvalidConfigError("seed", self.seed, "an integer in [0, 2**64)")
        object.__setattr__(
            self, "stop_token_ids", _int_tuple("stop_token_ids", self.stop_token_ids)
        )
        if self.prediction is not None and not isinstance(self.prediction, str):
            expected = "a text, a sequence of token ids, or None"
            ids = _int_tuple("prediction", self.prediction, 0, expected)
            object.__setattr__(self, "prediction", ids)
        if self.depths is not None:
            object.__setattr__(self, "depths", _int_tuple("depths", self.depths))
        _store_plain_numbers(self)

    @property
    def biases(self) -> tuple[tuple[int, float], ...]:
        """The logit biases as pairs of token id and value."""
        given = self.logit_bias
        return tuple(given.items()) if isinstance(given, Mapping) else given

    @property
    def greedy(self) -> bool:
        """Whether the distribution of every token is a single atom, the argmax of the logits."""
        return self.temperature == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeConfig:
    """How speculation is done. Unless `lossy`, none of it changes the distribution of the output.

    Args:
        num_speculative_tokens: the most tokens drafted in a row, at least 0; 0 decodes plainly.
            None is 4 where the depth is fixed and 16 otherwise.
        verification: "block" keeps the most tokens and is "traversal" on trees; "token" is the
            classical rule and is "recursive" on trees; "coupled" draws each position's token from
            noise that the drafter shares, so that a seed's text does not depend on the draft. These
            are lossless. "typical", "lenient" and "mixture" are not, and for chains only.
        depth: how far to draft, `num_speculative_tokens` at most and less where fewer tokens
            remain. "fixed" drafts that far every round; "adaptive" as far as pays by measured costs
            and acceptance, 0 included; "confidence" while the draft's distribution is sure enough for
            another token to pay by the `cost_ratio`, chains only.
        cost_ratio: what a draft step costs beside a plain forward of the target, a number >= 0:
            what confidence goes by, and an adaptive depth for a sampled request with a seed, so
            that its text repeats, and for the others until costs were measured. None is what the
            drafter says of itself, as an `EarlyExitDrafter` does, or else .125.
        draft_params: how the draft model's logits become the distributions that drafts are drawn from: its
            temperature, filters, penalties, logit_bias and bad_words take the place of each
            request's own. None takes the request's own, so that a perfect draft is always kept. A
            greedy request is drafted greedily, and a structured one in its form, in any case.
        draft_sample_method: "probabilistic" draws drafts from the draft model's own distribution; "greedy"
            proposes its most likely tokens, verified as the point masses that they are.
        tree_shape: draft trees, each node with this many children at each depth, such as (2, 2, 1),
            no deeper than that, nor than `num_speculative_tokens`; None drafts chains.
        tree_budget: draft trees of this many nodes, at most `num_speculative_tokens` of them in a
            row, grown where the draft model is surest; not together with `tree_shape`.
        tree_children: what the children of a node are: "greedy" the likeliest tokens outright and
            one drawn from the rest; "without_replacement" all drawn, each from what its siblings
            left; "with_replacement" all drawn from one distribution.
        lenience: of "lenient", in (0, 1]: a token is kept with probability min(1, p / (lenience
            q)), so that no token becomes more than 1 / lenience times as likely; 1 is lossless.
        typical_epsilon: of "typical", in (0, 1]: a token is kept if its probability is above the
            lesser of this and typical_delta * exp(-entropy).
        typical_delta: see `typical_epsilon`; a number > 0.
        strict: raise what a drafter raises, and errors about what it returns. Otherwise the round
            goes on without it, which is counted, and the first time warned of.
        mixture_budget: of "mixture", in [0, 1]: how far, in total variation, the distribution of a token may
            be from the target's; 0 is lossless.

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
    strict: bool = False

    def __post_init__(self) -> None:
        if self.num_speculative_tokens is not None:
            _require_int(
                "num_speculative_tokens",
                self.num_speculative_tokens,
                0,
                "an integer >= 0 (0 decodes plainly)",
            )
        if self.cost_ratio is not None:
            _require_real("cost_ratio", self.cost_ratio, lambda x: x >= 0, "a number >= 0")
        _require_choice("verification", self.verification, get_args(Verification))
        _require_choice("depth", self.depth, get_args(Depth))
        _require_choice(
            "draft_sample_method", self.draft_sample_method, get_args(DraftSampleMethod)
        )
        _require_choice("tree_children", self.tree_children, get_args(TreeChildren))
        if self.draft_params is not None:
            _require_draft_params(self.draft_params)
        if self.tree_shape is not None:
            expected = "a sequence of integers >= 1, the children of a node at each depth"
            object.__setattr__(
                self, "tree_shape", _int_tuple("tree_shape", self.tree_shape, 1, expected)
            )
            nodes = sum(accumulate(self.tree_shape[: _MOST_NODES + 1], mul))
            if not 0 < nodes <= _MOST_NODES:
                limit = f"{expected}, and at most {_MOST_NODES} nodes in all"
                raise InvalidConfigError("tree_shape", self.tree_shape, limit)
        if self.tree_budget is not None:
            expected = f"an integer in 1..{_MOST_NODES}"
            _require_int("tree_budget", self.tree_budget, 1, expected)
            if self.tree_budget > _MOST_NODES:
                raise InvalidConfigError("tree_budget", self.tree_budget, expected)
            if self.tree_shape is not None:
                raise InvalidConfigError(
                    "tree_budget", self.tree_budget, "none beside a tree_shape; give one of the two"
                )
            if self.tree_children != "greedy":
                raise InvalidConfigError(
                    "tree_children", self.tree_children, "'greedy' with a tree_budget"
                )
        if self.drafts_trees and self.lossy:
            lossless = sorted(set(get_args(Verification)) - LOSSY)
            raise InvalidConfigError(
                "verification",
                self.verification,
                f"a lossless method for trees: {', '.join(map(repr, lossless))}",
            )
        if self.drafts_trees and self.depth == "confidence":
            raise InvalidConfigError("depth", self.depth, "'fixed' or 'adaptive' for trees")
        _require_real("lenience", self.lenience, lambda x: 0 < x <= 1, "a number in (0, 1]")
        _require_real(
            "typical_epsilon", self.typical_epsilon, lambda x: 0 < x <= 1, "a number in (0, 1]"
        )
        _require_real("typical_delta", self.typical_delta, lambda x: x > 0, "a number > 0")
        _require_real(
            "mixture_budget", self.mixture_budget, lambda x: 0 <= x <= 1, "a number in [0, 1]"
        )
        _require_bool("strict", self.strict)
        _store_plain_numbers(self)

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


def _require_int(field: str, value: object, low: int, expected: str | None = None) -> None:
    if not _is_int(value, low):
        raise InvalidConfigError(field, value, expected or f"an integer >= {low}")


def _is_int(value: object, low: int) -> bool:
    return not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= low


def _require_bool(field: str, value: object) -> None:
    if not isinstance(value, bool):
        raise InvalidConfigError(field, value, "True or False")


def _require_real(
    field: str, value: object, allowed: Callable[[float], bool], expected: str
) -> None:
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise InvalidConfigError(field, value, expected)
    if not allowed(float(value)):
        raise InvalidConfigError(field, value, expected)


def _store_plain_numbers(record: SamplingParams | SpeculativeConfig) -> None:
    """Keep numbers of other libraries, such as NumPy's, as Python's own."""
    for item in fields(record):
        value = getattr(record, item.name)
        if isinstance(value, bool) or not isinstance(value, Real):
            continue
        plain = int(value) if isinstance(value, Integral) else float(value)
        object.__setattr__(record, item.name, plain)


def _require_choice(field: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InvalidConfigError(field, value, f"one of {', '.join(map(repr, choices))}")


def _require_draft_params(given: object) -> None:
    if not isinstance(given, SamplingParams):
        raise InvalidConfigError("draft_params", given, "SamplingParams, or None")
    for field in fields(SamplingParams):
        value = getattr(given, field.name)
        if field.name not in DRAFT_FIELDS and value != field.default:
            raise InvalidConfigError(
                f"draft_params.{field.name}", value, f"none; it takes {', '.join(DRAFT_FIELDS)}"
            )


def _bias(given: object) -> tuple[tuple[int, float], ...]:
    expected = "token ids >= 0 with numbers in [-100, 100]"
    pairs = given.items() if isinstance(given, Mapping) else given
    if not isinstance(pairs, Iterable) or isinstance(pairs, str | bytes):
        raise InvalidConfigError("logit_bias", given, expected)
    found: dict[int, float] = {}
    for pair in pairs:
        if not isinstance(pair, Sequence) or len(pair) != 2:
            raise InvalidConfigError("logit_bias", given, expected)
        token, bias = pair
        _require_int("logit_bias", token, 0, expected)
        _require_real("logit_bias", bias, lambda x: -100 <= x <= 100, expected)
        if token in found:
            raise InvalidConfigError("logit_bias", given, f"one bias for token {token}")
        found[int(token)] = float(bias)
    return tuple(found.items())


def _sequences(field: str, given: object) -> tuple[tuple[int, ...], ...]:
    expected = "sequences of token ids, none of them empty"
    if not isinstance(given, Iterable) or isinstance(given, str | bytes):
        raise InvalidConfigError(field, given, expected)
    found = tuple(_int_tuple(field, item, 0, expected) for item in given)
    if not all(found):
        raise InvalidConfigError(field, given, expected)
    return found


def _strings(field: str, given: object) -> tuple[str, ...]:
    items = (given,) if isinstance(given, str) else given
    expected = "a string, or several, none of them empty"
    if not isinstance(items, Iterable) or isinstance(items, bytes):
        raise InvalidConfigError(field, given, expected)
    found = tuple(items)
    if not all(isinstance(item, str) and item for item in found):
        raise InvalidConfigError(field, given, expected)
    return found


def _int_tuple(
    field: str, values: Iterable[int], low: int = 0, expected: str = "a sequence of integers >= 0"
) -> tuple[int, ...]:
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InvalidConfigError(field, values, expected)
    items = tuple(values)
    if not all(_is_int(item, low) for item in items):
        raise InvalidConfigError(field, items, expected)
    return tuple(int(item) for item in items)
