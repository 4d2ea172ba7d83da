"""Batches over the actors of a Ray cluster, and the server as a Ray Serve application.

Every actor has an engine of its own. A seed gives the same text on all of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Any

from ..engine.decoder import SpeculativeDecoder
from ..errors import missing
from ..server.access import AuthLimits
from ..server.app import make_app
from ..server.batch import Answering, Line, batch_requests, begun
from ..server.metrics import Metrics
from ..server.requests import Requests
from ..server.service import Service

with missing("ray"):
    import ray.data

if TYPE_CHECKING:
    from fastapi import FastAPI
    from ray import serve

MakeDecoder = Callable[[], SpeculativeDecoder]
"""Makes a decoder, on the actor that it is sent to."""

_PART = 4096
"""Lines of a batch that are handed to the cluster at once."""


class BatchWorker:
    """An actor that answers lines of a batch, with a decoder that `make` makes for `model`."""

    def __init__(self, make: MakeDecoder, model: str) -> None:
        self._requests = batch_requests(make(), model)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Answer the lines of `batch["line"]`, JSON of `Line` each."""
        answers = [begun(self._requests, Line(**json.loads(each))) for each in batch["line"]]
        return {"answer": [json.dumps(answer()) for answer in answers]}


def on_ray(make: MakeDecoder, model: str, *, actors: int, together: int) -> Answering:
    """Answer lines of a batch on a Ray cluster; for `outrider.server.batch.answer_file`.

    What an actor that dies was working on is done again by another one.

    Args:
        make: makes a decoder on each actor.
        model: what the decoders' model is called.
        actors: how many engines work at once.
        together: how many lines each works on at once.
    """

    def answering(lines: Iterator[Line]) -> Iterator[dict[str, Any]]:
        context = ray.data.DataContext.get_current()
        context.execution_options.preserve_order = True
        while part := list(islice(lines, _PART)):
            rows = ray.data.from_items([{"line": json.dumps(asdict(line))} for line in part])
            answers = rows.map_batches(
                BatchWorker,
                fn_constructor_args=(make, model),
                batch_size=together,
                compute=ray.data.ActorPoolStrategy(size=min(actors, len(part))),
            )
            for row in answers.iter_rows():
                yield json.loads(row["answer"])

    return answering


def application(
    make: MakeDecoder, model: str, access: AuthLimits | None = None, **options: Any
) -> serve.Application:
    """Return the server as an application for `ray.serve.run`.

    Args:
        make: makes a decoder in each replica.
        model: what clients call its model.
        access: who may ask, and how much.
        options: of the deployment, such as `num_replicas`.
    """
    with missing("ray"):
        from ray import serve

    def build() -> FastAPI:
        service = Service(make())
        return make_app(Requests(service, [model]), Metrics(service, model), access)

    class Outrider:
        """One replica: an engine behind the application's routes."""

    return serve.deployment(name="Outrider", **options)(serve.ingress(build)(Outrider)).bind()
