"""Asks a server of OpenAI's API for texts, and for log-probabilities of given tokens."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from time import sleep
from typing import Any, Self

from ...config.params import SamplingParams
from ...errors import InvalidConfigError, OutriderError, missing
from .records import Text, Tokens

with missing("endpoint"):
    import httpx

_TRIES = 6
_BUSY = (429, 502, 503, 504)
_REFUSED = (400, 404, 405, 422, 501)
_LONGEST_WAIT_S = 30.0
_ADDRESS = "the address of a running server, such as http://localhost:8000/v1"

_WAYS_OF_IDS: tuple[dict[str, Any], ...] = (
    {"return_token_ids": True},
    {"logprobs": 1, "return_tokens_as_token_ids": True},
)
"""What makes servers name the ids of tokens: vLLM and Outrider, and vLLM before that."""

_NEUTRAL: dict[str, Any] = {
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "repeat_penalty": 1.0,
    "repeat_last_n": -1,
}
"""Servers have other defaults for what OpenAI's API does not name; those that refuse a name do not
have it. llama.cpp has names of its own, and penalises the last 64 tokens alone unless asked."""

_FIELDS = (
    *("top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("min_tokens", "ignore_eos", "stop", "stop_token_ids", "bad_words", "n", "seed"),
)
"""Parameters that servers name as we do."""

_PLAIN = SamplingParams()


class EndpointError(OutriderError, RuntimeError):
    """A server cannot be reached, fails, or does not say what is needed."""


class UnreachableError(EndpointError):
    """There is no answer from a server."""


class RefusedError(EndpointError):
    """A server refuses what a request asks for, or answers with too little."""


@dataclass
class Endpoint:
    """A server, and how it is asked; a context, in which there are connections.

    Args:
        url: of its API, such as http://localhost:8000/v1.
        model: its name there; None takes the one that is served.
        key: sent as a bearer token.
        timeout_s: how long an answer may take.

    Raises:
        InvalidConfigError: `url` is no address.

    Attributes:
        extra: fields that every request carries.
        own: the address of llama.cpp's own route, which names all ids, as that of OpenAI's API does
            not: those of a letter in several tokens are missing there. None for other servers.
        version: of the server, as it says it; None if it does not.
    """

    url: str
    model: str | None = None
    key: str | None = None
    timeout_s: float = 120.0
    extra: dict[str, Any] = field(default_factory=dict)
    own: str | None = None
    version: str | None = None

    def __post_init__(self) -> None:
        given = httpx.URL()
        with suppress(httpx.InvalidURL):
            base = self.url.rstrip("/").removesuffix("/completions").removesuffix("/v1")
            given = httpx.URL(base + "/v1")
        if given.scheme not in ("http", "https") or not given.host:
            shown = self.url.rpartition("@")[2]
            raise InvalidConfigError(
                "endpoint", shown, _ADDRESS, given=f"{shown!r} is no address of a server"
            )
        # A password in the address is sent, and stands in no file.
        auth = (given.username, given.password) if given.username else None
        self.url = str(given.copy_with(userinfo=b""))
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        self._http = httpx.Client(headers=headers, auth=auth, timeout=self.timeout_s)

    def __enter__(self) -> Self:
        """Connect: find the model's name, and how the server names the ids of tokens.

        Raises:
            EndpointError: the server cannot be reached, serves another model, or names no ids.
        """
        served = [str(each["id"]) for each in self._get("/models").get("data", [])]
        if self.model is None:
            self.model = served[0] if served else ""
        elif served and self.model not in served:
            raise EndpointError(
                f"{self.url} serves {', '.join(served)}; expected {self.model!r} among them"
            )
        self._completes()
        self.extra, self.version = self._accepted(_NEUTRAL), self._named()
        self.own = self.url.removesuffix("/v1") + "/completion"
        with suppress(EndpointError, KeyError, TypeError):
            if self._by_own(self._body([1], 2, {}))["choices"][0]["token_ids"]:
                self.extra |= {"logprobs": 1}  # which names ids by the other route, too
                return self
        self.own = None
        for way in _WAYS_OF_IDS:
            with suppress(EndpointError):
                answer = self.post("/completions", self._body([1], 2, way))
                if ids_of(answer["choices"][0]):
                    self.extra |= way
                    return self
        raise EndpointError(
            f"{self.url} names no token ids under /completions; expected return_token_ids or "
            "log-probabilities with ids, as vLLM, llama.cpp and Outrider have them"
        )

    def __exit__(self, *_: object) -> None:
        """Close all connections."""
        self._http.close()

    def tokenize(self, text: str) -> Tokens:
        """Return the ids of a text, as the server reads a prompt.

        Raises:
            EndpointError: it does not say.
        """
        # vLLM and Outrider, then llama.cpp.
        bodies = {"model": self.model, "prompt": text}, {"content": text, "add_special": True}
        for body in bodies:
            with suppress(RefusedError, KeyError, TypeError, ValueError):
                found = self._send("POST", self.url.removesuffix("/v1") + "/tokenize", body)
                if found["tokens"]:
                    return tuple(int(token) for token in found["tokens"])
        raise EndpointError(
            f"{self.url} has no /tokenize; take --prompts, a file with a JSON list of token ids on "
            "every line, or --reference-model"
        )

    def complete(self, prompt: Tokens, params: SamplingParams, **fields: Any) -> list[Text]:
        """Ask for the choices of a request.

        Args:
            prompt: ids.
            params: of the request; stop strings, biases and the like as OpenAI's API has them.
            fields: further fields of the body, of OpenAI's API.

        Raises:
            EndpointError: the server refuses it, or says too little.
        """
        asked = body_of(params)
        if "repeat_penalty" in self.extra:
            asked["repeat_penalty"] = params.repetition_penalty
        body = self._body(list(prompt), params.max_tokens, asked | fields)
        by_own = self.own is not None and not fields and params.n == 1
        answer = self._by_own(body) if by_own else self.post("/completions", body)
        texts = []
        for choice in sorted(answer["choices"], key=lambda each: int(each.get("index", 0))):
            ids = ids_of(choice)
            if ids is None:
                raise RefusedError(f"{self.url} names no token ids in an answer")
            texts.append(
                Text(
                    prompt,
                    ids,
                    str(choice.get("text", "")),
                    choice.get("finish_reason"),
                    body,
                    logprobs_of(choice),
                    answer.get("usage") or {},
                    answer.get("metrics") or {},
                )
            )
        return texts

    def post(self, route: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request, again while the server is busy, and return the answer.

        Raises:
            EndpointError: it cannot be reached, or refuses.
        """
        found = self._send("POST", self.url + route, body)
        choices = found.get("choices")
        if not (isinstance(choices, list) and choices and isinstance(choices[0], dict)):
            said = str(found.get("error", found))[:300]
            raise RefusedError(f"{self.url}{route} answers without choices: {said}")
        return found

    def first(self, prompt: Tokens, **fields: Any) -> dict[str, Any]:
        """Return the answer of one token after a prompt, its first choice.

        Raises:
            EndpointError: the server refuses it.
        """
        body = self._body(list(prompt), 1, {"temperature": 1.0, **fields})
        choice: dict[str, Any] = self.post("/completions", body)["choices"][0]
        return choice

    def _get(self, route: str) -> dict[str, Any]:
        return self._send("GET", self.url + route, None)

    def _body(self, prompt: list[int], tokens: int, fields: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": tokens,
            **self.extra,
            **fields,
        }

    def _by_own(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Ask by llama.cpp's own route; return an answer as OpenAI's API has it, with all ids."""
        assert self.own is not None
        found = self._send("POST", self.own, {**body, "return_tokens": True})
        choice = {
            "text": found["content"],
            "token_ids": found["tokens"],
            "finish_reason": "length" if found["stop_type"] == "limit" else "stop",
        }
        counts = {"prompt_tokens": "tokens_evaluated", "completion_tokens": "tokens_predicted"}
        usage = {name: found[own] for name, own in counts.items()}
        return {"choices": [choice], "usage": usage}

    def _named(self) -> str | None:
        """Return what vLLM, llama.cpp or SGLang calls its version."""
        routes = {"version": "version", "props": "build_info", "get_server_info": "version"}
        for route, name in routes.items():
            with suppress(EndpointError, KeyError):
                return str(self._send("GET", f"{self.url.removesuffix('/v1')}/{route}", None)[name])
        return None

    def _completes(self) -> None:
        """Raise EndpointError if there are no completions of token ids."""
        try:
            self.first((1,))
        except EndpointError as error:
            raise EndpointError(
                f"{self.url} has no /v1/completions of token ids ({error}); a server for chats "
                "alone cannot be certified: its prompts' tokens are not known"
            ) from error

    def _accepted(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return those of some fields that the server takes."""
        kept = {}
        for name, value in fields.items():
            with suppress(RefusedError):
                self.first((1,), **{name: value})
                kept[name] = value
        return kept

    def _send(self, method: str, url: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        for attempt in range(_TRIES):
            try:
                answer = self._http.request(method, url, json=body)
            except httpx.HTTPError as error:
                # A server may have closed a connection that was idle.
                if not attempt and not isinstance(error, httpx.TimeoutException):
                    continue
                said = f"{url} cannot be reached: {error or type(error).__name__}"
                raise UnreachableError(f"{said}; expected {_ADDRESS}") from error
            if answer.status_code not in _BUSY or attempt == _TRIES - 1:
                break
            given = answer.headers.get("Retry-After", "")
            sleep(min(_LONGEST_WAIT_S, float(given) if given.isdigit() else 2.0**attempt))
        try:
            found = answer.json()
        except ValueError:
            found = None
        if answer.status_code >= 400 or not isinstance(found, dict):
            said = found.get("error", found) if isinstance(found, dict) else answer.text
            said = said.get("message", said) if isinstance(said, dict) else said
            key = (
                "; expected --key, or OUTRIDER_API_KEY" if answer.status_code in (401, 403) else ""
            )
            kind = RefusedError if answer.status_code in _REFUSED else EndpointError
            raise kind(f"{url} answers {answer.status_code}: {str(said)[:300]}{key}")
        return found


def body_of(params: SamplingParams) -> dict[str, Any]:
    """Return the fields of a request that ask for parameters, without those at their default."""
    body: dict[str, Any] = {"temperature": params.temperature, "top_p": params.top_p}
    for name in _FIELDS:
        value = getattr(params, name)
        if value != getattr(_PLAIN, name):
            body[name] = list(value) if isinstance(value, tuple) else value
    if params.biases:
        body["logit_bias"] = {str(token): bias for token, bias in params.biases}
    return body


def ids_of(choice: Mapping[str, Any]) -> Tokens | None:
    """Return the ids of an answer's tokens, wherever they are; None if they are not there."""
    given = choice.get("token_ids")
    if given is not None:
        return tuple(int(token) for token in given)
    logprobs = choice.get("logprobs") or {}
    if not (choice.get("text") or logprobs.get("content") or logprobs.get("tokens")):
        return ()
    if logprobs.get("content"):
        found = [each.get("id") for each in logprobs["content"]]
        return None if None in found else tuple(map(int, found))
    names = logprobs.get("tokens") or ()
    named = tuple(token for name in names if (token := id_in(name)) is not None)
    return named if named and len(named) == len(names) else None


def id_in(name: str) -> int | None:
    """Return the id in a name such as "token_id:17", None if it is another."""
    found = re.fullmatch(r"token_id:(\d+)", name)
    return int(found[1]) if found else None


def logprobs_of(choice: Mapping[str, Any]) -> tuple[float | None, ...] | None:
    """Return the log-probabilities that came with an answer's tokens, None if none did."""
    logprobs = choice.get("logprobs") or {}
    if logprobs.get("content"):
        return tuple(each.get("logprob") for each in logprobs["content"])
    given = logprobs.get("token_logprobs")
    return None if given is None else tuple(given)
