"""What was found, in the words of the engines that people serve with.

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

from ..errors import InvalidConfigError
from .contending import LOOKUPS
from .records import Contender

SYSTEMS = ("vllm", "sglang", "llama.cpp", "transformers")

_LOOKUP_MAX, _LOOKUP_MIN = 5, 1
"""How many last tokens `NgramDrafter` looks up by default."""

_CACHE = (
    "the texts that suffix drafting remembers are not carried over: that engine's own start empty"
)


@dataclass(frozen=True, slots=True)
class Export:
    """Settings for one engine.

    Attributes:
        system: one of `SYSTEMS`.
        text: what to paste: flags, or JSON.
        settings: the same, as JSON takes them; empty where nothing is to be set.
        notes: what does not carry over, and what to mind.
    """

    system: str
    text: str
    settings: dict[str, Any]
    notes: tuple[str, ...]


def export(
    system: str, contender: Contender, *, target: str, draft: str | None, depth: int
) -> Export:
    """What a configuration is for another engine.

    Args:
        system: one of `SYSTEMS`.
        contender: the configuration; plain decoding sets nothing.
        target: the target's path or hub id.
        draft: the draft's, None where there is none.
        depth: tokens to draft, see `tune.best_depth`.

    Raises:
        InvalidConfigError: the system is not known.
    """
    if system not in SYSTEMS:
        raise InvalidConfigError("export", system, f"one of {', '.join(SYSTEMS)}")
    if contender.plain:
        return Export(system, "", {}, ("do not speculate: set nothing",))
    making: dict[str, Callable[..., Export]] = {
        "vllm": _vllm,
        "sglang": _sglang,
        "llama.cpp": _llama_cpp,
        "transformers": _transformers,
    }
    made = making[system](contender, target, draft or "DRAFT", depth)
    return Export(made.system, made.text, made.settings, (*_common(contender, depth), *made.notes))


def _common(contender: Contender, depth: int) -> tuple[str, ...]:
    """What no other engine has."""
    notes = []
    if contender.num_speculative_tokens is None:
        notes.append(
            f"the adaptive depth does not carry over: k = {depth} is the best fixed depth predicted"
        )
    if contender.drafter == "hybrid":
        notes.append("the hybrid drafter does not carry over: its draft model drafts alone")
        if contender.num_speculative_tokens not in (None, depth):
            notes.append(
                f"k = {depth} is the best fixed depth predicted for the draft model, where "
                f"{contender.num_speculative_tokens} is best with what is looked up"
            )
    notes.append(
        "speeds were measured with Outrider: another engine's costs are its own, so that another k "
        "may be best there; acceptance carries over where its distributions and drafts are the same"
    )
    return tuple(notes)


def _vllm(contender: Contender, target: str, draft: str, depth: int) -> Export:
    settings: dict[str, Any] = {"num_speculative_tokens": depth}
    notes = []
    if contender.drafter == "ngram":
        settings |= {
            "method": "ngram",
            "prompt_lookup_max": _LOOKUP_MAX,
            "prompt_lookup_min": _LOOKUP_MIN,
        }
    elif contender.drafter == "suffix":
        settings |= {
            "method": "suffix",
            "suffix_decoding_max_spec_factor": 2.0,
            "suffix_decoding_min_token_prob": 0.1,
        }
        notes.append(_CACHE)
    else:
        block = contender.verification in ("block", "traversal")
        settings |= {
            "method": "draft_model",
            "model": draft,
            "draft_sample_method": "probabilistic",
            "rejection_sample_method": "block" if block else "standard",
        }
        if block:
            notes.append(
                "block verification is rejection_sample_method; versions without that field verify "
                "token by token: drop it there"
            )
    if contender.tree_shape is not None:
        notes.append("the tree does not carry over: a chain of its depth is drafted")
    text = f"vllm serve {shlex.quote(target)} --speculative-config {_quoted(settings)}"
    return Export("vllm", text, settings, tuple(notes))


def _sglang(contender: Contender, target: str, draft: str, depth: int) -> Export:
    settings: dict[str, Any]
    notes = ["block verification does not carry over: tokens are verified one by one"]
    if contender.verification in ("token", "recursive"):
        notes = []
    if contender.drafter in LOOKUPS:
        settings = {"speculative-algorithm": "NGRAM", "speculative-num-draft-tokens": depth}
        notes.append("its n-gram cache is not prompt lookup: drafts differ, and it needs CUDA")
        if contender.drafter == "suffix":
            notes.append(_CACHE)
    else:
        shape = contender.tree_shape or ()
        nodes = sum(prod(shape[: level + 1]) for level in range(len(shape))) or depth
        settings = {
            "speculative-algorithm": "STANDALONE",
            "speculative-draft-model-path": draft,
            "speculative-num-steps": depth,
            "speculative-eagle-topk": max(shape, default=1),
            "speculative-num-draft-tokens": nodes + 1,
        }
        if shape:
            notes.append(
                "the tree's shape does not carry over: its nodes are shared out by the draft's "
                "own confidence"
            )
    text = f"python -m sglang.launch_server --model-path {shlex.quote(target)} {_flags(settings)}"
    return Export("sglang", text, settings, tuple(notes))


def _llama_cpp(contender: Contender, target: str, draft: str, depth: int) -> Export:
    settings: dict[str, Any]
    notes = [
        "models are GGUF files: convert both",
        "block verification, and drafts drawn from the draft's distribution, do not carry over: a token is "
        "kept where it is the one that the target samples",
    ]
    if contender.drafter in LOOKUPS:
        settings = {
            "spec-type": "ngram-simple",
            "spec-ngram-simple-size-n": 3,
            "spec-ngram-simple-size-m": depth,
        }
        notes.append(
            f"matches of one length only: Outrider looks for {_LOOKUP_MAX} tokens down to "
            f"{_LOOKUP_MIN}; try other values of size-n"
        )
        if contender.drafter == "suffix":
            notes.append(_CACHE)
    else:
        settings = {
            "spec-type": "draft-simple",
            "spec-draft-model": f"{draft}.gguf",
            "spec-draft-n-max": depth,
            "spec-draft-n-min": 0,
            "spec-draft-p-min": 0,
        }
        notes.append(
            "builds before the flags were renamed: --model-draft, --draft-max, --draft-min and "
            "--draft-p-min, without --spec-type"
        )
    if contender.tree_shape is not None:
        notes.append("the tree does not carry over: a chain of its depth is drafted")
    text = f"llama-server -m {shlex.quote(target + '.gguf')} {_flags(settings)}"
    return Export("llama.cpp", text, settings, tuple(notes))


def _transformers(contender: Contender, _target: str, draft: str, depth: int) -> Export:
    settings: dict[str, Any]
    notes = ["one sequence at a time: assisted generation does not decode batches"]
    if contender.drafter in LOOKUPS:
        settings = {"prompt_lookup_num_tokens": depth, "max_matching_ngram_size": _LOOKUP_MAX}
        notes.append("goes into the target's generation_config")
        if contender.drafter == "suffix":
            notes.append("suffix drafting does not carry over: prompt lookup stands for it")
    else:
        settings = {
            "num_assistant_tokens": depth,
            "num_assistant_tokens_schedule": "constant",
            "assistant_confidence_threshold": 0.0,
        }
        notes.append(
            f"goes into the generation_config of the assistant ({draft}), where alone it is read; "
            "then target.generate(..., assistant_model=assistant)"
        )
    if contender.verification in ("block", "traversal"):
        notes.append("block verification does not carry over: tokens are verified one by one")
    if contender.tree_shape is not None:
        notes.append("the tree does not carry over: a chain of its depth is drafted")
    return Export("transformers", json.dumps(settings), settings, tuple(notes))


def _quoted(settings: dict[str, Any]) -> str:
    return shlex.quote(json.dumps(settings))


def _flags(settings: dict[str, Any]) -> str:
    return " ".join(f"--{name} {shlex.quote(str(value))}" for name, value in settings.items())
