"""A configuration in the words of other engines.

The names are those of vLLM's `SpeculativeConfig`, SGLang's server arguments, llama.cpp's
llama-server, and transformers' `GenerationConfig`, as of summer 2026. None of them has all that
Outrider has; each export says what it leaves behind.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

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
    """Write a configuration that drafts for another engine.

    Args:
        system: "vllm", "sglang", "llama.cpp" or "transformers".
        candidate: the configuration.
        target, draft: path or hub id of the models.
        depth: tokens to draft, where the candidate's own depth is adaptive.
    """
    depth = candidate.depth or depth
    name = "model" if candidate.drafter in ("draft_model", "hybrid") else candidate.drafter
    values: dict[Any, Any] = {_DEPTH: depth, _DRAFT: draft or "DRAFT"}
    values[_GGUF] = f"{values[_DRAFT]}.gguf"
    values[_RULE] = "block" if _by_blocks(candidate) else "standard"
    shape = candidate.tree or (1,) * depth
    values[_WIDTH] = max(shape)
    values[_NODES] = 1 + sum(prod(shape[: level + 1]) for level in range(len(shape)))
    settings = {flag: values.get(value, value) for flag, value in _SETTINGS[system, name].items()}
    flags = " ".join(f"--{flag} {shlex.quote(str(value))}" for flag, value in settings.items())
    text = {
        "vllm": f"vllm serve {shlex.quote(target)} --speculative-config "
        + shlex.quote(json.dumps(settings)),
        "sglang": f"python -m sglang.launch_server --model-path {shlex.quote(target)} {flags}",
        "llama.cpp": f"llama-server -m {shlex.quote(target + '.gguf')} {flags}",
        "transformers": json.dumps(settings),
    }[system]
    return Export(system, text, settings, tuple(_notes(system, name, candidate, depth)))


def _by_blocks(candidate: Candidate) -> bool:
    return candidate.verification in ("block", "traversal")


_DEPTH, _DRAFT, _GGUF, _RULE, _WIDTH, _NODES = (
    "<depth>",
    "<draft>",
    "<gguf>",
    "<rule>",
    "<w>",
    "<n>",
)
"""Places for what depends on the candidate."""

_SGLANG_NGRAM = {"speculative-algorithm": "NGRAM", "speculative-num-draft-tokens": _DEPTH}
_LLAMA_NGRAM = {
    "spec-type": "ngram-simple",
    "spec-ngram-simple-size-n": 3,
    "spec-ngram-simple-size-m": _DEPTH,
}
_LOOKUP = {"prompt_lookup_num_tokens": _DEPTH, "max_matching_ngram_size": 5}
_SETTINGS: dict[tuple[str, str], dict[str, Any]] = {
    ("vllm", "ngram"): {
        "method": "ngram",
        "num_speculative_tokens": _DEPTH,
        "prompt_lookup_max": 5,
        "prompt_lookup_min": 1,
    },
    ("vllm", "suffix"): {
        "method": "suffix",
        "num_speculative_tokens": _DEPTH,
        "suffix_decoding_max_spec_factor": 2.0,
        "suffix_decoding_min_token_prob": 0.1,
    },
    ("vllm", "model"): {
        "method": "draft_model",
        "model": _DRAFT,
        "num_speculative_tokens": _DEPTH,
        "draft_sample_method": "probabilistic",
        "rejection_sample_method": _RULE,
    },
    ("sglang", "ngram"): _SGLANG_NGRAM,
    ("sglang", "suffix"): _SGLANG_NGRAM,
    ("sglang", "model"): {
        "speculative-algorithm": "STANDALONE",
        "speculative-draft-model-path": _DRAFT,
        "speculative-num-steps": _DEPTH,
        "speculative-eagle-topk": _WIDTH,
        "speculative-num-draft-tokens": _NODES,
    },
    ("llama.cpp", "ngram"): _LLAMA_NGRAM,
    ("llama.cpp", "suffix"): _LLAMA_NGRAM,
    ("llama.cpp", "model"): {
        "spec-type": "draft-simple",
        "spec-draft-model": _GGUF,
        "spec-draft-n-max": _DEPTH,
        "spec-draft-n-min": 0,
        "spec-draft-p-min": 0,
    },
    ("transformers", "ngram"): _LOOKUP,
    ("transformers", "suffix"): _LOOKUP,
    ("transformers", "model"): {
        "num_assistant_tokens": _DEPTH,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": 0.0,
    },
}


def _notes(system: str, name: str, candidate: Candidate, depth: int) -> Iterator[str]:
    """What does not carry over, and what to mind."""
    blocks, model = _by_blocks(candidate), name == "model"
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
