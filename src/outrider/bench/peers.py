"""Other systems on the same prompts: transformers' assisted generation, and llama.cpp.

Both sides are timed from token ids to token ids, without the target's first forward pass, which
prefills the prompt. Peers decode one sequence at a time and take part in batches of one.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from .. import ModelDrafter, Pair, SamplingParams
from .options import BenchOptions
from .race import Run, Runner, Tokens, Turns
from .records import Candidate

_CONSTANT = {"num_assistant_tokens_schedule": "constant", "assistant_confidence_threshold": 0.0}
"""Assistant settings under which every draft has the same length."""


def runners(
    options: BenchOptions, pairs: Iterable[Pair], batch: int
) -> tuple[list[Runner], list[str]]:
    """Make the peers ready that can take part, and say why others cannot.

    Of transformers: plain decoding, assisted generation and prompt lookup at each of the depths.
    Of llama.cpp, on the given GGUF file: plain decoding, and prompt lookup.
    """
    found: list[Runner] = []
    missing: list[str] = []
    for name in options.peers:
        if name == "none":
            continue
        if batch > 1:
            missing.append(f"{name}: not in batches of {batch}, it decodes one at a time here")
        elif name == "transformers":
            ready, why = _of_transformers(options, pairs)
            found += ready
            missing += why
        elif find_spec("llama_cpp") is None or options.file is None:
            missing.append('llama.cpp: not installed: pip install "outrider[llama-cpp]"')
        else:
            found += [LlamaCppRunner(each, options.file) for each in _candidates(name, options)]
    return found, missing


def _of_transformers(
    options: BenchOptions, pairs: Iterable[Pair]
) -> tuple[list[Runner], list[str]]:
    """See `runners`; the models are those of the first pair that transformers has loaded."""
    pair = next((each for each in pairs if each.target.name in ("transformers", "openvino")), None)
    if pair is None:
        return [], ["transformers: no runtime has loaded the models by it"]
    from .. import TransformersModel

    assert isinstance(pair.target, TransformersModel)
    target, draft = _twin(pair.target.hf_model), None
    missing = []
    model = pair.model_drafter
    if isinstance(model, ModelDrafter) and isinstance(model.model, TransformersModel):
        draft = _twin(model.model.hf_model)
    else:
        why = "the tokenizers differ" if model else "there is no draft"
        missing.append(f"transformers draft_model: {why}")
    return [
        TransformersRunner(each, target, draft if each.drafter == "draft_model" else None)
        for each in _candidates("transformers", options, drafts=draft is not None)
    ], missing


def _candidates(system: str, options: BenchOptions, *, drafts: bool = False) -> list[Candidate]:
    depths = tuple(dict.fromkeys((*options.depths, None)))
    tried = [("none", None), *(("draft_model", depth) for depth in depths if drafts)]
    tried += [("ngram", depth) for depth in depths if depth is not None]
    return [Candidate(drafter, depth=depth, system=system) for drafter, depth in tried]


class Peer(Runner):
    """Another system: it decodes a request at once, and its failure is a result, not an error."""

    whole = True

    def turns(
        self, prompts: Sequence[Tokens], params: Sequence[SamplingParams], seed: int
    ) -> Turns:
        """Decode a stretch of one prompt."""
        (prompt,), (asked,) = prompts, params
        try:
            run = self.decode(prompt, asked, seed)
        except Exception as error:
            # Other systems fail as they like; the others of a race go on.
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            run = Run(0.0, 0.0, (), failure=reason)
        yield run.seconds
        return run

    @abstractmethod
    def decode(self, prompt: Tokens, asked: SamplingParams, seed: int) -> Run:
        """Decode a request."""


class TransformersRunner(Peer):
    """A way of calling transformers' `generate`: plainly, with an assistant, or by prompt lookup.

    Args:
        candidate: its drafter is "none", "draft_model" or "ngram".
        target: a causal language model with a generation config of its own.
        draft: its assistant.
    """

    def __init__(self, candidate: Candidate, target: Any, draft: Any = None) -> None:
        self.candidate = candidate
        self._target = target
        self._draft = draft
        depth = candidate.depth
        fixed = {} if depth is None else {"num_assistant_tokens": depth, **_CONSTANT}
        from transformers import GenerationConfig

        self._config = GenerationConfig(**fixed)

    def decode(self, prompt: Tokens, asked: SamplingParams, seed: int) -> Run:
        """Decode a request."""
        settings: dict[str, Any] = {"max_new_tokens": asked.max_tokens, "pad_token_id": 0}
        if asked.temperature > 0:
            settings |= {"do_sample": True, "temperature": asked.temperature}
            settings |= {"top_k": 0, "top_p": 1.0}
        else:
            settings["do_sample"] = False
        if self._draft is not None:
            # Of an assistant's settings only those of its own config count.
            self._draft.generation_config = self._config
            settings["assistant_model"] = self._draft
        elif self.candidate.drafter == "ngram":
            settings["prompt_lookup_num_tokens"] = self.candidate.depth
        torch.manual_seed(seed)
        with _first_forward(self._target) as first:
            start = perf_counter()
            ids = torch.tensor([list(prompt)], device=self._target.device)
            out = self._target.generate(ids, attention_mask=torch.ones_like(ids), **settings)
            emitted = tuple(out[0, len(prompt) :].tolist())
            total_s = perf_counter() - start
        return Run(total_s - first[0], first[0], (emitted,))


class LlamaCppRunner(Peer):
    """llama-cpp-python on a GGUF file, plainly or by prompt lookup ("ngram").

    Another model than the target, if the file's weights are rounded.
    """

    def __init__(self, candidate: Candidate, path: Path) -> None:
        self.candidate = candidate
        self._path = path
        self._llama: Any = None

    def decode(self, prompt: Tokens, asked: SamplingParams, seed: int) -> Run:
        """Decode a request."""
        llama = self._loaded(len(prompt) + asked.max_tokens + (self.candidate.depth or 0))
        llama.reset()
        llama.set_seed(seed)
        start = perf_counter()
        tokens = llama.generate(
            list(prompt), temp=asked.temperature, top_k=0, top_p=1.0, min_p=0.0, typical_p=1.0
        )
        first = next(tokens)
        prompt_s = perf_counter() - start
        emitted = (first, *islice(tokens, asked.max_tokens - 1))
        return Run(perf_counter() - start - prompt_s, prompt_s, (emitted,))

    def _loaded(self, tokens: int) -> Any:
        """A `Llama` with room for so many tokens."""
        if self._llama is not None and self._llama.n_ctx() >= tokens:
            return self._llama
        llama_cpp = import_module("llama_cpp")
        depth, threads, lookup = self.candidate.depth, torch.get_num_threads(), None
        if depth is not None:
            speculative = import_module("llama_cpp.llama_speculative")
            lookup = speculative.LlamaPromptLookupDecoding(num_pred_tokens=depth)
        self._llama = llama_cpp.Llama(
            str(self._path),
            n_ctx=max(tokens, 512),
            n_threads=threads,
            n_threads_batch=threads,
            # Its array of logits is too short for drafts otherwise.
            logits_all=depth is not None,
            draft_model=lookup,
            verbose=False,
        )
        return self._llama


def _twin(hf_model: Any) -> Any:
    """Copy a model without its weights, with transformers' own attention and default settings."""
    shared = [*hf_model.parameters(), *hf_model.buffers()]
    from transformers import GenerationConfig

    model = copy.deepcopy(hf_model, {id(tensor): tensor for tensor in shared})
    model.set_attn_implementation("sdpa")
    model.generation_config = GenerationConfig()
    return model


@contextmanager
def _first_forward(model: Any) -> Iterator[list[float]]:
    """The seconds of a model's first forward pass meanwhile, in a list of one."""
    marks: list[float] = []
    seconds: list[float] = []

    def mark(*_: Any) -> None:
        if len(marks) < 2:
            if model.device.type == "cuda":
                torch.cuda.synchronize(model.device)
            marks.append(perf_counter())
            seconds[:] = [marks[-1] - marks[0]]

    with model.register_forward_pre_hook(mark), model.register_forward_hook(mark):
        yield seconds
