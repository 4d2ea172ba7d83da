"""llama.cpp on the same weights, through llama-cpp-python: plainly, and with its prompt lookup.

The target is written as GGUF (see `gguf`) into a temporary folder, which is removed when the run
ends: in the target's own dtype, and beside float32 in f16 as well, whose contender says so in its
name. `pip install "outrider[llama]"` is what it takes. Decoding is `Llama.generate`, on the CPU,
with as many threads as torch uses and a cache of the dtype of the weights; filters that
llama-cpp-python has on unless told otherwise are off. Models do not draft there:
`LlamaPromptLookupDecoding`, with its own length of matches, is all that llama-cpp-python brings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch

from ..config.params import SamplingParams
from ..engine.loading import Pair
from ..errors import ModelError
from . import gguf
from .gguf import Number
from .race import Racer
from .records import Contender
from .turns import Answer, Forward, Turn

SYSTEM = "llama.cpp"

_NUMBERS: dict[torch.dtype, tuple[Number, ...]] = {
    torch.float32: ("f32", "f16"),
    torch.float16: ("f16",),
    torch.bfloat16: ("bf16",),
}
"""What is written of a target in a dtype; the first is that dtype itself."""

_ROOM = 1024
"""Tokens for which a cache has room from the start."""

_GRAIN = 256
"""llama.cpp makes caches in multiples of so many tokens."""


def entrants(
    pair: Pair, depths: Sequence[int | None], held: ExitStack, say: Callable[[str], None]
) -> tuple[list[LlamaEntrant], list[str]]:
    """llama.cpp's contenders, and why there are none, or fewer.

    Args:
        pair: the models, of which the target is written.
        depths: of prompt lookup; None is left out.
        held: what is written and loaded is removed when this is closed.
        say: is told what is being written.
    """
    try:
        for module in ("llama_cpp", "gguf"):
            import_module(module)
    except ImportError as error:
        return [], [f'{SYSTEM}: not installed ({_line(error)}): pip install "outrider[llama]"']
    except Exception as error:
        return [], [f"{SYSTEM}: llama-cpp-python cannot be used: {_line(error)}"]
    model = pair.target.hf_model
    if model.device.type != "cpu":
        return [], [f"{SYSTEM}: it decodes on the CPU here, the target on {model.device}"]
    numbers = _NUMBERS.get(model.dtype)
    if numbers is None:
        return [], [f"{SYSTEM}: it does not compute in {str(model.dtype).removeprefix('torch.')}"]
    temporary = TemporaryDirectory(prefix="outrider-gguf-")
    # Once more, in case an interrupt cuts the first time short.
    held.callback(temporary.cleanup)
    folder = Path(held.enter_context(temporary))
    found: list[LlamaEntrant] = []
    missing: list[str] = []
    for number in numbers:
        path = folder / f"target-{number}.gguf"
        own = number == numbers[0]
        system = SYSTEM if own else f"{SYSTEM} {number}"
        try:
            say(f"writing the target for llama.cpp, in {number}, until the end of the run")
            gguf.write(model, path, number)
        except Exception as error:
            missing.append(f"{system}: {_line(error)}")
            if own:
                break
            continue
        contenders = [Contender(system, "none")]
        contenders += [
            Contender(system, "ngram", num_speculative_tokens=depth)
            for depth in depths
            if own and depth is not None
        ]
        found += [LlamaEntrant(each, path, number, lossy=not own) for each in contenders]
    for entrant in found:
        held.callback(entrant.close)
    return found, missing


class LlamaEntrant:
    """A `Llama` of llama-cpp-python, as an `Entrant`.

    It is loaded when it is first sent off, and anew for a request that its cache has no room for.
    Nothing of a prompt stays in the cache for the next.

    Args:
        contender: the drafter is "none" or "ngram" (prompt lookup).
        path: of a GGUF file, to be there as long as this is used.
        number: of its weights, and of the cache.
        lossy: whether these are rounded: what it emits has then the distribution of another model.
    """

    def __init__(
        self, contender: Contender, path: Path, number: Number, *, lossy: bool = False
    ) -> None:
        self._contender = contender
        self._lossy = lossy
        self._path = path
        self._number = number
        self._llama: Any = None

    @property
    def contender(self) -> Contender:
        """Who it is."""
        return self._contender

    @property
    def lossy(self) -> bool:
        """Whether its output may differ from the target's distribution."""
        return self._lossy

    def renew(self) -> None:
        """Nothing is learnt from prompts."""

    def lane(
        self, batch: Sequence[Sequence[int]], params: Sequence[SamplingParams], seed: int
    ) -> Racer:
        """At the start of a batch of one prompt."""
        (prompt,), (asked,) = batch, params
        return Turn(len(prompt), partial(self._answer, prompt, asked, seed))

    def close(self) -> None:
        """Free its memory."""
        if self._llama is not None:
            self._llama.close()
            self._llama = None

    def _answer(self, prompt: Sequence[int], asked: SamplingParams, seed: int) -> Answer:
        depth = self._contender.num_speculative_tokens or 0
        llama = self._loaded(len(prompt) + asked.max_tokens + depth)
        return _generate(llama, prompt, asked, seed)

    def _loaded(self, tokens: int) -> Any:
        """A `Llama` with room for so many tokens."""
        if self._llama is not None and self._llama.n_ctx() >= tokens:
            return self._llama
        self.close()
        import llama_cpp
        from gguf import GGMLQuantizationType
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

        depth = self._contender.num_speculative_tokens
        # llama_cpp has no name for bfloat16.
        kind = int(GGMLQuantizationType[self._number.upper()])
        threads = torch.get_num_threads()
        self._llama = llama_cpp.Llama(
            str(self._path),
            n_ctx=-(-max(tokens, _ROOM) // _GRAIN) * _GRAIN,
            n_threads=threads,
            n_threads_batch=threads,
            type_k=kind,
            type_v=kind,
            # Its array of logits is too short for drafts otherwise.
            logits_all=depth is not None,
            draft_model=None if depth is None else LlamaPromptLookupDecoding(num_pred_tokens=depth),
            verbose=False,
        )
        return self._llama


def _generate(llama: Any, prompt: Sequence[int], asked: SamplingParams, seed: int) -> Answer:
    """One request, with nothing kept of an earlier one."""
    llama.reset()
    llama.set_seed(seed)
    with _timed(llama, "eval") as evals, _timed(llama, "draft_model") as drafts:
        start = perf_counter()
        tokens = llama.generate(
            list(prompt), temp=asked.temperature, top_k=0, top_p=1.0, min_p=0.0, typical_p=1.0
        )
        emitted = tuple(islice(tokens, asked.max_tokens))
        total_s = perf_counter() - start
    return Answer(emitted, evals, sum(each.seconds for each in drafts), total_s)


@contextmanager
def _timed(llama: Any, name: str) -> Iterator[list[Forward]]:
    """The calls of a part of a `Llama` meanwhile: of tokens, before which there are some."""
    part, own = getattr(llama, name), name in vars(llama)
    found: list[Forward] = []

    def timed(tokens: Sequence[int]) -> Any:
        before = llama.n_tokens
        start = perf_counter()
        made = part(tokens)
        found.append(Forward(before + 1, before + len(tokens), perf_counter() - start))
        return made

    if part is None:
        yield found
        return
    setattr(llama, name, timed)
    try:
        yield found
    finally:
        # A method that it kept as an attribute would keep it alive.
        if own:
            setattr(llama, name, part)
        else:
            delattr(llama, name)


def _line(error: Exception) -> str:
    told = " ".join(f"{error}".split())
    if isinstance(error, ModelError | OSError | ImportError) and told:
        return told
    return f"{type(error).__name__}: {told}"
