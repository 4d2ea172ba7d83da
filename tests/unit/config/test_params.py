"""Bad values are refused where they are given, by name."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import fields
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import outrider
from outrider import errors
from outrider.config import SamplingParams, SpeculativeConfig, StatefulProcessor, StructuredOutput
from outrider.errors import InvalidConfigError, MissingExtraError, missing

ROOT = Path(__file__).parents[3]

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": 0}, "an integer >= 1"),
    ({"max_tokens": 2.5}, "an integer >= 1"),
    ({"max_tokens": True}, "an integer >= 1"),
    ({"temperature": -0.1}, "0 for greedy decoding, or a number >= 1e-6"),
    ({"temperature": float("nan")}, "0 for greedy decoding"),
    ({"temperature": float("inf")}, "0 for greedy decoding"),
    ({"temperature": 1e-38}, "0 for greedy decoding"),
    ({"temperature": 10**400}, "at most 1e30"),
    ({"temperature": "hot"}, "0 for greedy decoding"),
    ({"top_k": -1}, "an integer >= 0"),
    ({"top_p": 0}, r"a number in \(0, 1\]"),
    ({"top_p": 1.01}, r"a number in \(0, 1\]"),
    ({"min_p": -0.5}, r"a number in \[0, 1\]"),
    ({"repetition_penalty": 0}, "a number > 0, from 1e-20 to 1e20"),
    ({"repetition_penalty": 1e39}, "a number > 0, from 1e-20 to 1e20"),
    ({"presence_penalty": 3}, r"a number in \[-2, 2\]"),
    ({"frequency_penalty": -2.5}, r"a number in \[-2, 2\]"),
    ({"logit_bias": {1: 200}}, r"numbers in \[-100, 100\]"),
    ({"logit_bias": {-1: 2}}, "token ids >= 0"),
    ({"logit_bias": 3}, "token ids >= 0"),
    ({"logit_bias": [(1, 2), (1, 3)]}, "one bias for token 1"),
    ({"bad_words": [[]]}, "none of them empty"),
    ({"bad_words": "no"}, "sequences of token ids"),
    ({"bad_words": 5}, "sequences of token ids"),
    ({"allowed_token_ids": ()}, "one or more token ids, or None for all"),
    ({"allowed_token_ids": "ab"}, "one or more token ids"),
    ({"include_stop_str_in_output": 1}, "True or False"),
    ({"min_tokens": -1}, "an integer >= 0"),
    ({"min_tokens": 9, "max_tokens": 5}, "at most max_tokens=5"),
    ({"stop": ""}, "none of them empty"),
    ({"stop": 5}, "none of them empty"),
    ({"stop": ["a", "\ud800"]}, "text that UTF-8 can write; character 0 is half a surrogate"),
    ({"stop_token_ids": 5}, "a sequence of integers"),
    ({"stop_token_ids": "ab"}, "a sequence of integers"),
    ({"stop_token_ids": [1.5]}, "a sequence of integers"),
    ({"ignore_eos": None}, "True or False"),
    ({"logprobs": 21}, r"an integer in \[0, 20\]"),
    ({"logprobs": -1}, r"an integer in \[0, 20\]"),
    ({"n": 0}, "an integer >= 1"),
    ({"seed": -1}, r"an integer in \[0, 2\*\*64\)"),
    ({"seed": 2**64}, r"an integer in \[0, 2\*\*64\)"),
    ({"prediction": "x\udfff"}, "text that UTF-8 can write; character 1"),
    ({"prediction": [0.5]}, "a text, a sequence of token ids"),
    ({"depths": [0.5]}, "a sequence of integers"),
    ({"logits_processors": 5}, "functions, LogitsProcessors or StatefulProcessors"),
    ({"logits_processors": [3]}, "functions, LogitsProcessors or StatefulProcessors"),
    ({"structured_output": "regex"}, "a StructuredOutput, or None"),
]


@pytest.mark.parametrize(("given", "expected"), REFUSED, ids=str)
def test_bad_sampling_parameters_are_refused_by_name(given: dict[str, Any], expected: str) -> None:
    with pytest.raises(
        InvalidConfigError, match=f"is not allowed: expected .*{expected}"
    ) as caught:
        SamplingParams(**given)
    assert caught.value.field == next(iter(given))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"num_speculative_tokens": -1}, "an integer >= 0"),
        ({"verification": "blok"}, "one of 'block', 'token'"),
        ({"verification": ["block"]}, "one of 'block', 'token'"),
        ({"depth": "deep"}, "one of 'fixed'"),
        ({"draft_sample_method": "beam"}, "one of 'probabilistic', 'greedy'"),
        ({"cost_ratio": -0.1}, "a number >= 0"),
        ({"tree_shape": ()}, "nodes in all at most"),
        ({"tree_shape": (2, 0)}, "a sequence of integers >= 1"),
        ({"tree_shape": (2,) * 10}, "1024 nodes in all at most"),
        ({"tree_budget": 0}, r"an integer in 1\.\.1024"),
        ({"tree_budget": 1025}, r"an integer in 1\.\.1024"),
        ({"tree_budget": 4, "tree_shape": (2, 1)}, "give one of the two"),
        ({"tree_children": "greedily"}, "one of 'greedy'"),
        ({"tree_children": "with_replacement", "tree_budget": 4}, "'greedy' with a tree_budget"),
        ({"verification": "lenient", "tree_shape": (2,)}, "a lossless method for trees"),
        ({"depth": "confidence", "tree_shape": (2,)}, "'fixed' or 'adaptive' for trees"),
        ({"lenience": 0}, r"a number in \(0, 1\]"),
        ({"typical_delta": 0}, "a number > 0"),
        ({"mixture_budget": 2}, r"a number in \[0, 1\]"),
        ({"on_draft_error": "ignore"}, "one of 'raise', 'disable'"),
        ({"validate": True}, "one of 'auto', 'always', 'never'"),
        ({"draft_params": {"temperature": 1}}, "SamplingParams, or None"),
    ],
    ids=str,
)
def test_bad_configurations_are_refused_by_name(given: dict[str, Any], expected: str) -> None:
    with pytest.raises(
        InvalidConfigError, match=f"is not allowed: expected .*{expected}"
    ) as caught:
        SpeculativeConfig(**given)
    assert caught.value.field == next(iter(given))


@pytest.mark.parametrize(
    "field",
    [
        {"n": 2},
        {"seed": 1},
        {"max_tokens": 3},
        {"stop": "x"},
        {"ignore_eos": True},
        {"depths": (1,)},
        {"structured_output": StructuredOutput(regex="a")},
    ],
    ids="-".join,
)
def test_what_a_draft_cannot_be_given_is_refused(field: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfigError, match=rf"draft_params\.{next(iter(field))}="):
        SpeculativeConfig(draft_params=SamplingParams(**field))


@pytest.mark.parametrize("of", [list, tuple, np.array, torch.tensor], ids=lambda of: of.__name__)
def test_token_ids_come_as_lists_arrays_and_tensors(of: Callable[..., Any]) -> None:
    given = SamplingParams(
        stop_token_ids=of([3, 4]),
        prediction=of([1, 2, 3]),
        bad_words=[of([1, 2]), of([3])],
        depths=of([2, 0, -3]),
    )
    assert given == SamplingParams(
        stop_token_ids=(3, 4), prediction=(1, 2, 3), bad_words=((1, 2), (3,)), depths=(2, 0, -3)
    )
    assert hash(given) is not None
    assert SpeculativeConfig(tree_shape=of([2, 1])).tree_shape == (2, 1)
    assert SamplingParams(bad_words=of([[1, 2], [3, 4]])).bad_words == ((1, 2), (3, 4))


def test_numbers_of_other_libraries_are_kept_as_pythons_own() -> None:
    given = SamplingParams(
        max_tokens=np.int64(5),
        seed=np.uint64(3),
        temperature=Fraction(1, 2),
        min_p=np.float32(0.25),
        logit_bias={np.int64(1): np.float64(2)},
    )
    own = SamplingParams(max_tokens=5, seed=3, temperature=0.5, min_p=0.25, logit_bias=((1, 2.0),))
    assert given == own
    for field in fields(SamplingParams):
        assert type(getattr(given, field.name)) is type(getattr(own, field.name))
    assert SpeculativeConfig(cost_ratio=Fraction(1, 8)) == SpeculativeConfig(cost_ratio=0.125)


@pytest.mark.parametrize("record", [SamplingParams, SpeculativeConfig])
def test_every_field_is_described_in_its_docstring(record: type) -> None:
    """The command line takes its help from there: one entry a field, its first sentence short."""
    arguments = inspect.cleandoc(record.__doc__ or "").split("Args:")[1].split("Raises:")[0]
    entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", arguments, re.MULTILINE)
    assert [name for name, _ in entries] == [field.name for field in fields(record)]
    for name, text in entries:
        first = re.split(r"[.;:] ", " ".join(text.split()))[0]
        assert len(first) <= 120, name


DEEP: Any = {"type": "string"}
for _ in range(3000):
    DEEP = {"properties": {"a": DEEP}}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "exactly one of"),
        ({"regex": "a", "choice": ("a",)}, "regex and choice; expected exactly one"),
        ({"regex": 3}, "structured_output.regex=3"),
        ({"regex": "\ud800"}, "text that UTF-8 can write"),
        ({"regex": "a" * 1_000_001}, "at most 1000000 characters"),
        ({"grammar": b"start"}, "structured_output.grammar"),
        ({"choice": "yes"}, "structured_output.choice"),
        ({"choice": ()}, "structured_output.choice"),
        ({"choice": ("a", "")}, "structured_output.choice"),
        ({"choice": ("a", "\ud800")}, "text that UTF-8 can write"),
        ({"json_schema": "{"}, "structured_output.json_schema"),
        ({"json_schema": "[1]"}, "structured_output.json_schema"),
        ({"json_schema": 3}, "structured_output.json_schema"),
        ({"json_schema": {"const": {1}}}, "structured_output.json_schema"),
        ({"json_schema": {"const": float("nan")}}, "structured_output.json_schema"),
        ({"json_schema": '{"const": "\ud800"}'}, "text that UTF-8 can write"),
        ({"json_schema": DEEP}, "at most 128 levels of nesting"),
        ({"json_schema": '{"a":' * 300 + "1" + "}" * 300}, "at most 128 levels of nesting"),
        ({"json_schema": "[" * 100_000}, "at most 128 levels of nesting"),
    ],
)
def test_forms_of_the_wrong_type_or_size_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message) as caught:
        StructuredOutput(**given)
    assert len(str(caught.value)) < 600


def test_a_form_is_kept_as_it_was_given() -> None:
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    form = StructuredOutput(json_schema=schema)
    schema["type"] = "array"
    assert form.kind == "json_schema"
    assert form.value == '{"type": "object", "properties": {"b": {}, "a": {}}}'


def test_what_cannot_remember_apart_is_refused() -> None:
    def function(history: Any, logits: Any) -> Any:
        return logits

    with pytest.raises(InvalidConfigError, match="a callable object"):
        StatefulProcessor(3)
    with pytest.raises(InvalidConfigError, match="a function's is not copied"):
        StatefulProcessor(function)
    with pytest.raises(InvalidConfigError, match="fork="):
        StatefulProcessor(print, fork=None)
    StatefulProcessor(function, fork=lambda processor: processor)


def test_a_long_value_is_shortened_and_its_type_named() -> None:
    message = str(InvalidConfigError("depths", list(range(100_000)), "fewer"))
    assert message == "depths=[0, 1, 2, 3, 4, 5, ...] (list) is not allowed: expected fewer"
    message = str(InvalidConfigError("prompt", [["token"] * 99] * 99, "text"))
    assert len(message) < 300
    assert "'a': {'pr" in str(InvalidConfigError("prompt", DEEP, "text"))


def test_an_error_is_whole_where_another_process_reads_it() -> None:
    error = InvalidConfigError("depths", (1,), "none", given="one")
    error.request = 3
    for read in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert str(read) == str(error) == "one; expected none"
        assert (read.field, read.value, read.expected, read.request) == ("depths", (1,), "none", 3)


def test_the_extras_that_errors_name_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(errors._EXTRAS.values()) <= set(project["optional-dependencies"])


def test_every_error_is_a_name_of_the_package() -> None:
    tree = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]
    for kind in (kind for kind in tree if kind.__module__ == errors.__name__):
        assert issubclass(kind, outrider.OutriderError)
        assert getattr(outrider, kind.__name__) is kind
        assert kind.__name__ in outrider.__all__
        assert f" {kind.__name__} " in errors.__doc__.replace("\n", " \n")
    assert issubclass(outrider.DraftShapeError, outrider.DraftError)


@pytest.mark.parametrize(
    ("package", "extra", "command"),
    [
        ("llguidance", "", r"pip install 'outrider\[grammar\]'"),
        ("transformers", "", r"pip install 'outrider\[transformers\]'"),
        ("mlx", "apple", r"pip install 'outrider\[apple\]'"),
        ("torch", "", "pip install torch"),
    ],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    package: str, extra: str, command: str
) -> None:
    with pytest.raises(MissingExtraError, match=f"{package}.*{command}"), missing(extra):
        raise ModuleNotFoundError(f"No module named {package!r}", name=f"{package}.models")
    with pytest.raises(ModuleNotFoundError, match="of ours"), missing():
        raise ModuleNotFoundError("of ours", name="outrider.nothing")


def test_the_package_its_records_and_its_errors_need_no_framework() -> None:
    code = """
import sys
sys.modules.update(dict.fromkeys(("torch", "transformers", "llguidance", "tokenizers")))
import outrider
outrider.SamplingParams(prediction=[1], structured_output=outrider.StructuredOutput(regex="a"))
outrider.SpeculativeConfig(tree_shape=(2, 1))
try:
    outrider.load
except outrider.MissingExtraError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "is not installed; expected it here: pip install" in run.stdout
