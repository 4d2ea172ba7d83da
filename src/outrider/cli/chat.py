"""`outrider chat`: talk to a model in the terminal."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from ..config.params import SamplingParams
from ..errors import InvalidConfigError, OutriderError
from ..server.conversation import written
from .flags import flags_of, plain
from .options import SPECULATION, Drafting, Models, Setup, Shown, titled

if TYPE_CHECKING:
    from ..engine.decoder import SpeculativeDecoder

COMMANDS = """In the conversation:

  /stats    figures about speculation so far

  /new      forget the conversation

  /exit     end, as the end of the input does; Ctrl-C ends an answer
"""

app = App(name="chat", help_epilogue=COMMANDS)

SAMPLING = flags_of(
    SamplingParams,
    {
        **dict.fromkeys(("top_p", "top_k", "min_p", "repetition_penalty", "seed")),
        "max_tokens": Parameter(alias="-m"),
        "temperature": Parameter(alias="--temp"),
    },
    {"max_tokens": 512, "temperature": 0.7},
)()


@app.default
def chat(
    model: str | None = None,
    /,
    *,
    system: str | None = None,
    models: Annotated[Models, titled("Models")] = Models(),
    sampling: Annotated[Any, titled("Sampling")] = SAMPLING,
    drafting: Annotated[Drafting, titled("Drafting")] = Drafting(),
    speculation: Annotated[Any, titled("Speculation")] = SPECULATION,
    shown: Annotated[Shown, titled("Output")] = Shown(),
) -> None:
    """Talk to a model: accepted drafts are green, corrections yellow.

    Args:
        model: the target model, the same as --target; one with a chat template, which demo has
            not.
        system: the system message that begins the conversation.
    """
    setup = Setup.of(models, drafting, speculation, model)
    if setup.models.target == "demo":
        expected = "a model that has one: outrider chat MODEL, a folder, a GGUF file or a hub id"
        given = "the demo pair has no chat template"
        raise InvalidConfigError("MODEL", "demo", expected, given=given)
    params: SamplingParams = plain(SamplingParams, sampling)

    from . import terminal
    from .models import load_decoder

    decoder = load_decoder(setup)
    if getattr(decoder.tokenizer, "chat_template", None) is None:
        expected = "a model with a chat template; outrider generate continues plain text"
        raise InvalidConfigError("--target", setup.models.target, expected)
    colors = terminal.colored(terminal.output(shown.color))
    converse(decoder, params, system, colors=colors)


def converse(
    decoder: SpeculativeDecoder, params: SamplingParams, system: str | None, *, colors: bool
) -> None:
    """Read and answer until the input ends, with a model that has a chat template."""
    beginning = [] if system is None else [{"role": "system", "content": system}]
    messages = beginning
    with suppress(EOFError):
        while (said := input("> " if sys.stdin.isatty() else "").strip()) != "/exit":
            if said == "/new":
                messages = beginning
            elif said == "/stats":
                print(decoder.metrics, file=sys.stderr)
            elif said.startswith("/"):
                print("commands are /stats, /new and /exit", file=sys.stderr)
            elif said:
                asked = [*messages, {"role": "user", "content": said}]
                try:
                    text = _answer(decoder, params, asked, colors=colors)
                except OutriderError as error:  # The message is forgotten.
                    print(f"outrider: {error}; /new begins anew", file=sys.stderr)
                else:
                    messages = [*asked, {"role": "assistant", "content": text}]


def _answer(
    decoder: SpeculativeDecoder, params: SamplingParams, messages: list[Any], *, colors: bool
) -> str:
    """Print an answer, and return it; one that was interrupted as far as it got."""
    from .terminal import painted

    text = ""
    with suppress(KeyboardInterrupt):
        prompt = written(decoder.tokenizer, messages)
        if decoder.max_length is not None:
            room = decoder.max_length - len(decoder.tokens_of(prompt))
            params = replace(params, max_tokens=max(1, min(params.max_tokens, room)))
        for event in decoder.stream(prompt, params):
            text += event.text or ""
            print(painted(event.text or "", event.origin, colors), end="", flush=True)
    print(flush=True)
    return text
