"""Other systems on the same prompts: transformers, llama.cpp and OpenVINO GenAI.

Both sides are timed from token ids to token ids, without the target's first forward pass, which
prefills the prompt; where a system does not show it, without all that comes before the first token.
Peers decode one sequence at a time.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib import import_module
from itertools import islice
from time import perf_counter
from typing import Any

import numpy as np
import torch

from .. import ModelDrafter, Pair, SamplingParams
from ..config.sources import is_gguf, model_source
from ..errors import missing as not_installed
from .options import BenchOptions
from .race import Run, Runner, Tokens, Turns
from .records import Candidate

_CONSTANT = {"num_assistant_tokens_schedule": "constant", "assistant_confidence_threshold": 0.0}
"""Assistant settings under which every draft has the same length."""

_PACKAGES = {"llama.cpp": "llama_cpp", "openvino-genai": "openvino_genai"}
"""Those of the systems that read a GGUF file themselves."""

_OF_TRANSFORMERS = ("transformers", "openvino")
"""Runtimes whose models transformers has loaded."""


def runners(options: BenchOptions, pair: Pair, longest: int) -> tuple[list[Runner], list[str]]:
    """Make the peers ready that can take part, and say why others cannot.

    Each decodes plainly, by prompt lookup, and with the draft model if it can. Models of its own
    are loaded when it first decodes.

    Args:
        options: who takes part, at which depths, on which files.
        pair: the models, as Outrider has loaded them.
        longest: the most tokens of a request, those emitted included.
    """
    found: list[Runner] = []
    missing: list[str] = []
    for system in (each for each in options.peers if each != "none"):
        if reason := _obstacle(system, options, pair):
            missing.append(f"{system}: {reason}")
            continue
        drafts = pair.model_drafter is not None
        if drafts and (reason := _obstacle_to_drafts(system, options, pair)):
            missing.append(f"{system} draft_model: {reason}")
            drafts = False
        candidates = _candidates(system, options, drafts=drafts)
        found += [_runner(candidate, options, pair, longest) for candidate in candidates]
    batches = ", ".join(str(batch) for batch in options.batches if batch > 1)
    if found and batches:
        missing.append(f"peers: not in batches of {batches}, they decode one at a time")
    return found, missing


def _obstacle(system: str, options: BenchOptions, pair: Pair) -> str | None:
    """Say why a system cannot take part; None if it can."""
    if system == "transformers":
        loaded = pair.target.name in _OF_TRANSFORMERS
        return None if loaded else "the target runs on llama.cpp; take --runtime transformers"
    if not is_gguf(options.target):
        return "here it takes a GGUF file as the target, such as --target model.gguf"
    try:
        with not_installed("llama-cpp" if system == "llama.cpp" else system):
            import_module(_PACKAGES[system])
    except Exception as error:
        # Packages with compiled parts fail as they like.
        return str(error)
    return None


def _obstacle_to_drafts(system: str, options: BenchOptions, pair: Pair) -> str | None:
    """Say why a system cannot draft with the draft model; None if it can."""
    model = pair.model_drafter
    if not isinstance(model, ModelDrafter):
        return "the tokenizers differ"
    if system == "transformers":
        loaded = model.model.name in _OF_TRANSFORMERS
        return None if loaded else "the draft runs on llama.cpp"
    if system == "openvino-genai":
        return "it drafts with models that were exported to OpenVINO alone"
    return None if is_gguf(options.draft or "") else "the draft is no GGUF file"


def _candidates(system: str, options: BenchOptions, *, drafts: bool) -> list[Candidate]:
    depths = [depth for depth in options.depths if depth is not None]
    # Only transformers has a heuristic of its own.
    drafted = [*depths, None] if system == "transformers" else depths
    tried = [("none", None), *(("draft_model", depth) for depth in drafted if drafts)]
    tried += [("ngram", depth) for depth in depths]
    return [Candidate(drafter, depth=depth, system=system) for drafter, depth in tried]


def _runner(candidate: Candidate, options: BenchOptions, pair: Pair, longest: int) -> Peer:
    drafts, path = candidate.drafter == "draft_model", model_source("target", options.target)
    if candidate.system == "llama.cpp":
        draft = model_source("draft", options.draft) if drafts else None
        return LlamaCppRunner(candidate, path, draft, longest + (candidate.depth or 0))
    if candidate.system == "openvino-genai":
        return GenaiRunner(candidate, path)
    target: Any = pair.target
    model: Any = pair.model_drafter
    return TransformersRunner(candidate, target.hf_model, model.model.hf_model if drafts else None)


class Peer(Runner):
    """Another system: it decodes a request at once, and its failure is a result, not an error."""

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
        target: a causal language model, which is left as it is.
        draft: its assistant, likewise.
    """

    def __init__(self, candidate: Candidate, target: Any, draft: Any = None) -> None:
        from transformers import GenerationConfig

        from ..runtimes.transformers.twin import sharing

        self.candidate = candidate
        self._target = sharing(target)
        self._target.generation_config = GenerationConfig()
        self._settings: dict[str, Any] = {"pad_token_id": 0}
        depth = candidate.depth
        if draft is not None:
            # Of an assistant's settings only those of its own config count.
            fixed = {} if depth is None else {"num_assistant_tokens": depth, **_CONSTANT}
            self._settings["assistant_model"] = assistant = sharing(draft)
            assistant.generation_config = GenerationConfig(**fixed)
        elif candidate.drafter == "ngram":
            self._settings["prompt_lookup_num_tokens"] = depth

    def decode(self, prompt: Tokens, asked: SamplingParams, seed: int) -> Run:
        """Decode a request."""
        settings = self._settings | {"max_new_tokens": asked.max_tokens, "do_sample": False}
        if asked.temperature > 0:
            settings |= {"do_sample": True, "temperature": asked.temperature}
            settings |= {"top_k": 0, "top_p": 1.0}
        torch.manual_seed(seed)
        with _first_forward(self._target) as first:
            start = perf_counter()
            ids = torch.tensor([list(prompt)], device=self._target.device)
            out = self._target.generate(ids, attention_mask=torch.ones_like(ids), **settings)
            emitted = tuple(out[0, len(prompt) :].tolist())
            total_s = perf_counter() - start
        return Run(total_s - first[0], first[0], (emitted,))


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


class LlamaCppRunner(Peer):
    """llama-cpp-python on a GGUF file: plainly, by prompt lookup ("ngram"), or with a draft.

    Args:
        candidate: its drafter is "none", "draft_model" or "ngram".
        target: the path of the file.
        draft: the path of the draft model's.
        longest: the most tokens of a request, those drafted included.
    """

    def __init__(
        self, candidate: Candidate, target: str, draft: str | None = None, longest: int = 512
    ) -> None:
        self.candidate = candidate
        self._target, self._draft, self._longest = target, draft, longest

    def decode(self, prompt: Tokens, asked: SamplingParams, seed: int) -> Run:
        """Decode a request, with nothing of earlier ones in the caches."""
        for llama in self._models:
            llama.reset()
        target = self._models[0]
        target.set_seed(seed)
        start = perf_counter()
        tokens = target.generate(
            list(prompt), temp=asked.temperature, top_k=0, top_p=1.0, min_p=0.0, typical_p=1.0
        )
        first = next(tokens)
        prompt_s = perf_counter() - start
        emitted = (first, *islice(tokens, asked.max_tokens - 1))
        return Run(perf_counter() - start - prompt_s, prompt_s, (emitted,))

    @cached_property
    def _models(self) -> list[Any]:
        """The target, and what drafts for it if that is a model."""
        speculative: Any = import_module("llama_cpp.llama_speculative")
        depth = self.candidate.depth
        if self._draft is not None:
            draft = self._llama(self._draft)

            class Greedy(speculative.LlamaDraftModel):
                def __call__(self, input_ids: Any, /, **_: Any) -> Any:
                    # What is in its cache of these tokens is not computed again.
                    tokens = draft.generate(input_ids.tolist(), temp=0.0)
                    return np.fromiter(islice(tokens, depth), np.intc)

            return [self._llama(self._target, Greedy()), draft]
        lookup = depth and speculative.LlamaPromptLookupDecoding(num_pred_tokens=depth)
        return [self._llama(self._target, lookup)]

    def _llama(self, path: str, drafts: Any = None) -> Any:
        threads = torch.get_num_threads()
        return import_module("llama_cpp").Llama(
            path,
            n_ctx=max(self._longest, 512),
            n_threads=threads,
            n_threads_batch=threads,
            # Its array of logits is too short for drafts otherwise.
            logits_all=drafts is not None,
            draft_model=drafts,
            verbose=False,
        )


class GenaiRunner(Peer):
    """OpenVINO GenAI's pipeline on a GGUF file, plainly or by prompt lookup ("ngram")."""

    def __init__(self, candidate: Candidate, target: str) -> None:
        self.candidate = candidate
        self._target = target

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
        return Run(total_s - first_s, first_s, (tuple(made.tokens[0]),))

    @cached_property
    def _pipeline(self) -> Any:
        lookup = {} if self.candidate.plain else {"prompt_lookup": True}
        return import_module("openvino_genai").LLMPipeline(
            self._target, "CPU", INFERENCE_NUM_THREADS=torch.get_num_threads(), **lookup
        )
