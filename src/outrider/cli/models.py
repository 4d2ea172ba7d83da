"""Loading what the flags name, and saying what is in effect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..config.params import WITH_MODEL, SamplingParams, SpeculativeConfig
from ..config.sources import is_gguf
from .options import Setup
from .terminal import messages, quiet, said

if TYPE_CHECKING:
    from rich.console import Console

    from ..engine.decoder import SpeculativeDecoder


_LOOKUP = ("prompt_lookup_max", "prompt_lookup_min")


@dataclass(frozen=True, slots=True)
class Loaded:
    """Models ready to decode.

    Attributes:
        target: the target model.
        drafter: what proposes tokens; None with the method "none".
        tokenizer: of both.
        facts: what was loaded, by name, for a report.
    """

    target: Any
    drafter: Any
    tokenizer: Any
    facts: dict[str, Any]

    def settings(self, params: SamplingParams, config: SpeculativeConfig) -> dict[str, Any]:
        """Every setting in effect, as JSON takes it."""
        return self.facts | {"sampling": asdict(params), "speculation": asdict(config)}

    def decoder(
        self, config: SpeculativeConfig, on_round: Callable[[Any], None] | None = None
    ) -> SpeculativeDecoder:
        """Make a decoder of them."""
        from ..engine.decoder import SpeculativeDecoder

        return SpeculativeDecoder(
            self.target, self.drafter, tokenizer=self.tokenizer, config=config, on_round=on_round
        )


def load(setup: Setup, console: Console, **more: Any) -> Loaded:
    """Load the models that the flags name, with a spinner on `console` if it is a terminal.

    `more` goes to `outrider.load`.

    Raises:
        ModelError: one cannot be loaded.
        InvalidConfigError: a value does not suit the model.
    """
    models, drafting, method = setup.models, setup.drafting, setup.method
    with console.status(f"loading {models.target}") as status, said(status):
        import torch

        from .. import NgramDrafter
        from ..engine.loading import load as load_pair
        from ..engine.methods import make_drafter

        if not (is_gguf(models.target) and is_gguf(models.draft or models.target)):
            quiet()
        asked = asdict(drafting)
        lookup = {name: asked[name] for name in _LOOKUP if asked[name] is not None}
        # A bad look-up is refused before the models are loaded.
        ngram = NgramDrafter(**lookup)
        pair = load_pair(
            models.target,
            models.draft,
            runtime=models.runtime,
            device=models.device,
            dtype=models.dtype or "auto",
            weights=models.weights,
            kv_cache_memory=models.kv_cache_memory,
            **more,
        )
        drafter = make_drafter(
            method, pair.target, pair.model_drafter, ngram=ngram, exit_layers=drafting.exit_layers
        )
    facts = {
        "outrider": __version__,
        "target": models.target,
        "method": method,
        "draft": (models.draft or models.target) if method in WITH_MODEL else None,
        **{name: getattr(ngram, name) if method == "ngram" else None for name in _LOOKUP},
        "exit_layers": drafting.exit_layers,
        "threads": torch.get_num_threads(),
        "device": str(pair.target.device),
        "runtime": pair.target.name,
        "dtype": pair.target.precision,
    }
    return Loaded(pair.target, drafter, pair.tokenizer, facts)


def load_decoder(setup: Setup, max_sequences: int = 8) -> SpeculativeDecoder:
    """Load the models that the flags name, and make a decoder of them; see `load`."""
    return load(setup, messages(), max_sequences=max_sequences).decoder(setup.config)


@contextmanager
def traced(
    trace: str | None, settings: dict[str, Any], config: SpeculativeConfig
) -> Iterator[Callable[[Any], None] | None]:
    """Open the trace, if one was asked for, and give what a decoder's `on_round` is to be."""
    if trace is None:
        yield None
        return
    from ..engine.trace import TraceWriter

    with TraceWriter(Path(trace), settings, lossy=config.lossy) as writer:
        yield writer.write
