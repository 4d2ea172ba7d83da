"""What an engine is asked: texts without parameters, then with each that it may ignore."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Literal, get_args

from ...config.params import SamplingParams
from ...config.validation import integer, real
from ...errors import InvalidConfigError
from .records import Question, Text

Parameter = Literal[
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "bad_words",
    "min_tokens",
]
"""What may be asked about by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is asked.

    Attributes:
        tokens: of ordinary texts that are looked at, at most.
        parameter_tokens: of texts for each parameter.
        length: tokens of a text, at least 8.
        alpha: the rate of false alarms, of all questions together.
        concurrency: requests that are sent at once, an even number.
        only: parameters to ask about; may be repeated; all by default.
    """

    tokens: int = 4096
    parameter_tokens: int = 768
    length: int = 64
    alpha: float = 0.01
    concurrency: int = 8
    only: tuple[Parameter, ...] = ()

    def __post_init__(self) -> None:
        integer("tokens", self.tokens, 1)
        integer("parameter_tokens", self.parameter_tokens, 1)
        integer("length", self.length, 8)
        integer("concurrency", self.concurrency, 2)
        if self.concurrency % 2:
            expected = "an even number: each prompt is asked for twice at once"
            raise InvalidConfigError("concurrency", self.concurrency, expected)
        real("alpha", self.alpha, "a number in (0, 1)", lambda each: 0 < each < 1)

    @property
    def requests(self) -> int:
        """How many texts are asked for, if all have their length and no question ends early."""
        asked = len(set(self.only) or get_args(Parameter))
        # In pairs; the first token of an ordinary text is not looked at.
        ordinary = ceil(self.tokens / (self.length - 1) / 2)
        return 2 * (ordinary + asked * ceil(self.parameter_tokens / self.length / 2))


PLAIN = "sampling"
PAIRS = "simultaneous requests"
GREEDY = "temperature 0"

_COUNTED = ("presence_penalty", "frequency_penalty")

_SHARE = 0.4
"""Of the evidence, for texts without parameters; as much is for pairs, and the rest for others."""


def plain(tokens: int, length: int) -> Question:
    """Return the first question: ordinary texts at temperature 1.

    Args:
        tokens: how many are looked at.
        length: of a text, in tokens.
    """
    return Question(PLAIN, SamplingParams(max_tokens=length), tokens, _SHARE)


def pairs(tokens: int, length: int) -> Question:
    """Return the question whether simultaneous requests are drawn independently; see `plain`."""
    return Question(PAIRS, SamplingParams(max_tokens=length), tokens, _SHARE / 2)


def parameters(
    texts: Sequence[Text], tokens: int, length: int, listed: int | None, names: Sequence[str] = ()
) -> list[Question]:
    """Return a question for each parameter that changes the distribution.

    Args:
        texts: of the first question; what is often in them is what biases and stops are about.
        tokens: how many each looks at.
        length: of a text, in tokens.
        listed: how many tokens the reference lists; None for all. Otherwise requests that change
            logits say top_k, so that the distribution is known.
        names: of those to ask; all by default.
    """
    plainly = bare = SamplingParams(max_tokens=length)
    warm = replace(plainly, temperature=0.6)
    if listed is not None:
        # Half of the listed tokens may be penalised, and the others stay the likeliest.
        bare = replace(bare, top_k=max(2, listed // 2))
        warm = replace(warm, top_k=listed - 1)
    counts = Counter(token for text in texts for token in text.tokens)
    often = [token for token, _ in counts.most_common(4)] or [0]
    # Tokens that end texts anyway are held back as well.
    ends = {text.tokens[-1] for text in texts if text.finish_reason == "stop" and text.tokens}
    stops = tuple(dict.fromkeys((*often, *sorted(ends))))
    asked = {
        "temperature": warm,
        "top_p": replace(plainly, top_p=0.7),
        "top_k": replace(plainly, top_k=3),
        "min_p": replace(plainly, min_p=0.2),
        "presence_penalty": replace(bare, presence_penalty=1.5),
        "frequency_penalty": replace(bare, frequency_penalty=1.0),
        "repetition_penalty": replace(bare, repetition_penalty=1.3),
        "logit_bias": replace(bare, logit_bias=dict.fromkeys(often, -4.0)),
        "bad_words": replace(bare, bad_words=tuple((token,) for token in often)),
        "min_tokens": replace(bare, stop_token_ids=stops, min_tokens=length // 2),
    }
    chosen = [name for name in asked if not names or name in names]
    weight = (1 - 1.5 * _SHARE) / max(1, len(chosen))
    without = dict.fromkeys(("top_p", "top_k", "min_p"), plainly)
    without["temperature"] = replace(warm, temperature=1.0)
    without["min_tokens"] = replace(bare, stop_token_ids=stops)
    return [
        Question(name, asked[name], tokens, weight, without.get(name, bare), name in _COUNTED)
        for name in chosen
    ]
