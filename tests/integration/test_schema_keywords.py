"""Each keyword of JSON schemas is kept, or refused by its name."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import jsonschema
import numpy as np
import pytest

from outrider import StructuredOutput
from outrider.errors import InvalidConfigError
from outrider.sampling.grammar import Grammars
from outrider.types.records import Prefix
from tests.support.alphabet import every_byte

END = 256
GRAMMARS = Grammars(every_byte(), END + 1, frozenset({END}))
FLAG, NUMBER = {"type": "boolean"}, {"type": "integer"}


def objects(**keywords: Any) -> dict[str, Any]:
    return {"type": "object", **keywords}


def arrays(**keywords: Any) -> dict[str, Any]:
    return {"type": "array", **keywords}


def walks(schema: dict[str, Any], count: int) -> list[bytes]:
    """Random texts of a form: bytes that the masks allow, those that close something more often."""
    rng, texts = random.Random(1), []
    for _ in range(count):
        grammar = GRAMMARS.of(StructuredOutput(json_schema=schema), frozenset({END}))
        path: list[int] = []
        while len(path) < 200:
            mask = grammar.mask(Prefix(0, path))
            assert mask is not None
            allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little")).tolist()
            if END in allowed and (len(allowed) == 1 or rng.random() < 0.3):
                texts.append(bytes(path))
                break
            allowed = [byte for byte in allowed if byte != END]
            liked = b'"}],:' if rng.random() < 0.25 else b"abk123" if rng.random() < 0.8 else b""
            others = [byte for byte in allowed if byte not in b" \n\t"]
            path.append(rng.choice([byte for byte in allowed if byte in liked] or others))
    return texts


def check(schema: dict[str, Any], text: bytes) -> None:
    """Raise unless a text is valid; of a key that comes twice the last counts, as in Python."""
    jsonschema.validate(json.loads(text), schema, cls=jsonschema.Draft202012Validator)


KEPT: list[dict[str, Any]] = [
    objects(patternProperties={"^k[0-9]$": FLAG}, minProperties=1),
    objects(patternProperties={"^k[0-9]$": FLAG}, additionalProperties=NUMBER),
    objects(patternProperties={"^k": FLAG}, minProperties=2, required=["k1"]),
    objects(properties={"a": FLAG, "b": FLAG}, required=["a", "b"], minProperties=3),
    objects(properties={"a": FLAG}, additionalProperties=NUMBER),
    objects(properties={"a": FLAG}, required=["b"], additionalProperties=FLAG),
    objects(properties={"k": NUMBER}, patternProperties={"^k": {"minimum": 5}}),
    objects(properties={"a": FLAG, "b": FLAG}, maxProperties=1, additionalProperties=False),
    objects(additionalProperties=FLAG, maxProperties=1),
    objects(properties={"minProperties": {"const": 3}, "extends": FLAG}),
    objects(properties={"a": False, "b": FLAG}),
    arrays(prefixItems=[FLAG, {"type": "null"}], items=False),
    arrays(prefixItems=[FLAG], minItems=1, maxItems=3, items={"const": 1}),
    {"oneOf": [NUMBER, FLAG]},
    {"type": "integer", "maximum": 5, "anyOf": [{"minimum": 3}, {"multipleOf": 2}]},
    {"allOf": [{"type": "integer", "minimum": 2}, {"maximum": 4}]},
    {"allOf": [objects(properties={"a": FLAG}, required=["a"]), objects(required=["b"])]},
    {"$ref": "#/$defs/x", "maximum": 4, "$defs": {"x": {"type": "integer", "minimum": 2}}},
    {"$ref": "#x", "$defs": {"x": {"$anchor": "x", "type": "boolean"}}},
    {"type": "integer", "multipleOf": 3, "minimum": 10, "maximum": 20},
    {"type": "number", "multipleOf": 0.5},
    {"type": "number", "exclusiveMinimum": 0, "maximum": 2.5},
    {"minimum": 3, "minLength": 2, "maxItems": 1, "required": ["a"]},
    {"type": ["integer", "string"], "minimum": 3, "maxLength": 2},
    {"type": "string", "pattern": "^a|b$", "maxLength": 4},
    {"type": "string", "format": "date", "pattern": "^2"},
    {"type": "string", "format": "uuid"},
    {"enum": [1, 5, "a", {"a": [1]}], "minimum": 3},
    {"const": 2**53},
    {"type": "integer", "minimum": 2**53 - 1, "maximum": 2**53},
]
REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("minProperties=2", objects(patternProperties={"^k[0-9]$": FLAG}, minProperties=2)),
    ("minProperties=2", objects(additionalProperties=FLAG, minProperties=2)),
    ("minProperties=4", objects(required=["a", "b"], minProperties=4)),
    ("minProperties=2", arrays(items={"anyOf": [{"minProperties": 2}, FLAG]})),
    ("minProperties=2", {"allOf": [{"minProperties": 2}, objects(additionalProperties=FLAG)]}),
    ("minProperties=2", {"$ref": "#/x/y", "x": {"y": objects(minProperties=2)}}),
    ("minProperties", objects(properties={"a": FLAG, "b": FLAG}, minProperties=1)),
    ("propertyNames", objects(propertyNames={"pattern": "^a"})),
    ("dependentRequired", objects(dependentRequired={"a": ["b"]})),
    ("dependentSchemas", objects(dependentSchemas={"a": {"required": ["b"]}})),
    ("dependencies", objects(dependencies={"a": ["b"]})),
    ("unevaluatedProperties", objects(unevaluatedProperties=False)),
    ("unevaluatedItems", arrays(unevaluatedItems=False)),
    ("uniqueItems", arrays(uniqueItems=True)),
    ("contains", arrays(contains={"const": 1})),
    ("minContains", arrays(minContains=1)),
    ("not", {"not": {"type": "null"}}),
    ("if", {"if": {"type": "null"}, "then": {"const": None}}),
    ("oneOf", {"oneOf": [{"type": "integer", "minimum": 1}, {"type": "integer", "maximum": 3}]}),
    ("not disjoint", objects(patternProperties={"^k": FLAG, "1$": FLAG})),
    ("dynamicRef", {"$dynamicRef": "#x"}),
    ("format", {"type": "string", "format": "wibble"}),
    ("required", objects(properties={"a": {"type": "boolean", "required": True}})),
    ("divisibleBy=2", {"type": "integer", "divisibleBy": 2}),
    ("disallow=", arrays(items=[{"disallow": "integer"}])),
    ("extends=", {"extends": {"type": "integer"}}),
    ("const=", {"const": 2**60}),
    ("enum=", {"enum": ["a", [{"b": 1e300}]]}),
    ("maximum=", {"type": "integer", "maximum": 2**63 - 1}),
]


@pytest.mark.parametrize("schema", KEPT, ids=json.dumps)
def test_a_keyword_that_is_taken_is_kept(schema: dict[str, Any]) -> None:
    texts = walks(schema, 20)
    assert len(texts) > 10
    for text in texts:
        check(schema, text)


@pytest.mark.parametrize(("named", "schema"), REFUSED, ids=lambda value: json.dumps(value))
def test_a_keyword_that_cannot_be_kept_is_refused_by_name(
    named: str, schema: dict[str, Any]
) -> None:
    with pytest.raises(InvalidConfigError, match=re.escape(named)):
        GRAMMARS.of(StructuredOutput(json_schema=schema), frozenset({END}))


def test_a_schema_that_is_not_kept_is_seen() -> None:
    """With two different keys asked for, the walks find a text that has one key twice."""
    kept = objects(patternProperties={"^k[0-9]$": FLAG}, additionalProperties=False)
    several = [text for text in walks(kept, 60) if text.count(b":") > 1]
    with pytest.raises(jsonschema.ValidationError):
        [check({**kept, "minProperties": 2}, text) for text in several]


def test_no_key_that_the_schema_names_comes_twice() -> None:
    for schema in KEPT[2:6]:
        named = {*schema.get("properties", ()), *schema.get("required", ())}
        for text in walks(schema, 20):
            pairs = json.loads(text, object_pairs_hook=list)
            assert all([key for key, _ in pairs].count(key) <= 1 for key in named)
