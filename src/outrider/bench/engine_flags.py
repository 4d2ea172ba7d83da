"""A configuration in the words of other engines.

The names are those of vLLM's `SpeculativeConfig`, SGLang's server arguments, llama.cpp's
llama-server, and transformers' `GenerationConfig`, as of summer 2026. None of them has all that
Outrider has; each export says what it leaves behind.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

from .records import Candidate

LOOKUPS = ("ngram", "suffix")
BLOCK = ("block", "traversal")

_SUFFIX = "the texts that suffix drafting remembers do not carry over: that engine starts empty"
_TREE = "the tree does not carry over: a chain of its depth is drafted"
_BLOCK = "block verification does not carry over: tokens are verified one by one"


@dataclass(frozen=True, slots=True)
class Export:
    """Settings for one engine.

    Attributes:
        system: "vllm", "sglang", "llama.cpp" or "transformers".
        text: what to paste: flags, or JSON.
        settings: the same, as JSON takes them; empty where nothing is to be set.
        notes: what does not carry over, and what to mind.
    """

    system: str
    text: str
    settings: dict[str, Any]
    notes: tuple[str, ...]


def export(
    system: str, candidate: Candidate, *, target: str, draft: str | None, depth: int
) -> Export:
    """Write a configuration for another engine; plain decoding sets nothing.

    Args:
        system: "vllm", "sglang", "llama.cpp" or "transformers".
        candidate: the configuration.
        target, draft: path or hub id of the models.
        depth: tokens to draft, where the candidate's own depth is adaptive.
    """
    if candidate.plain:
        return Export(system, "", {}, ("turn it off: set nothing",))
    making: dict[str, Callable[..., Export]] = {
        "vllm": _vllm,
        "sglang": _sglang,
        "llama.cpp": _llama_cpp,
        "transformers": _transformers,
    }
    made = making[system](candidate, target, draft or "DRAFT", candidate.depth or depth)
    notes = list(made.notes)
    if candidate.depth is None:
        notes.append(f"adaptive depth does not carry over: k = {depth} was the best fixed depth")
    if candidate.drafter == "hybrid":
        notes.append("the hybrid drafter does not carry over: its draft model drafts alone")
    if candidate.tree is not None and system != "sglang":
        notes.append(_TREE)
    if candidate.drafter == "suffix":
        notes.append(_SUFFIX)
    notes.append("speeds were measured with Outrider: another engine's costs are its own")
    return Export(system, made.text, made.settings, tuple(notes))


def _vllm(candidate: Candidate, target: str, draft: str, depth: int) -> Export:
    settings: dict[str, Any] = {"num_speculative_tokens": depth}
    notes = []
    if candidate.drafter == "ngram":
        settings |= {"method": "ngram", "prompt_lookup_max": 5, "prompt_lookup_min": 1}
    elif candidate.drafter == "suffix":
        settings |= {
            "method": "suffix",
            "suffix_decoding_max_spec_factor": 2.0,
            "suffix_decoding_min_token_prob": 0.1,
        }
    else:
        block = candidate.verification in BLOCK
        settings |= {
            "method": "draft_model",
            "model": draft,
            "draft_sample_method": "probabilistic",
            "rejection_sample_method": "block" if block else "standard",
        }
        if block:
            notes.append("versions without rejection_sample_method verify token by token: drop it")
    config = shlex.quote(json.dumps(settings))
    text = f"vllm serve {shlex.quote(target)} --speculative-config {config}"
    return Export("vllm", text, settings, tuple(notes))


def _sglang(candidate: Candidate, target: str, draft: str, depth: int) -> Export:
    settings: dict[str, Any]
    notes = [_BLOCK] if candidate.verification in BLOCK else []
    if candidate.drafter in LOOKUPS:
        settings = {"speculative-algorithm": "NGRAM", "speculative-num-draft-tokens": depth}
        notes.append("its n-gram cache is not prompt lookup: drafts differ, and it needs CUDA")
    else:
        shape = candidate.tree or ()
        nodes = sum(prod(shape[: level + 1]) for level in range(len(shape))) or depth
        settings = {
            "speculative-algorithm": "STANDALONE",
            "speculative-draft-model-path": draft,
            "speculative-num-steps": depth,
            "speculative-eagle-topk": max(shape, default=1),
            "speculative-num-draft-tokens": nodes + 1,
        }
        if shape:
            notes.append("the tree's shape does not carry over: the draft's confidence grows it")
    text = f"python -m sglang.launch_server --model-path {shlex.quote(target)} {_flags(settings)}"
    return Export("sglang", text, settings, tuple(notes))


def _llama_cpp(candidate: Candidate, target: str, draft: str, depth: int) -> Export:
    settings: dict[str, Any]
    notes = [
        "models are GGUF files: convert them",
        "a draft is kept where it is the token that the target samples; other verification does "
        "not carry over",
    ]
    if candidate.drafter in LOOKUPS:
        settings = {
            "spec-type": "ngram-simple",
            "spec-ngram-simple-size-n": 3,
            "spec-ngram-simple-size-m": depth,
        }
        notes.append("it looks for matches of one length only: try other values of size-n")
    else:
        settings = {
            "spec-type": "draft-simple",
            "spec-draft-model": f"{draft}.gguf",
            "spec-draft-n-max": depth,
            "spec-draft-n-min": 0,
            "spec-draft-p-min": 0,
        }
        notes.append("older builds: --model-draft, --draft-max, --draft-min and --draft-p-min")
    text = f"llama-server -m {shlex.quote(target + '.gguf')} {_flags(settings)}"
    return Export("llama.cpp", text, settings, tuple(notes))


def _transformers(candidate: Candidate, _target: str, draft: str, depth: int) -> Export:
    settings: dict[str, Any]
    notes = ["one sequence at a time: assisted generation does not decode batches"]
    if candidate.verification in BLOCK:
        notes.append(_BLOCK)
    if candidate.drafter in LOOKUPS:
        settings = {"prompt_lookup_num_tokens": depth, "max_matching_ngram_size": 5}
        notes.append("goes into the target's generation_config")
    else:
        settings = {
            "num_assistant_tokens": depth,
            "num_assistant_tokens_schedule": "constant",
            "assistant_confidence_threshold": 0.0,
        }
        notes.append(
            f"goes into the generation_config of the assistant ({draft}); then "
            "target.generate(..., assistant_model=assistant)"
        )
    return Export("transformers", json.dumps(settings), settings, tuple(notes))


def _flags(settings: dict[str, Any]) -> str:
    return " ".join(f"--{name} {shlex.quote(str(value))}" for name, value in settings.items())
