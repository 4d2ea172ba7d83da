"""Random JSON schemas and regexes: every finished text is valid, drafted or not."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import jsonschema
import pytest

import outrider
from outrider import SamplingParams, SpeculativeConfig, SpeculativeDecoder, StructuredOutput
from outrider.runtimes.tabular import mock_pair
from tests.support.alphabet import alphabet

MERGED = ('{"', '":', '",', "true", "false", "null", "00", "ab", "].", "}}", "é")
TEXTS = (*map(chr, range(32, 127)), "\n", *MERGED)
END = len(TEXTS)
LETTERS = "abcxyz"


def schema(rng: random.Random, depth: int = 2) -> dict[str, Any]:
    """A random schema of bounded texts."""
    kinds = ["integer", "number", "boolean", "null", "string", "pattern", "enum", "const", "any"]
    kind = rng.choice(kinds + ["object", "object", "array", "union"] * (depth > 0))
    low = rng.randrange(-50, 50)
    high = low + rng.randrange(100)
    least, most = rng.randrange(3), rng.randrange(3, 6)
    match kind:
        case "integer":
            return {"type": "integer", "minimum": low, "maximum": high}
        case "number":
            bound = rng.choice(["maximum", "exclusiveMaximum"])
            return {"type": "number", "minimum": low - 0.5, bound: high + 0.25}
        case "string":
            return {"type": "string", "minLength": least, "maxLength": most}
        case "pattern":
            return {"type": "string", "pattern": f"^{regex(rng, 1)}$"}
        case "enum":
            values = [rng.randrange(100), "".join(rng.choices(LETTERS, k=3)), None, True, [1, "a"]]
            return {"enum": rng.sample(values, rng.randint(1, 4))}
        case "const":
            return {"const": rng.choice([low, {"a": [low]}, "x y", False])}
        case "any":
            return {"type": rng.choice([["integer", "null"], ["boolean", "null"]]), "maximum": 9}
        case "object":
            names = rng.sample(LETTERS, rng.randint(1, 3))
            return {
                "type": "object",
                "properties": {name: schema(rng, depth - 1) for name in names},
                "required": rng.sample(names, rng.randint(0, len(names))),
                "additionalProperties": False,
            }
        case "array":
            return {
                "type": "array",
                "items": schema(rng, depth - 1),
                "minItems": least,
                "maxItems": most,
            }
        case _:
            return {"anyOf": [schema(rng, depth - 1), schema(rng, depth - 1)]}


def regex(rng: random.Random, depth: int = 2) -> str:
    """A random regex of bounded texts, which Python's `re` reads in the same way."""
    if depth == 0 or rng.random() < 0.2:
        letters = "".join(rng.sample(LETTERS, 3))
        choice = [rng.choice(LETTERS), rf"[{letters}]", rf"[^{letters}\n]", r"\.", r"[0-9]", "a-z"]
        return rng.choice(choice)
    inner = [regex(rng, depth - 1) for _ in range(rng.randint(1, 3))]
    match rng.randrange(4):
        case 0:
            return f"({'|'.join(inner)})"
        case 1:
            low = rng.randrange(3)
            return f"({inner[0]}){{{low},{low + rng.randint(1, 2)}}}"
        case 2:
            return f"({inner[0]})?{''.join(inner[1:])}x"
        case _:
            return "".join(inner)


def form(rng: random.Random) -> StructuredOutput:
    if rng.random() < 0.6:
        return StructuredOutput(json_schema=schema(rng))
    return StructuredOutput(regex=regex(rng))


def check(asked: StructuredOutput, text: str) -> None:
    if asked.regex is not None:
        assert re.fullmatch(asked.regex, text), (asked.regex, text)
        return
    assert isinstance(asked.json_schema, str)
    jsonschema.validate(json.loads(text), json.loads(asked.json_schema))


def requests(rng: random.Random, count: int, **fields: Any) -> list[SamplingParams]:
    return [
        SamplingParams(
            structured_output=form(rng),
            temperature=rng.choice([0.0, 0.8, 1.0]),
            top_k=rng.choice([0, 0, 5]),
            seed=rng.randrange(2**40),
            **fields,
        )
        for _ in range(count)
    ]


def finished(
    decoders: list[SpeculativeDecoder], prompts: list[list[int]], params: list[SamplingParams]
) -> int:
    """How many texts are finished: valid, and the same from all decoders."""
    first, *others = [decoder.generate(prompts, params) for decoder in decoders]
    for other in others:
        assert [out.token_ids for out in other] == [out.token_ids for out in first]
    ended = [(out, asked) for out, asked in zip(first, params, strict=True)]
    ended = [(out, asked) for out, asked in ended if out.finish_reason == "stop"]
    for out, asked in ended:
        assert asked.structured_output is not None
        check(asked.structured_output, out.text or "")
    return len(ended)


SPECULATION: list[dict[str, Any]] = [
    {"num_speculative_tokens": 0},
    {"num_speculative_tokens": 3},
    {"tree_shape": (2, 2)},
]


@pytest.mark.parametrize("part", range(2))
def test_forms_on_random_models(part: int) -> None:
    rng = random.Random(part)
    tokenizer = alphabet(TEXTS)
    target, draft = mock_pair(END + 1, part)
    speculation = [SPECULATION[0], SPECULATION[1 + part % 2]]
    decoders = [
        SpeculativeDecoder(
            target,
            draft,
            tokenizer=tokenizer,
            config=SpeculativeConfig(depth="fixed", verification="coupled", **asked),
        )
        for asked in speculation
    ]
    ended = 0
    for _ in range(2):
        # With a token that ends the text, and without one.
        ends = rng.choice([(), (END,)])
        params = requests(rng, 95, max_tokens=80, stop_token_ids=ends)
        prompts = [[rng.randrange(END)] for _ in params]
        ended += finished(decoders, prompts, params)
    # The others are cut off by max_tokens.
    assert ended > 170


def test_forms_on_the_demo_pair() -> None:
    rng = random.Random("demo")
    pair = outrider.load("demo", dtype="float64")
    decoders = [
        SpeculativeDecoder(
            pair.target,
            pair.drafter,
            tokenizer=pair.tokenizer,
            config=SpeculativeConfig(depth="fixed", verification="coupled", **asked),
        )
        for asked in SPECULATION[:2]
    ]
    params = requests(rng, 20, max_tokens=40)
    prompts = [pair.tokenizer.encode(f"x{i} = ") for i in range(len(params))]
    assert finished(decoders, prompts, params) > 12


def test_a_text_that_is_not_valid_is_seen() -> None:
    check(StructuredOutput(json_schema={"type": "integer"}), "3")
    for asked, text in (
        (StructuredOutput(json_schema={"type": "integer", "maximum": 2}), "3"),
        (StructuredOutput(json_schema={}), "{"),
        (StructuredOutput(regex="a+"), "ab"),
    ):
        with pytest.raises((AssertionError, ValueError, jsonschema.ValidationError)):
            check(asked, text)
