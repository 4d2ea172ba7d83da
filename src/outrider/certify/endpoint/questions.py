"""What an engine is asked: texts without parameters, then with each that it may ignore."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from ...config.params import SamplingParams
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

PLAIN = "sampling"
PAIRS = "simultaneous requests"

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
        listed: how many tokens the reference lists; None for all. Otherwise each request says
            top_k, so that the distribution is known.
        names: of those to ask; all by default.
    """
    bare = SamplingParams(max_tokens=length)
    if listed is not None:
        bare = replace(bare, top_k=listed - 1)
    counts = Counter(token for text in texts for token in text.tokens)
    often = [token for token, _ in counts.most_common(4)] or [0]
    asked = {
        "temperature": replace(bare, temperature=0.6),
        "top_p": replace(bare, top_p=0.7),
        "top_k": replace(bare, top_k=3),
        "min_p": replace(bare, min_p=0.2),
        "presence_penalty": replace(bare, presence_penalty=1.5),
        "frequency_penalty": replace(bare, frequency_penalty=1.0),
        "repetition_penalty": replace(bare, repetition_penalty=1.3),
        "logit_bias": replace(bare, logit_bias=dict.fromkeys(often, -4.0)),
        "bad_words": replace(bare, bad_words=tuple((token,) for token in often)),
        "min_tokens": replace(bare, stop_token_ids=tuple(often), min_tokens=length // 2),
    }
    chosen = [name for name in asked if not names or name in names]
    weight = (1 - 1.5 * _SHARE) / max(1, len(chosen))
    without = {"min_tokens": replace(bare, stop_token_ids=tuple(often))}
    return [Question(name, asked[name], tokens, weight, without.get(name, bare)) for name in chosen]
