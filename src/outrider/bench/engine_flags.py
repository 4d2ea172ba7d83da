"""A configuration in the words of other engines.

The names are those of vLLM's `SpeculativeConfig`, SGLang's server arguments, llama.cpp's
llama-server, and transformers' `GenerationConfig`, as of summer 2026. None of them has all that
Outrider has; each export says what it leaves behind.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from shlex import quote
from typing import Any

from .options import WITH_MODEL
from .records import Candidate


@dataclass(frozen=True, slots=True)
class Export:
    """Settings for one engine.

    Attributes:
        system: "vllm", "sglang", "llama.cpp" or "transformers".
        text: what to paste: flags, or JSON.
        settings: the same, as JSON takes them.
        notes: what does not carry over, and what to mind.
    """

    system: str
    text: str
    settings: dict[str, Any]
    notes: tuple[str, ...]


def export(
    system: str, candidate: Candidate, *, target: str, draft: str | None, depth: int
) -> Export:
    """Write a configuration for another engine; see `Export`.

    `target` and `draft` are paths or hub ids, and `depth` takes the place of an adaptive one.
    """
    depth = candidate.depth or depth
    settings = _settings(system, candidate, draft or "DRAFT", depth)
    flags = " ".join(f"--{flag} {quote(str(value))}" for flag, value in settings.items())
    as_json = json.dumps(settings)
    text = {
        "vllm": f"vllm serve {quote(target)} --speculative-config {quote(as_json)}",
        "sglang": f"python -m sglang.launch_server --model-path {quote(target)} {flags}",
        "llama.cpp": f"llama-server -m {quote(target + '.gguf')} {flags}",
        "transformers": as_json,
    }[system]
    return Export(system, text, settings, tuple(_notes(system, candidate, depth)))


def _settings(system: str, candidate: Candidate, draft: str, depth: int) -> dict[str, Any]:
    match system, candidate.drafter in WITH_MODEL:
        case "vllm", True:
            return {
                "method": "draft_model",
                "model": draft,
                "num_speculative_tokens": depth,
                "draft_sample_method": "probabilistic",
                "rejection_sample_method": "block" if _by_blocks(candidate) else "standard",
            }
        case "vllm", False:
            found = {"method": candidate.drafter, "num_speculative_tokens": depth}
            if candidate.drafter == "ngram":
                return found | {"prompt_lookup_max": 5, "prompt_lookup_min": 1}
            limits = {"suffix_decoding_max_spec_factor": 2.0, "suffix_decoding_min_token_prob": 0.1}
            return found | limits
        case "sglang", True:
            shape = candidate.tree or (1,) * depth
            nodes = sum(prod(shape[: level + 1]) for level in range(len(shape)))
            return {
                "speculative-algorithm": "STANDALONE",
                "speculative-draft-model-path": draft,
                "speculative-num-steps": depth,
                "speculative-eagle-topk": max(shape),
                "speculative-num-draft-tokens": 1 + nodes,
            }
        case "sglang", False:
            return {"speculative-algorithm": "NGRAM", "speculative-num-draft-tokens": depth}
        case "llama.cpp", True:
            limits = {"spec-draft-n-max": depth, "spec-draft-n-min": 0, "spec-draft-p-min": 0}
            return {"spec-type": "draft-simple", "spec-draft-model": f"{draft}.gguf", **limits}
        case "llama.cpp", False:
            sizes = {"spec-ngram-simple-size-n": 3, "spec-ngram-simple-size-m": depth}
            return {"spec-type": "ngram-simple", **sizes}
        case _, True:
            return {
                "num_assistant_tokens": depth,
                "num_assistant_tokens_schedule": "constant",
                "assistant_confidence_threshold": 0.0,
            }
    return {"prompt_lookup_num_tokens": depth, "max_matching_ngram_size": 5}


def _by_blocks(candidate: Candidate) -> bool:
    return candidate.verification in ("block", "traversal")


def _notes(system: str, candidate: Candidate, depth: int) -> Iterator[str]:
    """What does not carry over, and what to mind."""
    blocks, model = _by_blocks(candidate), candidate.drafter in WITH_MODEL
    if system == "vllm" and model and blocks:
        yield "versions without rejection_sample_method verify token by token: drop it"
    if system == "sglang" and not model:
        yield "its n-gram cache is not prompt lookup: drafts differ, and it needs CUDA"
    if system == "llama.cpp":
        yield "models are GGUF files: convert them; older builds have other names for the flags"
        yield "a draft is kept where it is the token that the target samples"
    if system == "transformers":
        yield "one sequence at a time: assisted generation does not decode batches"
        whose = "assistant's, given as assistant_model" if model else "target's"
        yield f"goes into the generation_config of a model: the {whose}"
    if blocks and system in ("sglang", "transformers"):
        yield "block verification does not carry over: tokens are verified one by one"
    if candidate.tree is not None:
        kept = "the draft's confidence grows it" if system == "sglang" else "a chain is drafted"
        yield f"the tree's shape does not carry over: {kept}"
    if candidate.depth is None:
        yield f"adaptive depth does not carry over: k = {depth} was the best fixed depth"
    if candidate.drafter == "hybrid":
        yield "the hybrid drafter does not carry over: its draft model drafts alone"
    if candidate.drafter == "suffix":
        yield "the texts that suffix drafting remembers do not carry over: that engine starts empty"
    yield "speeds were measured with Outrider: another engine's costs are its own"
