"""Forms of text whose languages are written out, over a vocabulary of a few tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from outrider import SpeculativeConfig, SpeculativeDecoder, StructuredOutput
from outrider.certify.reference import filtered, processed
from outrider.config import SamplingParams
from outrider.runtimes.tabular import TabularModel

from .alphabet import alphabet

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

Distribution = dict[tuple[int, ...], float]


def form_distribution(
    target: Any, params: SamplingParams, language: set[str], prompt: Sequence[int]
) -> Distribution:
    """The distribution of sampling among the tokens by which a text of the language is reached."""
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
        row = processed(target.probabilities((*prompt, *output)), tuple(prompt), output, params)
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
