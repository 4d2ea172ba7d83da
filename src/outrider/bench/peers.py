"""Other systems on the same prompts: transformers, llama.cpp and OpenVINO GenAI.

Both sides are timed from token ids to token ids, without the target's first forward pass, which
prefills the prompt; where a system does not show it, without all that comes before the first token.
Peers decode one sequence at a time.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from importlib import import_module
from itertools import islice
from time import perf_counter
from typing import Any

import numpy as np
import torch

from .. import ModelDrafter, Pair, SamplingParams
from ..config.sources import is_gguf, model_source
from ..errors import ModelError
from ..errors import missing as not_installed
from .options import BenchOptions
from .race import Run, Runner, Tokens, Turns
from .records import Candidate

_CONSTANT = {"num_assistant_tokens_schedule": "constant", "assistant_confidence_threshold": 0.0}
"""Assistant settings under which every draft has the same length."""

_OF_TRANSFORMERS = ("transformers", "openvino")
"""Runtimes whose models transformers has loaded."""


def runners(options: BenchOptions, pair: Pair, longest: int) -> tuple[list[Peer], list[str]]:
    """Make the peers ready that can take part, and say why others cannot.

    Each decodes plainly, by prompt lookup, and with the draft model if it can. Models of its own
    are loaded when it first decodes.

    Args:
        options: who takes part, at which depths, on which files.
        pair: the models, as Outrider has loaded them.
        longest: the most tokens of a request, those emitted included.
    """
    found: list[Peer] = []
    missing: list[str] = []
    # The adaptive depth is Outrider's.
    depths = [depth for depth in options.depths if depth is not None] or [4]
    for system in (each for each in options.peers if each != "none"):
        try:
            target, draft = _models(system, options, pair)
        except Exception as error:
            # Packages with compiled parts fail as they like.
            missing.append(f"{system}: {error}")
            continue
        ways: list[tuple[str, int | None, Any]] = [("none", None, None)]
        ways += [("ngram", depth, None) for depth in depths]
        if draft is not None:
            # Only transformers has a heuristic of its own.
            own = [None] if system == "transformers" else []
            ways += [("draft_model", depth, draft) for depth in (*depths, *own)]
        elif pair.model_drafter is not None:
            reason = "the draft's tokenizer is another, or it reads no such draft"
            missing.append(f"{system} draft_model: {reason}")
        found += [
            _KINDS[system](Candidate(drafter, depth=depth, system=system), target, model, longest)
            for drafter, depth, model in ways
        ]
    batches = ", ".join(str(batch) for batch in options.batches if batch > 1)
    if found and batches:
        missing.append(f"peers: not in batches of {batches}, they decode one at a time")
    return found, missing


def _models(system: str, options: BenchOptions, pair: Pair) -> tuple[Any, Any]:
    """Return the target and the draft as a system takes them; None for a draft that it cannot use.

    Raises:
        ModelError: it cannot decode this target.
        MissingExtraError: it is not installed.
    """
    target: Any = pair.target
    drafter = pair.model_drafter
    # A subclass maps another vocabulary.
    model: Any = drafter.model if type(drafter) is ModelDrafter else None
    if system == "transformers":
        if target.name not in _OF_TRANSFORMERS:
            raise ModelError("the target runs on llama.cpp; take --runtime transformers")
        usable = model is not None and model.name in _OF_TRANSFORMERS
        return target.hf_model, model.hf_model if usable else None
    if not is_gguf(options.target):
        raise ModelError("here it takes a GGUF file as the target, such as --target model.gguf")
    with not_installed("llama-cpp" if system == "llama.cpp" else system):
        import_module(system.replace(".", "_").replace("-", "_"))
    draft = options.draft if system == "llama.cpp" and model is not None else None
    usable = draft is not None and is_gguf(draft)
    return model_source("target", options.target), model_source("draft", draft) if usable else None


class Peer(Runner):
    """Another system: it decodes a request at once, and its failure is a result, not an error.

    Args:
        candidate: its drafter is "none", "ngram", which is prompt lookup, or "draft_model".
        target: the model, or the path of its file.
        draft: what drafts, likewise.
        longest: the most tokens of a request.
    """

    def __init__(self, candidate: Candidate, target: Any, draft: Any, longest: int) -> None:
        self.candidate = candidate
        self.target, self.draft, self.longest = target, draft, longest

    def turns(
        self, prompts: Sequence[Tokens], params: Sequence[SamplingParams], seed: int
    ) -> Turns:
        """Decode a stretch of one prompt, in one turn."""
        (prompt,), (asked,) = prompts, params
        try:
            run = self.decode(prompt, asked, seed)
        except Exception as error:
            # Other systems fail as they like; the others of a race go on.
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            run = Run(0.0, (), failure=reason)
        yield run.seconds
        return run

    @abstractmethod
    def decode(self, prompt: Tokens, asked: SamplingParams, seed: int) -> Run:
        """Decode a request."""


class TransformersPeer(Peer):
    """transformers' `generate`, on models that are left as they are."""

    def decode(self, prompt: Tokens, asked: SamplingParams, seed: int) -> Run:
        """Decode a request, and time the target's first forward pass."""
        settings: dict[str, Any] = {}
        if asked.temperature > 0:
            settings = {"temperature": asked.temperature, "top_k": 0, "top_p": 1.0}
        depth = self.candidate.depth
        if self.draft is not None:
            # Of an assistant's settings only those of its own config count.
            fixed = {} if depth is None else {"num_assistant_tokens": depth, **_CONSTANT}
            settings["assistant_model"] = _with_config(self.draft, **fixed)
        elif depth is not None:
            settings["prompt_lookup_num_tokens"] = depth
        target, marks = _with_config(self.target), list[float]()

        def mark(*_: Any) -> None:
            if len(marks) < 2:
                if target.device.type == "cuda":
                    torch.cuda.synchronize(target.device)
                marks.append(perf_counter())

        torch.manual_seed(seed)
        with target.register_forward_pre_hook(mark), target.register_forward_hook(mark):
            start = perf_counter()
            ids = torch.tensor([list(prompt)], device=target.device)
            out = target.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                pad_token_id=0,
                max_new_tokens=asked.max_tokens,
                do_sample=asked.temperature > 0,
                **settings,
            )
            emitted = tuple(out[0, len(prompt) :].tolist())
            total_s = perf_counter() - start
        return Run(total_s - (marks[1] - marks[0]), (emitted,))


def _with_config(hf_model: Any, **settings: Any) -> Any:
    """The same model with a generation config of its own."""
    from transformers import GenerationConfig

    from ..runtimes.transformers.twin import sharing

    model = sharing(hf_model)
    model.generation_config = GenerationConfig(**settings)
    return model


class LlamaCppPeer(Peer):
    """llama-cpp-python on GGUF files."""

    def decode(self, prompt: Tokens, asked: SamplingParams, seed: int) -> Run:
        """Decode a request, with nothing of earlier ones in the caches."""
        for llama in self._llamas:
            llama.reset()
        target = self._llamas[0]
        target.set_seed(seed)
        tokens = target.generate(
            list(prompt), temp=asked.temperature, top_k=0, top_p=1.0, min_p=0.0, typical_p=1.0
        )
        first, start = next(tokens), perf_counter()  # the first one comes after the prompt
        emitted = (first, *islice(tokens, asked.max_tokens - 1))
        return Run(perf_counter() - start, (emitted,))

    @cached_property
    def _llamas(self) -> list[Any]:
        """The target, and the draft model if there is one."""
        depth = self.candidate.depth
        if self.draft is None:
            speculative: Any = import_module("llama_cpp.llama_speculative")
            lookup = depth and speculative.LlamaPromptLookupDecoding(num_pred_tokens=depth)
            return [self._llama(self.target, lookup)]
        draft = self._llama(self.draft)

        def greedy(input_ids: Any, /, **_: Any) -> Any:
            # What is in its cache of these tokens is not computed again.
            return np.fromiter(islice(draft.generate(input_ids.tolist(), temp=0.0), depth), np.intc)

        return [self._llama(self.target, greedy), draft]

    def _llama(self, path: str, drafts: Any = None) -> Any:
        threads = torch.get_num_threads()
        return import_module("llama_cpp").Llama(
            path,
            n_ctx=self.longest + (self.candidate.depth or 0),
            n_threads=threads,
            n_threads_batch=threads,
            # Its array of logits is too short for drafts otherwise.
            logits_all=drafts is not None,
            draft_model=drafts,
            verbose=False,
        )


class GenaiPeer(Peer):
    """OpenVINO GenAI's pipeline on a GGUF file."""

    def decode(self, prompt: Tokens, asked: SamplingParams, seed: int) -> Run:
        """Decode a request."""
        genai: Any = import_module("openvino_genai")
        openvino: Any = import_module("openvino")
        config = genai.GenerationConfig(max_new_tokens=asked.max_tokens, ignore_eos=True)
        if asked.temperature > 0:
            config.do_sample, config.temperature = True, asked.temperature
            config.rng_seed = seed
        if self.candidate.depth is not None:
            config.num_assistant_tokens, config.max_ngram_size = self.candidate.depth, 3
        pipeline = self._pipeline
        start = perf_counter()
        made = pipeline.generate(openvino.Tensor(np.array([prompt])), config)
        total_s = perf_counter() - start
        first_s = made.perf_metrics.get_ttft().mean / 1e3
        return Run(total_s - first_s, (tuple(made.tokens[0]),))

    @cached_property
    def _pipeline(self) -> Any:
        lookup = {} if self.candidate.plain else {"prompt_lookup": True}
        return import_module("openvino_genai").LLMPipeline(
            self.target, "CPU", INFERENCE_NUM_THREADS=torch.get_num_threads(), **lookup
        )


_KINDS: dict[str, type[Peer]] = {
    "transformers": TransformersPeer,
    "llama.cpp": LlamaCppPeer,
    "openvino-genai": GenaiPeer,
}
