"""`outrider run-batch`: answer a file of requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter
from cyclopts.types import PositiveInt

from ..config.params import SpeculativeConfig
from ..errors import InvalidConfigError, missing
from .files import check_file
from .flags import plain
from .options import Drafting, Models, Shown, choose_method, titled
from .serve import SPECULATION

if TYPE_CHECKING:
    from ..engine.decoder import SpeculativeDecoder
    from ..server.batch import Line

EXAMPLES = """Examples:

  outrider run-batch -i in.jsonl -o out.jsonl

  outrider run-batch -i in.jsonl -o out.jsonl --model MODEL --draft MODEL --ray --actors 4

A line: {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x = "}}
"""

app = App(name="run-batch", help_epilogue=EXAMPLES)

Report = Callable[["Line", int], None]


@dataclass(frozen=True, kw_only=True)
class Files:
    """What is read and written.

    Attributes:
        input_file: requests in OpenAI's batch format, a line of JSON each.
        output_file: the answers, in the same order; a file that a run left unfinished is gone on
            with.
    """

    input_file: Annotated[str, Parameter(alias="-i")]
    output_file: Annotated[str, Parameter(alias="-o")]

    def __post_init__(self) -> None:
        if not Path(self.input_file).is_file():
            raise InvalidConfigError("--input-file", self.input_file, "an existing file")
        if Path(self.output_file).resolve() == Path(self.input_file).resolve():
            expected = "another file than --input-file"
            raise InvalidConfigError("--output-file", self.output_file, expected)
        check_file("--output-file", self.output_file)


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much is done at once, and where.

    Attributes:
        max_sequences: how many sequences an engine decodes together.
        ray: spread the lines over the actors of a Ray cluster: the one of RAY_ADDRESS, else a
            local one.
        actors: with --ray: how many engines.
    """

    max_sequences: PositiveInt = 16
    ray: bool = False
    actors: PositiveInt | None = None

    def __post_init__(self) -> None:
        if self.actors is not None and not self.ray:
            raise InvalidConfigError("--actors", self.actors, "none without --ray")


@app.default
def run_batch(
    *,
    files: Annotated[Files, titled("Files")],
    model: str | None = None,
    models: Annotated[Models, titled("Models")] = Models(),
    scale: Annotated[Scale, titled("Scale")] = Scale(),
    drafting: Annotated[Drafting, titled("Drafting")] = Drafting(),
    speculation: Annotated[Any, titled("Speculation")] = SPECULATION,
    shown: Annotated[Shown, titled("Output")] = Shown(),  # noqa: ARG001 - read by `main`
) -> int:
    """Answer a file of requests in OpenAI's batch format.

    Args:
        model: the target model; the same as --target.
    """
    if model is not None:
        models = replace(models, target=model)
    config: SpeculativeConfig = plain(SpeculativeConfig, speculation)
    method = choose_method(models, drafting, config)
    with missing("server"):
        import_module("pydantic")  # before the models are loaded

    from rich.console import Console

    from ..server.batch import lines_of
    from .models import load_decoder
    from .terminal import progress

    console = Console(stderr=True)
    source, target = Path(files.input_file), Path(files.output_file)
    total = sum(1 for _ in lines_of(source))
    failed: list[int] = []

    def report(line: Line, status: int) -> None:
        advance(line.number, total, "")
        if status != 200:
            failed.append(line.number)
            why = f": {line.wrong}" if line.wrong else ""
            console.print(f"line {line.number} failed with status {status}{why}", markup=False)

    make = partial(load_decoder, models, drafting, method, config, scale.max_sequences)
    answer = _on_ray if scale.ray else _here
    with progress(console, "answering") as advance:
        before, now = answer(make, source, target, models.target, scale, report)
    console.print(f"{now} of {total} lines answered, {before} before, {len(failed)} failed")
    return 1 if failed else 0


def _here(
    make: Callable[[], SpeculativeDecoder],
    source: Path,
    target: Path,
    model: str,
    scale: Scale,
    report: Report,
) -> tuple[int, int]:
    from ..server.batch import run_batch as answered
    from ..server.requests import Requests, Terms, fingerprint_of
    from ..server.service import Service

    decoder = make()
    service = Service(decoder, max_waiting=2**20, timeout_s=float("inf"))
    requests = Requests(service, Terms(model, frozenset(), fingerprint_of(decoder)))
    together = 2 * scale.max_sequences
    return asyncio.run(answered(requests, source, target, together=together, report=report))


def _on_ray(
    make: Callable[[], SpeculativeDecoder],
    source: Path,
    target: Path,
    model: str,
    scale: Scale,
    report: Report,
) -> tuple[int, int]:
    from ..integrations.ray import run_batch as answered

    return answered(
        make,
        source,
        target,
        model=model,
        actors=scale.actors or 1,
        together=scale.max_sequences,
        report=report,
    )
