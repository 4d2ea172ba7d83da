"""What transformers itself makes of the same weights: plainly, assisted, and with prompt lookup.

A peer generates a batch of one prompt in a call. Hooks around the forwards of its models tell how
many rounds it made, how much each drafted and kept, and how long the target's first forward took:
the one that reads the prompt, which no contender's clock counts. So both sides are timed from the
request, token ids in and token ids out, to the last token. `draft_s` of a peer is the time in the
draft's forwards; Outrider's is all of its proposing, the drawing of tokens too.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from transformers import GenerationConfig

from ..config import SamplingParams
from ..drafters.model import ModelDrafter
from ..errors import InvalidConfigError
from ..loading import Pair
from ..models.transformers import TransformersModel
from ..records import RoundRecord
from .race import Racer
from .records import Contender

NAMES = ("transformers", "llama.cpp")
"""The systems that may be compared with."""

SYSTEM = "transformers"

_CONSTANT = {"num_assistant_tokens_schedule": "constant", "assistant_confidence_threshold": 0.0}
"""Assistant settings under which every draft has the same length."""


def entrants(
    names: Sequence[str], pair: Pair, depths: Sequence[int | None]
) -> tuple[list[TransformersEntrant], list[str]]:
    """The peers that can take part, and why others cannot.

    Of transformers these take part: plain decoding; assisted generation drafting each of `depths`
    tokens a round, and with its own defaults (None); prompt lookup of the same depths. So its best
    setting is among those shown if the depths are well chosen.

    Args:
        names: systems, of `NAMES`.
        pair: the models whose weights are used.
        depths: of drafts; None is what transformers does if it is told nothing.

    Raises:
        InvalidConfigError: a system is not known.
    """
    found: list[TransformersEntrant] = []
    missing = []
    for name in names:
        if name not in NAMES:
            raise InvalidConfigError("peers", name, f"some of {', '.join(NAMES)}; or none")
        if name != SYSTEM:
            missing.append(
                f"{name}: not measured. It reads no transformers weights: convert the target with "
                "convert_hf_to_gguf.py of llama.cpp (--outtype f32), pip install llama-cpp-python, "
                "and time llama-bench on the file beside this table"
            )
            continue
        target = twin(pair.target.hf_model)
        found.append(TransformersEntrant(Contender(SYSTEM, "none"), target))
        drafter = pair.model_drafter
        if isinstance(drafter, ModelDrafter) and isinstance(drafter.model, TransformersModel):
            draft = twin(drafter.model.hf_model)
            found += [
                TransformersEntrant(
                    Contender(SYSTEM, "draft_model", num_speculative_tokens=depth), target, draft
                )
                for depth in depths
            ]
        else:
            why = "there is no draft" if drafter is None else "the tokenizers differ"
            missing.append(f"{name} draft_model: {why}")
        found += [
            TransformersEntrant(Contender(SYSTEM, "ngram", num_speculative_tokens=depth), target)
            for depth in depths
            if depth is not None
        ]
    return found, missing


def twin(hf_model: Any) -> Any:
    """A model over the same weights, with transformers' own attention and settings of its own."""
    shared = [*hf_model.parameters(), *hf_model.buffers()]
    model = copy.deepcopy(hf_model, {id(tensor): tensor for tensor in shared})
    model.set_attn_implementation("sdpa")
    model.generation_config = GenerationConfig()
    return model


class TransformersEntrant:
    """A way of calling `generate`, as an `Entrant`.

    Args:
        contender: the drafter is "none", "draft_model" (assisted generation) or "ngram" (prompt
            lookup).
        target: a causal language model of transformers, with a generation config of its own.
        draft: its assistant. Of its settings only those of its own generation config count.
    """

    lossy = False

    def __init__(self, contender: Contender, target: Any, draft: Any = None) -> None:
        self._contender = contender
        self._target = target
        self._draft = draft
        self._settings = GenerationConfig()
        self.renew()

    @property
    def contender(self) -> Contender:
        """Who it is."""
        return self._contender

    def renew(self) -> None:
        """Forget what was learnt from earlier prompts: heuristics are kept from call to call."""
        depth = self._contender.num_speculative_tokens
        fixed = {} if depth is None else {"num_assistant_tokens": depth, **_CONSTANT}
        self._settings = GenerationConfig(**fixed)

    def lane(
        self, batch: Sequence[Sequence[int]], params: Sequence[SamplingParams], seed: int
    ) -> Racer:
        """At the start of a batch of one prompt."""
        (prompt,), (asked,) = batch, params
        more: dict[str, Any] = {}
        if self._contender.drafter == "draft_model":
            self._draft.generation_config = self._settings
            more["assistant_model"] = self._draft
        elif self._contender.drafter == "ngram":
            more["prompt_lookup_num_tokens"] = self._contender.num_speculative_tokens
        if asked.temperature > 0:
            more |= {"do_sample": True, "temperature": asked.temperature, "top_k": 0, "top_p": 1.0}
        else:
            more["do_sample"] = False
        more |= {"max_new_tokens": asked.max_tokens, "pad_token_id": 0}
        return _GenerateLane(self._target, self._draft, prompt, more, seed)


class _GenerateLane:
    """One call of `generate`: a `Racer` whose turn is the whole of it."""

    def __init__(
        self, target: Any, draft: Any, prompt: Sequence[int], settings: dict[str, Any], seed: int
    ) -> None:
        self._target = target
        self._draft = draft
        self._prompt = prompt
        self._settings = settings
        self._seed = seed
        self._emitted: tuple[int, ...] = ()
        self.running = True
        self.seconds = 0.0
        self.prompt_s = 0.0
        self.records: list[RoundRecord] = []

    @property
    def token_ids(self) -> tuple[tuple[int, ...], ...]:
        """What was emitted."""
        return (self._emitted,)

    def advance(self) -> None:
        """Generate all."""
        if not self.running:
            return
        torch.manual_seed(self._seed)
        models = [self._target] if self._draft is None else [self._target, self._draft]
        with ExitStack() as stack:
            forwards = [stack.enter_context(_timed_forwards(model)) for model in models]
            start = perf_counter()
            ids = torch.tensor([list(self._prompt)], device=self._target.device)
            out = self._target.generate(ids, attention_mask=torch.ones_like(ids), **self._settings)
            self._emitted = tuple(out[0, len(self._prompt) :].tolist())
            total = perf_counter() - start
        calls = forwards[0]
        self.running = False
        self.prompt_s = calls[0].seconds
        self.seconds = total - self.prompt_s
        drafting = sum(call.seconds for call in forwards[1]) if self._draft is not None else 0.0
        self.records = self._rounds(calls, drafting, total)

    def close(self) -> None:
        """Nothing is held."""

    def _rounds(self, calls: list[_Forward], draft_s: float, total_s: float) -> list[RoundRecord]:
        """A round for each forward of the target; the first has the times of all."""
        length = len(self._prompt)
        ends = [*(call.end for call in calls[1:]), length + len(self._emitted)]
        # A forward is given the last token of the prefix, and the drafts after it.
        starts = [length, *ends[:-1]]
        rounds = []
        for index, (call, start, end) in enumerate(zip(calls, starts, ends, strict=True)):
            first = index == 0
            drafted = call.columns - start
            rounds.append(
                RoundRecord(
                    sequence_ids=(0,),
                    drafted=(drafted,),
                    depth=(drafted,),
                    accepted=(min(end - start - 1, drafted),),
                    emitted=(end - start,),
                    bonus=(end - start > drafted,),
                    ceiling=(None,),
                    first_ceiling=(None,),
                    draft_failed=False,
                    looked_up=(False,),
                    ended=(False,),
                    entropies=((),),
                    draft_s=draft_s if first else 0.0,
                    target_s=sum(each.seconds for each in calls) if first else 0.0,
                    total_s=total_s if first else 0.0,
                )
            )
        return rounds


@dataclass(slots=True)
class _Forward:
    """A forward of a model.

    Attributes:
        end: how many tokens there were before what it drafted, its last known token included.
        columns: how many tokens there were with what it was given.
        seconds: that it took.
    """

    end: int
    columns: int
    seconds: float = 0.0


def _now(device: torch.device) -> float:
    """Seconds, once all that was asked of a CUDA device before is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter()


@contextmanager
def _timed_forwards(model: Any) -> Iterator[list[_Forward]]:
    """The forwards that a model makes meanwhile."""
    found: list[_Forward] = []
    begun = 0.0

    def before(_: Any, args: tuple[Any, ...], given: dict[str, Any]) -> None:
        nonlocal begun
        cached = given["past_key_values"].get_seq_length()
        width = (args[0] if args else given["input_ids"]).shape[1]
        found.append(_Forward(cached + 1, cached + width))
        begun = _now(model.device)

    def after(*_: Any) -> None:
        found[-1].seconds = _now(model.device) - begun

    handles = (
        model.register_forward_pre_hook(before, with_kwargs=True),
        model.register_forward_hook(after),
    )
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()
