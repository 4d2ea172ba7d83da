"""Loading what the flags name, and saying what is in effect."""

from __future__ import annotations

import logging
from argparse import Namespace
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..config.params import SamplingParams, SpeculativeConfig
from ..errors import InvalidConfigError
from .options import speculation_method

if TYPE_CHECKING:
    from rich.console import Console

    from ..engine.loading import Pair
    from ..runtimes.transformers.model import TransformersModel
    from ..types.protocols import Drafter


@dataclass(frozen=True, slots=True)
class Loaded:
    """Models ready to decode.

    Attributes:
        target: the target model.
        drafter: what proposes tokens, None with the method "none".
        tokenizer: of both.
        facts: what was loaded, by name, for a report.
        compile_s: seconds that compiling "target" and "draft" took, None where one runs eagerly;
            empty if neither was to be compiled.
    """

    target: TransformersModel
    drafter: Drafter | None
    tokenizer: Any
    facts: dict[str, Any]
    compile_s: dict[str, float | None]

    def compiling(self) -> dict[str, Any]:
        """What compiling took, as a part of a report's timing."""
        return {"compile_s": self.compile_s} if self.compile_s else {}

    def compiling_line(self) -> tuple[str, ...]:
        """What compiling took, in a line, if it was asked for."""
        told = [
            f"{name} {'not compiled: runs eagerly' if took is None else f'{took:.1f} s'}"
            for name, took in self.compile_s.items()
        ]
        return (f"compile time, before the first token: {', '.join(told)}",) if told else ()

    def settings(self, params: SamplingParams, config: SpeculativeConfig) -> dict[str, Any]:
        """Every setting in effect, as JSON takes it."""
        return self.facts | {"sampling": asdict(params), "speculation": asdict(config)}

    def headline(self, config: SpeculativeConfig) -> tuple[str, ...]:
        """What decodes, in a few short lines."""
        facts = self.facts
        threads = f" (threads: {facts['threads']})" if facts["device"] == "cpu" else ""
        return (
            f"outrider {facts['outrider']}: plain against speculative decoding, the same engine",
            f"target {facts['target']}{_size(self.target)}, {facts['device']}{threads}, "
            f"{facts['dtype']}",
            f"draft {self._source()}, up to {config.deepest} tokens a round, "
            f"{config.verification} verification",
            *self.compiling_line(),
        )

    def _source(self) -> str:
        from ..drafters.hybrid import HybridDrafter
        from ..drafters.model import ModelDrafter
        from ..drafters.vocabulary.drafter import VocabularyDrafter

        if self.facts["exit_layers"]:
            return f"the target's first {self.facts['exit_layers']} layers"
        looked_up = {"suffix": "suffix lookup", "hybrid": "suffix lookup and "}
        source = looked_up.get(self.facts["method"], "prompt lookup")
        drafter: object = self.drafter
        if isinstance(drafter, HybridDrafter):
            drafter = drafter.drafter
        if not isinstance(drafter, ModelDrafter | VocabularyDrafter):
            return source
        model = f"{self.facts['draft']}{_size(drafter.model)}"
        return f"{source}{model}" if self.facts["method"] == "hybrid" else model


def load(args: Namespace, console: Console, **more: Any) -> Loaded:
    """Load the models that the flags name, with a spinner on `console` if it is a terminal.

    `more` goes to `outrider.load`.
    """
    method = speculation_method(args)
    doing = "loading and compiling" if args.compile else "loading"
    with console.status(f"{doing} {args.target}"):
        import torch
        import transformers

        from ..drafters.ngram import NgramDrafter
        from ..engine.loading import load as load_pair

        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        lookup = {
            name: value
            for name, value in vars(args).items()
            if name in ("prompt_lookup_max", "prompt_lookup_min") and value is not None
        }
        ngram = NgramDrafter(**lookup)
        pair = load_pair(
            args.target,
            args.draft,
            device=args.device,
            dtype=args.dtype,
            compile=args.compile,
            **more,
        )
        drafter = ngram if method == "ngram" else _drafter(method, pair, args.exit_layers)
    facts = {
        "outrider": __version__,
        "target": args.target,
        "method": method,
        "draft": (args.draft or args.target) if method in ("draft_model", "hybrid") else None,
        "prompt_lookup_max": ngram.prompt_lookup_max if method == "ngram" else None,
        "prompt_lookup_min": ngram.prompt_lookup_min if method == "ngram" else None,
        "exit_layers": args.exit_layers,
        "threads": torch.get_num_threads(),
        "device": str(pair.target.device),
        "dtype": str(pair.target.hf_model.dtype).removeprefix("torch."),
        "compile": args.compile,
    }
    seconds = {} if not args.compile else _compile_s(pair)
    return Loaded(pair.target, drafter, pair.tokenizer, facts, seconds)


def _compile_s(pair: Pair) -> dict[str, float | None]:
    """Seconds that compiling each model took, None where it runs eagerly."""
    from ..runtimes.transformers.model import TransformersModel

    seconds = {"target": pair.target.compile_s}
    drafter = pair.model_drafter
    if drafter is not None and isinstance(drafter.model, TransformersModel):
        seconds["draft"] = drafter.model.compile_s
    return seconds


def _drafter(method: str, pair: Pair, exit_layers: int | None) -> Drafter | None:
    """What proposes tokens."""
    from ..drafters.early_exit import EarlyExitDrafter
    from ..drafters.prediction import PredictionDrafter
    from ..drafters.suffix.drafter import SuffixDrafter

    if method == "suffix":
        return SuffixDrafter()
    if method == "prediction":
        return PredictionDrafter()
    if exit_layers is not None:
        try:
            return EarlyExitDrafter(pair.target, exit_layers)
        except InvalidConfigError as error:
            raise InvalidConfigError("--exit-layers", exit_layers, error.expected) from None
    with_model = {"draft_model": pair.model_drafter, "hybrid": pair.drafter}
    return with_model.get(method)


def _size(model: Any) -> str:
    from ..runtimes.transformers.model import TransformersModel

    if not isinstance(model, TransformersModel):
        return ""
    return f" ({model.hf_model.num_parameters() / 1e6:,.1f}M parameters)"
