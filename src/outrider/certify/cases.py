"""What may be asked of the engine, as factors; a case is one choice of each, on tiny models."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

from ..config.params import LOSSY, SamplingParams, SpeculativeConfig, Verification
from ..config.processors import StatefulProcessor
from ..config.structured import StructuredOutput
from ..drafters.base import Drafter
from ..drafters.early_exit import EarlyExitDrafter
from ..drafters.hybrid import HybridDrafter
from ..drafters.model import ModelDrafter
from ..drafters.ngram import NgramDrafter
from ..drafters.prediction import PredictionDrafter
from ..drafters.suffix.drafter import SuffixDrafter
from ..engine.decoder import SpeculativeDecoder
from ..policies.base import Policy
from ..runtimes.base import Runtime
from ..runtimes.tabular import TabularModel, mock_pair
from ..types.records import Prefix, SequenceState
from ..verification import Verifier
from . import toys
from .covering import covering
from .enumeration import exact_distribution
from .kits.policy import play
from .kits.runner import TOLERANCE, described
from .layered import head_of, layered
from .reference import Source, distance, target_distribution

_ANOTHER = ("ba", "b", "", "a")
"""What the tokens of a draft of another vocabulary read as. It has some that the target lacks."""


def _suffixes() -> SuffixDrafter:
    return SuffixDrafter(max_spec_offset=3.0, min_token_prob=0.01, max_pool_tokens=0)


def _hybrid(draft: TabularModel) -> HybridDrafter:
    return HybridDrafter(draft, _suffixes(), min_expected=0.5)


DRAFTERS: dict[str, tuple[Callable[[Any], Drafter | None], dict[str, Any]]] = {
    "model": (ModelDrafter, {}),
    "model, greedy": (ModelDrafter, {"draft_sample_method": "greedy"}),
    "prompt lookup": (lambda _: NgramDrafter(3), {}),
    "suffix lookup": (lambda _: _suffixes(), {}),
    "prediction": (lambda _: PredictionDrafter(min_match=1), {}),
    "hybrid": (_hybrid, {}),
    "tree, greedy": (ModelDrafter, {"tree_children": "greedy"}),
    "tree, drawn": (ModelDrafter, {"tree_children": "without_replacement"}),
    "tree, replaced": (ModelDrafter, {"tree_children": "with_replacement"}),
    "tree, points": (ModelDrafter, {"draft_sample_method": "greedy"}),
    "tree, grown": (ModelDrafter, {}),
    "tree, hybrid": (_hybrid, {}),
    "vocabulary, tokens": (partial(toys.of_another_vocabulary, texts=("aa", "", "a")), {}),
    "vocabulary, text": (partial(toys.of_another_vocabulary, texts=_ANOTHER, by_text=True), {}),
    "tree, vocabulary": (partial(toys.of_another_vocabulary, texts=_ANOTHER), {}),
    "early exit": (lambda target: EarlyExitDrafter(target, 1), {}),
    "tree, early exit": (lambda target: EarlyExitDrafter(target, 1), {}),
    "head": (partial(head_of, block=False), {}),
    "tree, head": (partial(head_of, block=False), {}),
    "block head": (partial(head_of, block=True), {}),
    "none": (lambda _: None, {}),
}
"""What makes a drafter of a draft model, or of a target of two layers, and the settings of it.

A hybrid looks tokens up for some rows or branches, and asks the model for the others. A draft of
another vocabulary goes by the tokens that both have, or by text. An early exit is the first of the
target's two layers; heads draft from its hidden states, that of blocks each token by the one
before. Children of trees are the likeliest tokens and one drawn from the rest (greedy), drawn
without or with replacement (drawn, replaced), or point masses alone (points); a grown tree shares a
budget of nodes out where the draft is surest.
"""

_SHAPES: dict[int, tuple[int, ...]] = {1: (3,), 2: (2, 1), 3: (1, 2, 1)}

METHODS: tuple[Verification, ...] = tuple(
    name for name in get_args(Verification) if name not in LOSSY
)
"""The lossless methods."""

SAMPLING: dict[str, dict[str, Any]] = {
    "plain": {},
    "temperature": {"temperature": 0.6},
    "top-k": {"top_k": 2},
    "top-p": {"top_p": 0.7},
    "min-p": {"min_p": 0.3},
    "all": {"temperature": 1.4, "top_k": 2, "top_p": 0.85, "min_p": 0.1},
    "greedy": {"temperature": 0.0},
}

LOGITS_PROCESSING: dict[str, dict[str, Any]] = {
    "none": {},
    "repetition": {"repetition_penalty": 1.4},
    "penalties": {"presence_penalty": 0.8, "frequency_penalty": -0.5},
    "bias": {"logit_bias": {0: 1.5, 2: -1.0}},
    "bans": {"bad_words": ((1, 2), (0, 0))},
    "only": {"allowed_token_ids": (0, 1)},
    "processor": {"logits_processors": (toys.turned,)},
    "memory": {"logits_processors": (StatefulProcessor(toys.Remembering()),)},
    "regex": {
        "structured_output": StructuredOutput(regex="(ab|b)+a?"),
        "logits_processors": (toys.turned,),
    },
    "choice": {
        "structured_output": StructuredOutput(choice=("ab", "ba", "abb", "aab")),
        "frequency_penalty": 0.9,
        "logit_bias": {2: -1.5},
    },
}
"""What is done to logits before they become distributions, with tokens that were drafted in view.

The last four: a processor of the user's own, one that remembers, and two forms of the text.
"""

STOP: dict[str, dict[str, Any]] = {
    "never": {},
    "at a token": {"stop_token_ids": (toys.END,)},
    "at a string": {"stop": ("ba", "bb")},
    "not before two": {"stop_token_ids": (toys.END,), "stop": ("b",), "min_tokens": 2},
    "after one token": {"max_tokens": 1},
}
"""What ends a request before its length does."""

DRAFTING: dict[str, SamplingParams | None] = {
    "as asked": None,
    "otherwise": SamplingParams(
        temperature=1.3, top_k=2, repetition_penalty=0.7, bad_words=((2, 0),)
    ),
}
"""What makes the draft's distributions of its logits: the request's own parameters, or others."""

POLICIES: dict[str, dict[str, Any]] = {
    "fixed": {"depth": "fixed"},
    "adaptive": {"depth": "adaptive", "cost_ratio": 0.4},
    "adaptive, measured": {"depth": "adaptive"},
    "confidence": {"depth": "confidence", "cost_ratio": 0.25},
}
"""What decides how far to draft.

Adaptive cases have a seed, so that their own history and the cost ratio decide; or costs were
measured, on made-up rounds, and decide beside what all sequences share. In those of confidence a
token costs so much that some paths end early and others do not.
"""

_KNOWN_ROUNDS = (*[(0, 0)] * 3, (1, 1), (1, 0), (2, 1), (2, 2), (3, 1), (3, 0), *[(0, 0)] * 2)
"""What each made-up round drafted in a row, and what it kept: of one sequence, then of four.

So few are kept that it depends on a text's own rounds how far it is drafted for.
"""

FACTORS: dict[str, tuple[str, ...]] = {
    "method": METHODS,
    "drafter": tuple(DRAFTERS),
    "sampling": tuple(SAMPLING),
    "logits processing": tuple(LOGITS_PROCESSING),
    "stop": tuple(STOP),
    "batch": ("alone", "ragged", "with others"),
    "depth": ("1", "2", "3"),
    "policy": tuple(POLICIES),
    "replay": ("no", "yes"),
    "draft": ("unlike", "similar", "close"),
    "drafting": tuple(DRAFTING),
}

STRENGTH = 3
"""The design covers every combination of the values of this many factors."""

LEFT_OUT: dict[str, str] = {
    "n": "one continuation at a time is enumerated",
    "seed, in its own right": "every outcome of every draw is walked in its place",
    "include_stop_str_in_output": "it changes where the text is cut, and no token",
    "logprobs": "they are reported of tokens, and change none",
    "ignore_eos": "the small models have no end token of their own; requests name theirs",
    "json_schema, grammar": "they go through the matcher that a regex and a choice go through, and "
    "JSON has no short texts in two or three letters",
    "a form beside bad_words": "together they may leave no token, which is an error and has no "
    "distribution",
    "draft_params where no draft's distribution is drawn from": "nothing is made of its logits",
}
"""What a request may ask for, or a configuration, that no case does, and why."""

_BATCH_SIZES = {"alone": 1, "ragged": 64, "with others": 16}
_AGREEMENTS = {"unlike": 0.0, "similar": 0.6, "close": 0.95}
_PREDICTION = (0, 2, 1, 0, 0, 1)
_PROMPT = (0, 1, 1, 0, 1, 1, 0)
"""It repeats itself, for the lookup, and lacks a token, which penalties see in drafts alone."""


@dataclass(frozen=True, slots=True)
class Part:
    """A verification method or a drafter of the user's own, or neither: the engine as it ships.

    Attributes:
        name: as the user gave it.
        verifier: takes the place of the configured method.
        drafter: makes the drafter of a tabular draft model.
    """

    name: str = ""
    verifier: Verifier | None = None
    drafter: Callable[[TabularModel], Drafter] | None = None

    def build(
        self, target: Any, draft: Any, config: Any, chance: Any = None, **more: Any
    ) -> SpeculativeDecoder:
        """Make a decoder with this part in its place; see `checks.Build`."""
        drafter = draft if self.drafter is None else self.drafter(draft)
        settings = {"config": config, "chance": chance, "verifier": self.verifier} | more
        return SpeculativeDecoder(target, drafter, **settings)


@dataclass(frozen=True, slots=True)
class Case:
    """One choice of every factor, on the random model pair of that number."""

    number: int
    values: Mapping[str, str]
    part: Part = Part()

    def measure(self) -> Measured:
        """Enumerate the engine, and hold its distribution against the target's.

        Whatever the engine or the user's part raises is a finding, not the end of the tier.
        """
        size, texts = _BATCH_SIZES[self.values["batch"]], toys.TEXTS[: self._vocab_size]
        try:
            target, source, draft = self._models()
            decoder = self._decoder(target, draft, texts)
            params = self._params(later=decoder.follows)
            mates = _mates(decoder) if self.values["batch"] == "with others" else ()
            found = exact_distribution(decoder, _PROMPT, params, batch_size=size, mates=mates)
            expected = target_distribution(source, _PROMPT, params, texts)
        except Exception as error:
            return Measured(self, math.inf, 0, described(error))
        return Measured(self, distance(found, expected), len(found))

    @property
    def _depth(self) -> int:
        return int(self.values["depth"])

    @property
    def _vocab_size(self) -> int:
        return 4 if self._depth == 1 and not self.values["drafter"].startswith("tree") else 3

    def _params(self, *, later: bool) -> SamplingParams:
        """What is asked; with `later` a round more, where the first one drafts nothing."""
        values = self.values
        # One token more than the depth, or a round could not reach it.
        asked: dict[str, Any] = {
            "max_tokens": max(3, self._depth + 1) + later,
            "depths": (0,) * later + (self._depth, 0, 1) if values["replay"] == "yes" else None,
            "seed": 1 if values["policy"] == "adaptive" else None,
            "prediction": _PREDICTION if values["drafter"] == "prediction" else None,
        }
        asked |= STOP[values["stop"]] | SAMPLING[values["sampling"]]
        return SamplingParams(**asked | LOGITS_PROCESSING[values["logits processing"]])

    def _models(self) -> tuple[Runtime, Source, Any]:
        """The target, its distribution, and a drafter, or None, or a draft model for the part."""
        kind, agreement = self.values["drafter"], _AGREEMENTS[self.values["draft"]]
        if kind.endswith(("early exit", "head")):
            left, distribution = layered(self._vocab_size, self.number, agreement)
            return left, distribution, DRAFTERS[kind][0](left)
        target, draft = mock_pair(self._vocab_size, self.number, agreement)
        return target, target, draft if self.part.drafter else DRAFTERS[kind][0](draft)

    def _decoder(self, target: Runtime, draft: Any, texts: tuple[str, ...]) -> SpeculativeDecoder:
        method: Any = "block" if self.part.verifier else self.values["method"]
        more = POLICIES[self.values["policy"]] | {"draft_params": DRAFTING[self.values["drafting"]]}
        config = configured(method, self.values["drafter"], self._depth, **more)
        decoder = self.part.build(target, draft, config, tokenizer=toys.tokenizer(texts))
        if self.values["policy"] == "adaptive, measured":
            decoder.knowledge = _taught(decoder.policy, config.deepest)
        return decoder


def _taught(policy: Policy, deepest: int) -> Any:
    """The knowledge of a policy that measured the costs of made-up rounds: no clock is read."""
    knowledge = policy.start()
    params = SamplingParams(max_tokens=100)
    for rows in (1, 4):
        states = [
            SequenceState(Prefix(-1 - row, range(16)), 16, params, frozenset(), row)
            for row in range(rows)
        ]
        for asked, most in _KNOWN_ROUNDS:
            depth, kept = [min(asked, deepest)] * rows, [min(most, deepest)] * rows
            states, record = play(policy, states, depth, kept, confidence=0.7)
            knowledge = policy.observe(knowledge, states, record)
    return knowledge


@dataclass(frozen=True, slots=True)
class Measured:
    """What a case came to.

    Attributes:
        case: the case.
        error: the largest error in the probability of any output; infinite if there is a problem.
        outputs: how many different outputs there are.
        problem: what was raised, None if nothing was.
    """

    case: Case
    error: float
    outputs: int
    problem: str | None = None

    @property
    def passed(self) -> bool:
        """Whether the error is what rounding makes."""
        return self.error < TOLERANCE


def configured(method: Verification, kind: str, k: int, **more: Any) -> SpeculativeConfig:
    """Make the configuration of a method and a kind of drafter."""
    settings: dict[str, Any] = {"depth": "fixed", "validate": "always"}
    if kind == "tree, grown":
        settings["tree_budget"] = k + 1
    elif kind.startswith("tree"):
        settings["tree_shape"] = _SHAPES[k]
    settings |= (DRAFTERS[kind][1] if kind in DRAFTERS else {}) | more
    return SpeculativeConfig(num_speculative_tokens=k, verification=method, **settings)


def design(part: Part = Part()) -> list[Case]:
    """The covering design over all factors, or over those that a user's part leaves free."""
    factors = dict(FACTORS)
    if part != Part():
        factors["drafter" if part.drafter else "method"] = (part.name,)
    method = part.verifier.method if part.verifier else None
    if method is not None and not method.trees:
        # Tokens of two sources in one batch are verified as trees are.
        chains = (kind for kind in DRAFTERS if not kind.startswith("tree"))
        factors["drafter"] = tuple(kind for kind in chains if kind != "hybrid")
    rows = covering(factors, allowed, STRENGTH)
    return [Case(number, row, part) for number, row in enumerate(rows)]


def allowed(row: Mapping[str, str]) -> bool:
    """Whether a row, or the part of one, may occur.

    Without a drafter there is no depth to replay, and without a draft's distribution none to make;
    confidence is for chains.
    """
    drafter = row.get("drafter", "")
    if drafter.startswith("tree") and row.get("policy") == "confidence":
        return False
    undrawn = ("none", "prompt lookup", "suffix lookup", "prediction", "vocabulary, text")
    if drafter in undrawn and row.get("drafting", "as asked") != "as asked":
        return False
    return drafter != "none" or all(
        row.get(factor, FACTORS[factor][0]) == FACTORS[factor][0]
        for factor in ("depth", "policy", "replay")
    )


def _mates(decoder: SpeculativeDecoder) -> list[SequenceState]:
    """Requests of other kinds that share every batch."""
    requests = {
        (0,): SamplingParams(max_tokens=2, temperature=0),
        (2, 1): SamplingParams(max_tokens=9, temperature=0.5),
        (1, 1, 0): SamplingParams(max_tokens=5, top_k=1),
    }
    return [decoder.start(prompt, params)[0] for prompt, params in requests.items()]
