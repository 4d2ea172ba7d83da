"""`outrider run-batch`: answer a file of requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter
from cyclopts.types import PositiveInt

from ..errors import InvalidConfigError, missing
from .files import check_file
from .options import Drafting, Models, Setup, Shown, titled
from .serve import SPECULATION

if TYPE_CHECKING:
    from ..engine.decoder import SpeculativeDecoder
    from ..server.batch import Answering, Line

EXAMPLES = """Examples:

  outrider run-batch -i in.jsonl -o out.jsonl

  outrider run-batch -i in.jsonl -o out.jsonl --model MODEL --draft MODEL --ray --actors 4

A line: {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x = "}}
"""

app = App(name="run-batch", help_epilogue=EXAMPLES)


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

    def answering(self, make: Callable[[], SpeculativeDecoder], model: str) -> Answering:
        """Return what answers lines, with decoders that `make` loads."""
        if self.ray:
            from ..integrations.ray import on_ray

            return on_ray(make, model, actors=self.actors or 1, together=self.max_sequences)
        from ..server.batch import in_process

        return in_process(make, model, together=2 * self.max_sequences)


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
    setup = Setup.of(model, models, drafting, speculation)
    with missing("server"):
        import_module("pydantic")  # before the models are loaded

    from rich.console import Console

    from ..server.batch import answer_file, lines_of
    from .models import load_decoder
    from .terminal import progress

    console = Console(stderr=True)
    source, target = Path(files.input_file), Path(files.output_file)
    total = sum(1 for _ in lines_of(source))

    def report(line: Line, error: str | None) -> None:
        advance(line.number, total, "")
        if error is not None:
            console.print(error, markup=False)

    name, make = setup.models.target, partial(load_decoder, setup, scale.max_sequences)
    with progress(console, "answering") as advance:
        found = answer_file(source, target, scale.answering(make, name), report)
    console.print(
        f"{total} lines: {found.now} answered now, {found.before} before; {found.failed} of them "
        "failed" + ("; send those again in a file of their own" if found.failed else "")
    )
    return 1 if found.failed else 0
