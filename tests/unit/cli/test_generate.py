"""`outrider generate`: what it prints, and that every flag reaches the request."""

from __future__ import annotations

import io
import json
import re
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from outrider import SamplingParams, SpeculativeConfig
from tests.support.command import PROMPT, Capture, document, error_of, printed

FIXED = ("--depth", "fixed")


@pytest.fixture
def base(target: str, draft: str) -> tuple[str, ...]:
    return ("generate", "-p", PROMPT, "--target", target, "--draft", draft, "--seed", "3")


@pytest.fixture
def greedy(target: str) -> tuple[str, ...]:
    return ("generate", "-p", PROMPT, "--target", target, "--temp", "0", "-m", "12")


def test_a_prompt_of_a_flag_a_file_and_standard_input_is_the_same(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: str
) -> None:
    common = ("generate", "--target", target, "-m", "12", "--seed", "3")
    file = tmp_path / "prompt.txt"
    file.write_text(PROMPT)
    texts = [printed(capsys, *common, "-p", PROMPT), printed(capsys, *common, "-f", str(file))]
    for flags in ((), ("-p", "-"), ("--prompt=-",)):
        monkeypatch.setattr(sys, "stdin", io.StringIO(PROMPT))
        texts.append(printed(capsys, *common, *flags))
    assert len(set(texts)) == 1


def test_statistics_close_the_text_on_standard_error(capsys: Capture, target: str) -> None:
    from outrider.cli import main

    flags = ("-p", PROMPT, "--target", target, "--draft-model", target, "-m", "10")
    assert main(["generate", *flags, "--temp", "0", *FIXED]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith(
        "draft acceptance = 1.000 (8 accepted / 8 drafted), mean acceptance length = 5.00, "
        "per position = (1.000, 1.000, 1.000, 1.000)"
    )
    assert lines[-1].startswith("10 tokens in ")
    # What a greedy text does not depend on is not printed.
    assert "seed" not in lines[-1]
    assert main(["generate", *flags, "--seed", "5"]) == 0
    assert capsys.readouterr().err.endswith("; seed 5\n")


def test_json_is_one_object_with_all_fields(
    capsys: Capture, base: tuple[str, ...], target: str, draft: str
) -> None:
    found = document(capsys, *base, "-m", "9", "-k", "2")
    assert set(found) == {
        *("prompt", "text", "token_ids", "finish_reason", "seed", "depths", "usage"),
        *("speculation", "timing", "config"),
    }
    assert found["prompt"] == PROMPT
    assert found["finish_reason"] == "length"
    assert found["usage"] == {"prompt_tokens": len(PROMPT), "completion_tokens": 9}
    assert len(found["token_ids"]) == 9
    assert len(found["depths"]) == found["speculation"]["rounds"]
    assert {"drafted", "accepted", "acceptance_rate", "acceptance_length", "per_position"} <= set(
        found["speculation"]
    )
    assert {"total_s", "draft_s", "target_s", "other_s", "tokens_per_s"} <= set(found["timing"])
    config = found["config"]
    assert (config["target"], config["draft"], config["method"]) == (target, draft, "hybrid")
    assert config["sampling"]["max_tokens"] == 9
    assert config["speculation"]["num_speculative_tokens"] == 2
    assert json.loads(printed(capsys, *base, "-m", "9", "-k", "2", "-o", "json"))["seed"] == 3


def test_the_streamed_text_is_the_text_of_json(capsys: Capture, base: tuple[str, ...]) -> None:
    flags = (*base, "-m", "20")
    assert printed(capsys, *flags) == document(capsys, *flags)["text"] + "\n"


def test_a_fresh_seed_is_reported_and_repeats_the_text(capsys: Capture, target: str) -> None:
    flags = ("generate", "-p", PROMPT, "--target", target, "-m", "12")
    first = document(capsys, *flags)
    second = document(capsys, *flags, "--seed", str(first["seed"]))
    assert second["token_ids"] == first["token_ids"]


def test_several_continuations_have_a_heading_and_a_choice_each(
    capsys: Capture, base: tuple[str, ...]
) -> None:
    flags = (*base, "-m", "8", "-n", "2")
    found = document(capsys, *flags)
    texts = [choice["text"] for choice in found["choices"]]
    assert found["text"] == texts[0]
    assert found["usage"]["completion_tokens"] == 16
    assert printed(capsys, *flags).lstrip("\n") == (
        f"--- continuation 1 of 2 (ended by length) ---\n{texts[0]}\n"
        f"--- continuation 2 of 2 (ended by length) ---\n{texts[1]}\n"
    )


@pytest.mark.parametrize(
    ("flags", "method", "drafts"),
    [
        (FIXED, "ngram", True),
        ((*FIXED, "--prompt-lookup-max", "3", "--prompt-lookup-min", "2"), "ngram", True),
        ((*FIXED, "--method", "suffix"), "suffix", True),
        ((*FIXED, "--method", "early_exit", "--exit-layers", "1"), "early_exit", True),
        ((*FIXED, "--method", "prediction", "--prediction", "abcabc"), "prediction", True),
        (("--method", "none"), "none", False),
        (("-k", "0"), "ngram", False),
    ],
)
def test_a_method_without_a_draft_model_changes_no_greedy_token(
    capsys: Capture, greedy: tuple[str, ...], flags: tuple[str, ...], method: str, drafts: bool
) -> None:
    flags = (*flags, "--logit-bias", "70=30")
    found = document(capsys, *greedy, *flags)
    plain = document(capsys, *greedy, "--method", "none", "--logit-bias", "70=30")
    assert found["token_ids"] == plain["token_ids"]
    assert found["config"]["method"] == method
    assert (found["speculation"]["drafted"] > 0) == drafts


def test_every_setting_of_a_request_has_a_flag(capsys: Capture, base: tuple[str, ...]) -> None:
    asked: dict[str, tuple[str, str, Any]] = {
        "temperature": ("--temp", "0.7", 0.7),
        "top_k": ("--top-k", "9", 9),
        "top_p": ("--top-p", "0.9", 0.9),
        "min_p": ("--min-p", "0.1", 0.1),
        "repetition_penalty": ("--repetition-penalty", "1.2", 1.2),
        "presence_penalty": ("--presence-penalty", "-0.5", -0.5),
        "frequency_penalty": ("--frequency-penalty", "0.5", 0.5),
        "logit_bias": ("--logit-bias", "5=-1.5", [[5, -1.5], [6, 2.0], [7, -3.0]]),
        "bad_words": ("--bad-words", "ab", None),
        "allowed_token_ids": ("--allowed-token-ids", "64,66,70,80", [64, 66, 70, 80]),
        "min_tokens": ("--min-tokens", "2", 2),
        "max_tokens": ("--max-tokens", "8", 8),
        "stop": ("--stop", "xyz", ["xyz", "\n"]),
        "stop_token_ids": ("--stop-token-ids", "3,4", [3, 4, 5]),
        "logprobs": ("--logprobs", "2", 2),
        "n": ("-n", "2", 2),
        "structured_output": ("--regex", "[a-z]*", None),
        "prediction": ("--prediction", "abc", "abc"),
    }
    more = ("--logit-bias", "6+2", "--logit-bias", "7-3", "--bad-words", "b", "--stop", "\n")
    given = [part for flag, text, _ in asked.values() for part in (flag, text)]
    alone = ("--ignore-eos", "--include-stop-str-in-output")
    found = document(capsys, *base, *given, *more, "--stop-token-id", "5", *alone)
    sampling = found["config"]["sampling"]
    assert len(sampling["bad_words"]) == 4
    assert sampling["structured_output"]["regex"] == "[a-z]*"
    for field, (_, _, value) in asked.items():
        assert value is None or sampling[field] == value, field
    assert sampling["ignore_eos"] is sampling["include_stop_str_in_output"] is True
    assert sampling["seed"] == 3
    without = {"logits_processors", "depths", "ignore_eos", "include_stop_str_in_output", "seed"}
    assert {item.name for item in fields(SamplingParams)} - set(asked) == without


@pytest.mark.slow
def test_every_setting_of_speculation_has_a_flag(capsys: Capture, base: tuple[str, ...]) -> None:
    asked: dict[str, tuple[str, Any]] = {
        "num_speculative_tokens": ("3", 3),
        "depth": ("adaptive", "adaptive"),
        "cost_ratio": ("0.3", 0.3),
        "verification": ("token", "token"),
        "draft_sample_method": ("greedy", "greedy"),
        "tree_shape": ("2x2x1", [2, 2, 1]),
        "tree_children": ("greedy", "greedy"),
    }
    given = [part for name, (text, _) in asked.items() for part in (_flag(name), text)]
    found = document(capsys, *base, "-m", "9", *given)["config"]["speculation"]
    for name, (_, value) in asked.items():
        assert found[name] == value, name
    others = (
        ("tree_budget", ("--tree-budget", "4"), 4),
        ("lenience", ("--lenience", "0.5", "--verification", "lenient"), 0.5),
        ("typical_delta", ("--typical-delta", "0.5", "--verification", "typical"), 0.5),
        ("typical_epsilon", ("--typical-epsilon", "0.5", "--verification", "typical"), 0.5),
        ("mixture_budget", ("--mixture-budget", "0.5", "--verification", "mixture"), 0.5),
    )
    for name, flags, value in others:
        whole = document(capsys, *base, "-m", "4", *flags)
        assert whole["config"]["speculation"][name] == value
        assert whole["speculation"]["lossy"] is ("--verification" in flags)
    known = {item.name for item in fields(SpeculativeConfig)}
    beside = {"draft_params", "on_draft_error", "validate"}
    assert known - set(asked) - {name for name, _, _ in others} <= beside


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def test_parameters_shape_the_text(capsys: Capture, greedy: tuple[str, ...]) -> None:
    first = document(capsys, *greedy)["token_ids"][0]
    stopped = document(capsys, *greedy, "--stop-token-id", "0", "--stop-token-id", str(first))
    assert (stopped["finish_reason"], stopped["token_ids"]) == ("stop", [first])
    assert document(capsys, *greedy, "--logit-bias", f"{first}=-100")["token_ids"][0] != first
    assert document(capsys, *greedy, "--logit-bias", "70+100")["token_ids"] == [70] * 12
    cut = document(capsys, *greedy, "--regex", "a{20}")
    assert (cut["text"], cut["finish_reason"]) == ("a" * 12, "length")


def test_the_text_has_the_form_asked_for(
    capsys: Capture, base: tuple[str, ...], tmp_path: Path
) -> None:
    flags = (*base, "-m", "50")
    schema = {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 3}
    file, grammar = tmp_path / "schema.json", tmp_path / "form.lark"
    file.write_text(json.dumps(schema))
    grammar.write_text('start: "(x)" | "x"')
    for given in (str(file), json.dumps(schema)):
        found = document(capsys, *flags, "--json-schema", given)
        assert found["finish_reason"] == "stop"
        assert len(json.loads(found["text"])) in (2, 3)
    assert document(capsys, *flags, "--regex", "a{2}(b|c)")["text"] in ("aab", "aac")
    assert document(capsys, *flags, "--grammar", str(grammar))["text"] in ("(x)", "x")
    found = document(capsys, *flags, "--choice", "yes", "--choice", "no", "-n", "3")
    assert {choice["text"] for choice in found["choices"]} <= {"yes", "no"}


def test_log_probabilities_in_json_and_for_reading(capsys: Capture, base: tuple[str, ...]) -> None:
    from outrider.cli import main

    flags = (*base, "-m", "5", "--temp", "0", "--logprobs", "2")
    found = document(capsys, *flags)
    for token, entry in zip(found["token_ids"], found["logprobs"], strict=True):
        assert set(entry) == {"token_id", "token", "logprob", "top_logprobs"}
        assert entry["token_id"] == token
        assert entry["top_logprobs"][0] == {
            name: entry[name] for name in ("token_id", "token", "logprob")
        }
    assert main(flags) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "log-probabilities:"
    for line, entry in zip(lines[2:], found["logprobs"], strict=False):
        assert f"{entry['logprob']:.3f}  {entry['token']!r} (" in line


def test_colour_changes_nothing_but_colour(capsys: Capture, base: tuple[str, ...]) -> None:
    flags = (*base, "-m", "8")
    colourful = printed(capsys, *flags, "--color", "always")
    assert "\x1b[" in colourful
    assert re.sub(r"\x1b\[[\d;]*m", "", colourful) == printed(capsys, *flags)


def test_a_trace_has_a_line_a_round(capsys: Capture, base: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    found = document(capsys, *base, "-m", "9", "--trace", str(path))
    assert len(path.read_text().splitlines()) >= found["speculation"]["rounds"]
    other = tmp_path / "notes.txt"
    other.write_text("mine")
    assert "something else than a trace" in error_of(capsys, *base, "--trace", str(other))
    assert other.read_text() == "mine"
