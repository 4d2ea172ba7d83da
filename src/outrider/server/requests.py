"""From a body to an answer that can be submitted: read it and check it."""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any

from .. import __version__
from ..engine.decoder import SpeculativeDecoder
from ..errors import ContextLengthError, EmptyPrefixError, InvalidConfigError
from ..types.records import SequenceState
from .conversation import written
from .failures import UnknownModelError
from .fields import read_body
from .parameters import Form, asked_form, named_as_asked, sampling_params
from .replies import Reply
from .schema import Body, ChatBody, CompletionBody, Speculation, TokenizeBody
from .service import Service
from .tokens import TokenTexts

ROUTES: dict[str, type[Body]] = {
    "/v1/completions": CompletionBody,
    "/v1/chat/completions": ChatBody,
}
"""What each route takes."""


_MOST_CHOICES = 128
"""The largest n, and the most prompts of a request together."""


class Requests:
    """Answers bodies with a service.

    Args:
        service: decodes.
        names: what its model is called; the first is its name.
        figures: about speculation, where a request does not say.

    Attributes:
        model: the name of the model.
    """

    def __init__(
        self, service: Service, names: Sequence[str], figures: Speculation = "none"
    ) -> None:
        self.service = service
        self.model = names[0]
        self._fingerprint = _fingerprint(service.decoder)
        self._names = names
        self._figures = figures

    @cached_property
    def _texts(self) -> TokenTexts:
        """What tokens read as; to look at a large vocabulary takes a second."""
        return TokenTexts(self.service.decoder.tokenizer)

    def prepared(self, route: str, data: bytes) -> tuple[Reply, list[list[SequenceState]]]:
        """Read and check a body: tokenizing and building grammars takes time.

        Args:
            route: one of `ROUTES`.
            data: the body's JSON.

        Returns:
            The answer, still empty, and the starting states of each prompt's choices.

        Raises:
            OutriderError: it is refused.
        """
        body = read_body(ROUTES[route], data)
        if "stream_options" in body.model_fields_set and not body.stream:
            asked = body.stream_options.model_dump(exclude_none=True)
            raise InvalidConfigError("stream_options", asked, "none, or stream: true beside them")
        n = body.n or 1
        if body.model is not None:
            self.check_model(body.model)
        chat = isinstance(body, ChatBody)
        prompts = body.prompts if isinstance(body, CompletionBody) else [self._chat(body)]
        count = len(prompts)
        if not 1 <= n * count <= _MOST_CHOICES:
            name, value = ("n", n) if count == 1 else ("prompt", f"a list of {count}")
            expected = f"1 to {_MOST_CHOICES} choices in all"
            raise InvalidConfigError(name, value, expected, given=f"{name} is {value}")
        form = asked_form(body)
        names = [f"prompt[{index}]" for index in range(count)]
        if count == 1:
            names = ["messages" if chat else "prompt"]
        groups = [self._states(body, form, *each) for each in zip(names, prompts, strict=True)]
        reply = Reply(
            body=body,
            form=form,
            head={
                "id": f"{'chatcmpl' if chat else 'cmpl'}-{secrets.token_hex(12)}",
                "created": int(time.time()),
                "model": self.model,
                "system_fingerprint": self._fingerprint,
            },
            texts=None if body.top is None else self._texts,
            figures=body.speculation_metrics or self._figures,
            deepest=self.service.decoder.config.deepest,
        )
        return reply, groups

    def tokenized(self, data: bytes) -> list[int]:
        """Return the token ids of a text, as it is read where it is a prompt.

        Args:
            data: the body's JSON.

        Raises:
            OutriderError: it is refused.
        """
        body = read_body(TokenizeBody, data)
        if body.model is not None:
            self.check_model(body.model)
        return list(self.service.decoder.tokens_of(body.prompt))

    def check_model(self, name: str) -> None:
        """Raise UnknownModelError if the model is not called so."""
        if name not in self._names:
            raise UnknownModelError("model", name, self.model)

    def _states(self, body: Body, form: Form | None, name: str, prompt: Any) -> list[SequenceState]:
        """Start the choices of one prompt, which is at the path `name` of a body."""
        decoder = self.service.decoder
        with named_as_asked(form, name):
            ids = decoder.tokens_of(prompt)
            if not ids:
                raise EmptyPrefixError("prompt has no tokens; give at least one", field=name)
            room = None if decoder.max_length is None else decoder.max_length - len(ids)
            if room is not None and room < 1:
                raise ContextLengthError(
                    f"prompt of {len(ids)} tokens cannot fit the model's context of "
                    f"{decoder.max_length}; shorten the text",
                    field=name,
                )
            states = decoder.start(ids, sampling_params(body, form, room, decoder.tokenizer))
        if body.speculative is False:
            states = [replace(state, drafting=False) for state in states]
        return states

    def _chat(self, body: ChatBody) -> str:
        """Write a conversation by the model's template."""
        answers, continues = body.add_generation_prompt, bool(body.continue_final_message)
        if answers and continues:
            expected = "false, or none, beside continue_final_message"
            raise InvalidConfigError("add_generation_prompt", answers, expected)
        return written(
            self.service.decoder.tokenizer,
            [message.plain() for message in body.messages],
            answers=answers is not False,
            continues=continues,
            variables=body.chat_template_kwargs,
        )


def _fingerprint(decoder: SpeculativeDecoder) -> str:
    settings = json.dumps(asdict(decoder.config), sort_keys=True, default=str)
    drafter = type(decoder.drafter).__name__
    digest = hashlib.sha256(f"{settings}{drafter}".encode()).hexdigest()[:8]
    return f"outrider-{__version__}-{digest}"
