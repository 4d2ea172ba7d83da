"""A configuration in the words of other engines.

The names are those of vLLM's `SpeculativeConfig`, SGLang's server arguments, TensorRT-LLM's
`DecodingBaseConfig` and llama.cpp's llama-server, as of autumn 2026. None of them has all that
Outrider has; each export says what it leaves behind.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from shlex import quote
from typing import Any

from ..config.params import WITH_MODEL

SCHEDULED = ("vllm", "tensorrt-llm")
"""Engines that have a depth for each batch size; the others have one."""

MOST_ROWS = 512
"""Where a schedule ends that has to name its last batch size."""

_VLLM_MODEL = {
    "method": "draft_model",
    "draft_sample_method": "probabilistic",
    "rejection_sample_method": "block",
}
_VLLM_LOOKUPS: dict[str, dict[str, Any]] = {
    "ngram": {"method": "ngram", "prompt_lookup_max": 5, "prompt_lookup_min": 1},
    "suffix": {
        "method": "suffix",
        "suffix_decoding_max_spec_factor": 2.0,
        "suffix_decoding_min_token_prob": 0.1,
    },
}

Schedule = Sequence[tuple[int, int]]
"""Batch sizes, rising from 1, and how many tokens are drafted in a row at each."""


@dataclass(frozen=True, slots=True)
class Export:
    """Settings for one engine.

    Attributes:
        system: "vllm", "sglang", "tensorrt-llm" or "llama.cpp".
        text: what to paste: flags, or JSON.
        settings: the same, as JSON takes them.
        notes: what does not carry over, and what to mind.
    """

    system: str
    text: str
    settings: dict[str, Any]
    notes: tuple[str, ...]


def export(
    system: str, drafter: str, *, target: str, draft: str | None, schedule: Schedule
) -> Export:
    """Write a configuration for another engine; see `Export`.

    Args:
        system: the engine.
        drafter: what drafts; see `Candidate`.
        target, draft: paths or hub ids.
        schedule: some of its depths above 0; engines that have one depth get the first of them.
    """
    steps = [next(same) for _, same in groupby(schedule, key=lambda each: each[1])]
    settings = _settings(system, drafter, draft or "DRAFT", steps)
    flags = " ".join(f"--{flag} {quote(str(value))}" for flag, value in settings.items())
    as_json = json.dumps(settings)
    text = {
        "vllm": f"vllm serve {quote(target)} --speculative-config {quote(as_json)}",
        "sglang": f"python -m sglang.launch_server --model-path {quote(target)} {flags}",
        "llama.cpp": f"llama-server -m {quote(_file(target))} {flags}",
    }.get(system, as_json)
    return Export(system, text, settings, tuple(_notes(system, drafter)))


def _settings(system: str, drafter: str, draft: str, steps: Schedule) -> dict[str, Any]:
    depth = next(depth for _, depth in steps if depth)
    ends = [rows - 1 for rows, _ in steps[1:]] + [MOST_ROWS]
    ranges = [[first, end, own] for (first, own), end in zip(steps, ends, strict=True)]
    model, many = drafter in WITH_MODEL, len(steps) > 1
    match system, model:
        case "vllm", _:
            by_size = {"num_speculative_tokens_per_batch_size": ranges} if many else {}
            method = _VLLM_LOOKUPS.get(drafter, _VLLM_MODEL | {"model": draft})
            return {**method, "num_speculative_tokens": depth, **by_size}
        case "sglang", True:
            return {
                "speculative-algorithm": "STANDALONE",
                "speculative-draft-model-path": draft,
                "speculative-num-steps": depth,
                "speculative-eagle-topk": 1,
                "speculative-num-draft-tokens": 1 + depth,
            }
        case "sglang", False:
            return {"speculative-algorithm": "NGRAM", "speculative-num-draft-tokens": depth}
        case "llama.cpp", True:
            limits = {"spec-draft-n-max": depth, "spec-draft-n-min": 0, "spec-draft-p-min": 0}
            return {"spec-type": "draft-simple", "spec-draft-model": _file(draft), **limits}
        case "llama.cpp", False:
            sizes = {"spec-ngram-simple-size-n": 3, "spec-ngram-simple-size-m": depth}
            return {"spec-type": "ngram-simple", **sizes}
    kind: dict[str, Any] = {"decoding_type": "NGram", "max_matching_ngram_size": 5}
    if model:
        kind = {"decoding_type": "Draft_Target", "speculative_model": draft}
    # By the last batch size of each depth; beyond the last nothing is drafted.
    lengths = {end: own for _, end, own in ranges if own or end < MOST_ROWS}
    schedule = {"draft_len_schedule": lengths} if many else {}
    return {**kind, "max_draft_len": max(own for *_, own in ranges), **schedule}


def _file(model: str) -> str:
    return model if model.endswith(".gguf") else f"{model}.gguf"


def _notes(system: str, drafter: str) -> Iterator[str]:
    model = drafter in WITH_MODEL
    if system == "vllm" and model:
        yield "versions without rejection_sample_method verify token by token: drop it"
    if system == "sglang" and not model:
        yield "its n-gram cache is not prompt lookup: drafts differ, and it needs CUDA"
    if system not in SCHEDULED:
        yield "it has one depth for every batch size"
    if system == "llama.cpp":
        yield "convert the models to GGUF files first; older builds have other names for the flags"
        yield "a draft is kept where it is the token that the target samples"
    if system == "tensorrt-llm":
        yield "goes into speculative_config of the LLM API; rejection sampling is off by default"
    if system in ("sglang", "tensorrt-llm") and model:
        yield "block verification does not carry over: tokens are verified one by one"
    if drafter == "hybrid":
        yield "look-ups beside the draft model do not carry over: the model drafts alone"
    if drafter == "suffix" and system != "vllm":
        yield "suffix look-up does not carry over: n-gram look-up is the nearest"
