"""`outrider serve`: an OpenAI-compatible server with a live page."""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal

from cyclopts import App
from cyclopts.types import Port, PositiveFloat, PositiveInt

from ..errors import missing
from .options import Drafting, Models, Setup, Shown, group, speculation_flags, titled

EXAMPLES = """Examples:

  outrider serve demo

  outrider serve MODEL --draft MODEL --port 8001 --api-key "$KEY"

  curl localhost:8000/v1/completions -d '{"prompt": "def fib(n):", "max_tokens": 32}'
"""

app = App(name="serve", help_epilogue=EXAMPLES, group_parameters=group("Server"))

SPECULATION = speculation_flags(on_draft_error="disable")


@app.default
def serve(
    model: str | None = None,
    /,
    *,
    models: Annotated[Models, titled("Models")] = Models(),
    host: str = "127.0.0.1",
    port: Port = 8000,
    api_key: tuple[str, ...] = (),
    allow_origin: tuple[str, ...] = (),
    served_model_name: str | None = None,
    max_sequences: PositiveInt = 16,
    max_waiting: PositiveInt = 128,
    prefill_chunk: PositiveInt = 512,
    timeout: PositiveFloat = 600.0,
    grace: PositiveFloat = 30.0,
    max_body: PositiveInt = 2**20,
    speculation_metrics: Literal["none", "summary", "detailed"] = "none",
    vllm_metrics: bool = False,
    drafting: Annotated[Drafting, titled("Drafting")] = Drafting(),
    speculation: Annotated[Any, titled("Speculation")] = SPECULATION,
    shown: Annotated[Shown, titled("Output")] = Shown(),  # noqa: ARG001 - read by `main`
) -> None:
    """Answer clients of OpenAI's API, and show speculation on a page.

    Args:
        model: the target model; the same as --target.
        host: the address that it listens on.
        port: likewise.
        api_key: keys of which a client has to send one, also from OUTRIDER_API_KEY; may be
            repeated.
        allow_origin: origins of pages that may ask from a browser, such as https://chat.example,
            or * for all; may be repeated.
        served_model_name: what clients call the model (default: its name here).
        max_sequences: how many sequences are decoded together.
        max_waiting: how many more may wait; others are refused with status 429.
        prefill_chunk: tokens of new prompts in a step, about; longer prompts are prefilled in
            parts.
        timeout: seconds that a request may take, waiting included.
        grace: seconds that running requests have to end after SIGTERM or Ctrl-C.
        max_body: bytes that a request may have.
        speculation_metrics: figures about speculation in responses to requests that do not say.
        vllm_metrics: show the figures of /metrics under vLLM's names as well.
    """
    setup = Setup.of(models, drafting, speculation, model)
    with missing("server"):
        from ..server.access import AuthLimits
        from ..server.app import make_app
        from ..server.metrics import Metrics
        from ..server.requests import Requests
        from ..server.service import Service
        from ..server.serving import run
    from .models import load_decoder

    own = os.environ.get("OUTRIDER_API_KEY")
    access = AuthLimits((*api_key, own) if own else api_key, max_body, origins=allow_origin)
    service = Service(
        load_decoder(setup, max_sequences),
        max_waiting=max_waiting,
        timeout_s=timeout,
        prefill_chunk=prefill_chunk,
    )
    name = served_model_name or setup.models.target
    requests = Requests(service, (name, setup.models.target), speculation_metrics)
    metrics = Metrics(service, name, vllm_names=vllm_metrics)
    run(make_app(requests, metrics, access), requests, host, port, grace)
