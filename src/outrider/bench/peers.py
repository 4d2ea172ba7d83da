"""What other systems make of the same weights; llama.cpp's part is in `llama`, transformers' here.

transformers decodes plainly, assisted by the draft, and with prompt lookup: a batch of one prompt
in a call of `generate`. Hooks around the forwards of its models tell how many rounds it made, how
much each drafted and kept, and how long the target's first forward took: the one that reads the
prompt, which no contender's clock counts. So both sides are timed from the request, token ids in
and token ids out, to the last token. `draft_s` of a peer is the time in the draft's forwards;
Outrider's is all of its proposing, the drawing of tokens too.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from time import perf_counter
from typing import Any

import torch
from transformers import GenerationConfig

from ..config.params import SamplingParams
from ..drafters.model import ModelDrafter
from ..engine.loading import Pair
from ..errors import InvalidConfigError
from ..runtimes.transformers.model import TransformersModel
from . import llama
from .entrants import Entrant
from .race import Racer
from .records import Contender
from .turns import Answer, Forward, Turn

SYSTEM = "transformers"

NAMES = (SYSTEM, llama.SYSTEM)
"""The systems that may be compared with."""

_CONSTANT = {"num_assistant_tokens_schedule": "constant", "assistant_confidence_threshold": 0.0}
"""Assistant settings under which every draft has the same length."""


def entrants(
    names: Sequence[str],
    pair: Pair,
    depths: Sequence[int | None],
    held: ExitStack,
    say: Callable[[str], None],
) -> tuple[list[Entrant], list[str]]:
    """The peers that can take part, and why others cannot.

    Of transformers these take part: plain decoding; assisted generation drafting each of `depths`
    tokens a round, and with its own defaults (None); prompt lookup of the same depths. So its best
    setting is among those shown if the depths are well chosen. Of llama.cpp: plain decoding, in
    half precision too if the target is in float32, and prompt lookup.

    Args:
        names: systems, of `NAMES`.
        pair: the models whose weights are used.
        depths: of drafts; None is what transformers does if it is told nothing.
        held: what peers hold (memory, files) is freed when this is closed.
        say: is told of what takes a while.

    Raises:
        InvalidConfigError: a system is not known.
    """
    for name in names:
        if name not in NAMES:
            raise InvalidConfigError("peers", name, f"some of {', '.join(NAMES)}; or none")
    found: list[Entrant] = []
    missing: list[str] = []
    for name in names:
        others: Sequence[Entrant] = ()
        try:
            if name == SYSTEM:
                others, why = _of_transformers(pair, depths)
            else:
                others, why = llama.entrants(pair, depths, held, say)
        except Exception as error:
            why = [f"{name}: {' '.join(f'{type(error).__name__}: {error}'.split())}"]
        found += others
        missing += why
    return found, missing


def _of_transformers(
    pair: Pair, depths: Sequence[int | None]
) -> tuple[Sequence[Entrant], list[str]]:
    target = twin(pair.target.hf_model)
    found = [TransformersEntrant(Contender(SYSTEM, "none"), target)]
    missing = []
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
        missing.append(f"{SYSTEM} draft_model: {why}")
    found += [
        TransformersEntrant(Contender(SYSTEM, "ngram", num_speculative_tokens=depth), target)
        for depth in depths
        if depth is not None
    ]
    return found, missing


def twin(hf_model: Any) -> Any:
    """A model over the same weights, with transformers' own forward and settings of its own."""
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
            more["assistant_model"] = self._draft
        elif self._contender.drafter == "ngram":
            more["prompt_lookup_num_tokens"] = self._contender.num_speculative_tokens
        if asked.temperature > 0:
            more |= {"do_sample": True, "temperature": asked.temperature, "top_k": 0, "top_p": 1.0}
        else:
            more["do_sample"] = False
        more |= {"max_new_tokens": asked.max_tokens, "pad_token_id": 0}
        assisted = (self._draft, self._settings) if self._draft is not None else None
        answer = partial(_generate, self._target, assisted, prompt, more, seed)
        return Turn(len(prompt), answer)


def _generate(
    target: Any,
    assisted: tuple[Any, GenerationConfig] | None,
    prompt: Sequence[int],
    settings: dict[str, Any],
    seed: int,
) -> Answer:
    """One call of `generate`.

    Args:
        target: the target.
        assisted: the draft, which several contenders share, with the config that counts now.
        prompt: token ids.
        settings: of the call.
        seed: of what is drawn.
    """
    torch.manual_seed(seed)
    models = [target]
    if assisted is not None:
        draft, draft.generation_config = assisted[0], assisted[1]
        models.append(draft)
    with ExitStack() as stack:
        forwards = [stack.enter_context(_timed_forwards(model)) for model in models]
        start = perf_counter()
        ids = torch.tensor([list(prompt)], device=target.device)
        out = target.generate(ids, attention_mask=torch.ones_like(ids), **settings)
        emitted = tuple(out[0, len(prompt) :].tolist())
        total_s = perf_counter() - start
    draft_s = sum(call.seconds for calls in forwards[1:] for call in calls)
    return Answer(emitted, forwards[0], draft_s, total_s)


def _now(device: torch.device) -> float:
    """Seconds, once all that was asked of a CUDA device before is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter()


@contextmanager
def _timed_forwards(model: Any) -> Iterator[list[Forward]]:
    """The forwards that a model makes meanwhile."""
    found: list[Forward] = []
    begun = 0.0

    def before(_: Any, args: tuple[Any, ...], given: dict[str, Any]) -> None:
        nonlocal begun
        cached = given["past_key_values"].get_seq_length()
        width = (args[0] if args else given["input_ids"]).shape[1]
        found.append(Forward(cached + 1, cached + width))
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
