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
        model: the target model; the same as --target.
        system: the system message that begins the conversation.
    """
    setup = Setup.of(model, models, drafting, speculation)
    params: SamplingParams = plain(SamplingParams, sampling)

    from . import terminal
    from .models import load_decoder

    decoder = load_decoder(setup)
    if getattr(decoder.tokenizer, "chat_template", None) is None:
        expected = "a model with a chat template; outrider generate continues plain text"
        raise InvalidConfigError("--target", setup.models.target, expected)
    colors = terminal.colored(terminal.output(shown.color))
    Conversation(decoder, params, system, colors=colors).run()


class Conversation:
    """A conversation in the terminal with a model that has a chat template."""

    def __init__(
        self, decoder: SpeculativeDecoder, params: SamplingParams, system: str | None, colors: bool
    ) -> None:
        self._decoder = decoder
        self._params = params
        self._beginning = [] if system is None else [{"role": "system", "content": system}]
        self._colors = colors
        self._messages = list(self._beginning)

    def run(self) -> None:
        """Read and answer until the input ends."""
        with suppress(EOFError):
            while (said := input("> " if sys.stdin.isatty() else "").strip()) != "/exit":
                if said == "/new":
                    self._messages = list(self._beginning)
                elif said == "/stats":
                    print(self._decoder.metrics, file=sys.stderr)
                elif said.startswith("/"):
                    print("commands are /stats, /new and /exit", file=sys.stderr)
                elif said:
                    self._answer(said)

    def _answer(self, said: str) -> None:
        """Answer, and remember both; an answer that was interrupted is remembered as far as it got.

        A message that cannot be answered is forgotten.
        """
        from .terminal import painted

        messages = [*self._messages, {"role": "user", "content": said}]
        text = ""
        try:
            prompt = written(self._decoder.tokenizer, messages)
            for event in self._decoder.stream(prompt, self._fitting(prompt)):
                text += event.text or ""
                print(painted(event.text or "", event.origin, self._colors), end="", flush=True)
        except KeyboardInterrupt:
            pass
        except OutriderError as error:
            print(f"outrider: {error}; /new begins anew", file=sys.stderr)
            return
        print(flush=True)
        self._messages = [*messages, {"role": "assistant", "content": text}]

    def _fitting(self, prompt: str) -> SamplingParams:
        """Return the parameters, with no more tokens than the context has room for."""
        most = self._decoder.max_length
        if most is None:
            return self._params
        room = most - len(self._decoder.tokens_of(prompt))
        return replace(self._params, max_tokens=max(1, min(self._params.max_tokens, room)))
