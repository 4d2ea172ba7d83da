"""`outrider run-batch`: answer a file of requests."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter
from cyclopts.types import PositiveInt

from ..config.validation import unreadable
from ..errors import InvalidConfigError, missing
from .files import check_file
from .options import Drafting, Models, Setup, Shown, group, titled
from .serve import SPECULATION

EXAMPLES = """Examples:

  outrider run-batch -i in.jsonl -o out.jsonl

  outrider run-batch -i in.jsonl -o out.jsonl --model MODEL --draft MODEL --ray --actors 4

A line: {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x = "}}
"""

FILES = group("Files", -1)
SCALE = group("Scale")

app = App(name="run-batch", help_epilogue=EXAMPLES)


@app.default
def run_batch(
    *,
    input_file: Annotated[str, Parameter(alias="-i", group=FILES)],
    output_file: Annotated[str, Parameter(alias="-o", group=FILES)],
    model: str | None = None,
    models: Annotated[Models, titled("Models")] = Models(),
    max_sequences: Annotated[PositiveInt, Parameter(group=SCALE)] = 16,
    ray: Annotated[bool, Parameter(group=SCALE)] = False,
    actors: Annotated[PositiveInt | None, Parameter(group=SCALE)] = None,
    drafting: Annotated[Drafting, titled("Drafting")] = Drafting(),
    speculation: Annotated[Any, titled("Speculation")] = SPECULATION,
    shown: Annotated[Shown, titled("Output")] = Shown(),  # noqa: ARG001 - read by `main`
) -> int:
    """Answer a file of requests in OpenAI's batch format.

    Args:
        input_file: requests in OpenAI's batch format, a line of JSON each.
        output_file: the answers, in the same order; a file that a run left unfinished is gone on
            with.
        model: the target model; the same as --target.
        max_sequences: how many sequences an engine decodes together.
        ray: spread the lines over the actors of a Ray cluster: the one of RAY_ADDRESS, else a
            local one.
        actors: with --ray: how many engines.
    """
    setup = Setup.of(models, drafting, speculation, model)
    source, target = Path(input_file), Path(output_file)
    if not source.is_file():
        raise unreadable("--input-file", source, "a file of requests, a line of JSON each")
    if target.resolve() == source.resolve():
        raise InvalidConfigError("--output-file", output_file, "another file than --input-file")
    check_file("--output-file", output_file)
    if actors is not None and not ray:
        raise InvalidConfigError("--actors", actors, "none without --ray")
    with missing("server"):
        from ..server.batch import answer_file, counted, in_process
    from .models import load_decoder
    from .terminal import messages, progress

    console = messages()
    total = counted(source)

    def report(done: int, error: str | None) -> None:
        advance(done, total, f"{10 * done // total}0%")
        if error is not None:
            console.print(error, markup=False)

    name, make = setup.models.target, partial(load_decoder, setup, max_sequences)
    if ray:
        from ..integrations.ray import on_ray

        answering = on_ray(make, name, actors=actors or 1, together=max_sequences)
    else:
        answering = in_process(make, name, together=2 * max_sequences)
    with progress(console, "answering") as advance:
        found = answer_file(source, target, answering, report)
    console.print(
        f"{total} lines: {found.now} answered now, {found.before} before; {found.failed} of them "
        "failed" + ("; send those again in a file of their own" if found.failed else "")
    )
    return 1 if found.failed else 0
