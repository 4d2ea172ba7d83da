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
    """

    target: TransformersModel
    drafter: Drafter | None
    tokenizer: Any
    facts: dict[str, Any]

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
    with console.status(f"loading {args.target}"):
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
    }
    return Loaded(pair.target, drafter, pair.tokenizer, facts)


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
