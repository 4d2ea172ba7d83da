"""`outrider inspect`: what a draft head is, what looks wrong with it, how much of it is kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App

from ..config.sources import Dtype
from ..config.validation import integer
from ..errors import InvalidConfigError
from .options import Output, titled

if TYPE_CHECKING:
    from ..drafters.heads.inspect import Reading

app = App(name="inspect")

CLEAR = 0.02
"""Another reading is named where so much more is kept by it."""


@app.default
def inspect(
    head: str,
    /,
    *,
    target: str | None = None,
    measure: tuple[Path, ...] = (),
    depth: int = 4,
    runtime: Literal["transformers", "openvino"] = "transformers",
    dtype: Dtype | None = None,
    output: Annotated[Output, titled("Output")] = Output(),
) -> int:
    """Say what a draft head's checkpoint is, what it needs, and what looks wrong with it.

    Args:
        head: a folder, or a hub id.
        target: the model that it is to draft for: a folder or a hub id.
        measure: texts that the target would write: files as for outrider tune --prompts. Of drafts
            at 64 places of them it is said how likely each token is kept, if those before it are
            the text's, as configured and under other readings of the configuration, so that a wrong
            one is found.
        depth: how many tokens are drafted to measure.
        runtime: what computes the target.
        dtype: type of the target's weights (default: as saved).
    """
    from ..drafters.heads.checkpoint import head_folder, read_config, read_tensors
    from ..drafters.heads.inspect import measured
    from ..drafters.heads.loading import misfits
    from .terminal import messages, progress, quiet

    integer("depth", depth, 1)
    if measure and target is None:
        given = ",".join(map(str, measure))
        raise InvalidConfigError("--measure", given, "--target MODEL beside it")
    quiet()
    loaded: Any = None
    with progress(messages(), "loading") as advance:
        advance(0, 1 if target is None else 2, head)
        folder = head_folder(head)
        if folder is None and not Path(head).is_dir():
            expected = "an existing folder, or a hub id that can be reached, of a draft head"
            raise InvalidConfigError("HEAD", head, expected)
        folder = folder or Path(head)
        config = read_config(folder)  # says what is wrong with a folder that is none
        if target is not None:
            from .. import load

            advance(1, 2, target)
            loaded = load(target, runtime=runtime, dtype=dtype or "auto")
    facts = {
        "kind": config.kind,
        "layers": config.decoder.num_hidden_layers,
        "hidden size": config.decoder.hidden_size,
        "drafts": f"{config.vocab_size} of {config.decoder.vocab_size} tokens",
        "states of layers": ", ".join(map(str, config.target_layers)) or "the usual ones",
        "tokens a forward": config.most,
        "made for": _made_for(config.given),
    }
    wrong = list(misfits(config, read_tensors(folder), loaded and loaded.target.hf_model))
    readings: list[Reading] = []
    if measure and loaded is not None and not wrong:
        from ..bench.prompt_files import read_prompts

        texts = [each.token_ids for each in read_prompts(measure, loaded.tokenizer).prompts]
        with progress(messages(), "measuring") as advance:
            for reading in measured(folder, loaded.target, texts, depth):
                readings.append(reading)
                advance(len(readings), len(readings) + 1, reading.said or "as configured")
    elif measure:
        wrong += ["not measured: mend this first"]
    wrong += _better(readings)
    if output.as_json:
        kept = [each._asdict() for each in readings]
        print(json.dumps({"head": str(folder), "facts": facts, "problems": wrong, "kept": kept}))
    else:
        _show(facts, wrong, readings, output.color)
    return 1 if wrong else 0


def _made_for(given: Mapping[str, Any]) -> str:
    """Name the model that a configuration of speculators says that it is for."""
    verifier = (given.get("speculators_config") or {}).get("verifier") or {}
    return verifier.get("name_or_path") or "not said"


def _better(readings: list[Reading]) -> list[str]:
    """Name the reading by which most is kept, if it is not the configured one."""
    if not readings:
        return []
    depth = min(len(each.kept) for each in readings)
    best = max(readings, key=lambda each: sum(each.kept[:depth]))
    if sum(best.kept[:depth]) < sum(readings[0].kept[:depth]) + CLEAR * depth:
        return []
    shares = [" ".join(f"{kept:.0%}" for kept in each.kept[:depth]) for each in (best, readings[0])]
    return [f"the configuration is wrong: by {best.said} {shares[0]} is kept, not {shares[1]}"]


def _show(facts: dict[str, Any], wrong: list[str], readings: list[Reading], color: str) -> None:
    """Print what is known."""
    from rich.text import Text

    from ..bench.tables import table
    from .terminal import output

    console = output(color)
    for name, value in facts.items():
        console.print(Text(f"{name}: {value}"))
    if readings:
        depth = len(readings[0].kept)
        shown = table("reading", right=[f"token {place}" for place in range(1, depth + 1)])
        for each in readings:
            shown.add_row(each.said or "as configured", *(f"{kept:.0%}" for kept in each.kept))
        console.print(shown)
    for line in wrong:
        console.print(Text(line, "bold red"))
    if not wrong:
        console.print(Text("nothing looks wrong", "bold"))
