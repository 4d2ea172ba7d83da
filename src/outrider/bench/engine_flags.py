"""A configuration in the words of other engines.

The names are those of vLLM's `SpeculativeConfig`, SGLang's server arguments, TensorRT-LLM's
`DecodingBaseConfig`, llama.cpp's llama-server and transformers' `GenerationConfig`, as of autumn
2026. None of them has all that Outrider has; each export says what it leaves behind.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from shlex import quote
from typing import Any

from ..config.params import WITH_MODEL

NOTE = (
    "adaptive depth does not carry over: these are the best fixed depths by what was predicted; "
    "costs were measured with Outrider, and another engine's are its own"
)

NO_DEPTH = "no fixed depth pays here: engines without an adaptive one do best to decode plainly"

MOST_ROWS = 512
"""Where a schedule ends that has to name its last batch size."""

Schedule = Sequence[tuple[int, int]]
"""Batch sizes, rising from 1, and how many tokens are drafted in a row at each."""


@dataclass(frozen=True, slots=True)
class Export:
    """Settings for one engine.

    Attributes:
        system: "vllm", "sglang", "tensorrt-llm", "llama.cpp" or "transformers".
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
        schedule: some of its depths above 0; engines without one get the first of them.
    """
    steps = [next(same) for _, same in groupby(schedule, key=lambda each: each[1])]
    settings = _settings(system, drafter, draft or "DRAFT", steps)
    flags = " ".join(f"--{flag} {quote(str(value))}".rstrip() for flag, value in settings.items())
    as_json = json.dumps(settings)
    text = {
        "vllm": f"vllm serve {quote(target)} --speculative-config {quote(as_json)}",
        "sglang": f"python -m sglang.launch_server --model-path {quote(target)} {flags}",
        "llama.cpp": f"llama-server -m {quote(_file(target))} {flags}",
    }.get(system, as_json)
    return Export(system, text, settings, tuple(_notes(system, drafter, steps)))


def _settings(system: str, drafter: str, draft: str, steps: Schedule) -> dict[str, Any]:
    depth = next(depth for _, depth in steps if depth)
    model = drafter in WITH_MODEL
    match system:
        case "vllm":
            return _vllm(drafter, draft, depth) | _ranges(steps)
        case "sglang":
            return _sglang(model, draft, depth)
        case "tensorrt-llm":
            kind = {"decoding_type": "Draft_Target", "speculative_model": draft}
            own = kind if model else {"decoding_type": "NGram", "max_matching_ngram_size": 5}
            return own | {"max_draft_len": max(most for _, most in steps)} | _lengths(steps)
        case "llama.cpp":
            if model:
                limits = {"spec-draft-n-max": depth, "spec-draft-n-min": 0, "spec-draft-p-min": 0}
                return {"spec-type": "draft-simple", "spec-draft-model": _file(draft), **limits}
            sizes = {"spec-ngram-simple-size-n": 3, "spec-ngram-simple-size-m": depth}
            return {"spec-type": "ngram-simple", **sizes}
    if model:
        return {
            "num_assistant_tokens": depth,
            "num_assistant_tokens_schedule": "constant",
            "assistant_confidence_threshold": 0.0,
        }
    return {"prompt_lookup_num_tokens": depth, "max_matching_ngram_size": 5}


def _vllm(drafter: str, draft: str, depth: int) -> dict[str, Any]:
    if drafter in WITH_MODEL:
        return {
            "method": "draft_model",
            "model": draft,
            "num_speculative_tokens": depth,
            "draft_sample_method": "probabilistic",
            "rejection_sample_method": "block",
        }
    found = {"method": drafter, "num_speculative_tokens": depth}
    if drafter == "ngram":
        return found | {"prompt_lookup_max": 5, "prompt_lookup_min": 1}
    return found | {"suffix_decoding_max_spec_factor": 2.0, "suffix_decoding_min_token_prob": 0.1}


def _sglang(model: bool, draft: str, depth: int) -> dict[str, Any]:
    if not model:
        return {"speculative-algorithm": "NGRAM", "speculative-num-draft-tokens": depth}
    return {
        "speculative-algorithm": "STANDALONE",
        "speculative-draft-model-path": draft,
        "speculative-num-steps": depth,
        "speculative-eagle-topk": 1,
        "speculative-num-draft-tokens": 1 + depth,
    }


def _ranges(steps: Schedule) -> dict[str, Any]:
    """Write a schedule as ranges of batch sizes, both ends included."""
    if len(steps) < 2:
        return {}
    ends = [rows - 1 for rows, _ in steps[1:]] + [MOST_ROWS]
    rows = [[first, end, depth] for (first, depth), end in zip(steps, ends, strict=True)]
    return {"num_speculative_tokens_per_batch_size": rows}


def _lengths(steps: Schedule) -> dict[str, Any]:
    """Write a schedule by the last batch size of each depth; beyond the last nothing is drafted."""
    ranges = _ranges(steps).get("num_speculative_tokens_per_batch_size", [])
    found = {end: depth for _, end, depth in ranges}
    if ranges and not ranges[-1][2]:
        del found[MOST_ROWS]
    return {"draft_len_schedule": found} if found else {}


def _file(model: str) -> str:
    return model if model.endswith(".gguf") else f"{model}.gguf"


def _notes(system: str, drafter: str, steps: Schedule) -> Iterator[str]:
    """What does not carry over, and what to mind."""
    model = drafter in WITH_MODEL
    if system == "vllm" and model:
        yield "versions without rejection_sample_method verify token by token: drop it"
    if system == "sglang" and not model:
        yield "its n-gram cache is not prompt lookup: drafts differ, and it needs CUDA"
    if system in ("sglang", "llama.cpp", "transformers") and len(steps) > 1:
        sizes = ", ".join(f"{depth} from {rows}" for rows, depth in steps)
        yield f"one depth for every batch size; by batch size it would be {sizes}"
    if system == "llama.cpp":
        yield "convert the models to GGUF files first; older builds have other names for the flags"
        yield "a draft is kept where it is the token that the target samples"
    if system == "tensorrt-llm":
        yield "goes into speculative_config of the LLM API; rejection sampling is off by default"
    if system == "transformers":
        yield "one sequence at a time: assisted generation does not decode batches"
        whose = "assistant's, given as assistant_model" if model else "target's"
        yield f"goes into the generation_config of a model: the {whose}"
    if system in ("sglang", "transformers", "tensorrt-llm") and model:
        yield "block verification does not carry over: tokens are verified one by one"
    if drafter == "hybrid":
        yield "look-ups beside the draft model do not carry over: the model drafts alone"
    if drafter == "suffix" and system != "vllm":
        yield "suffix look-up does not carry over: n-gram look-up is the nearest"
