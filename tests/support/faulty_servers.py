"""Servers of a small explicit model, sound or with one fault that outsiders should find."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outrider import ModelDrafter, SpeculativeConfig, SpeculativeDecoder
from outrider.certify import faults
from outrider.engine.commit import StepResult
from outrider.random import Philox4x32
from outrider.runtimes.tabular import TabularModel
from outrider.sampling.batch import Batch
from outrider.verification import Method, TokenVerification, Verifier
from outrider.verification.lossy import TypicalVerification

from .alphabet import alphabet
from .server import listening, toy_server

LETTERS = "abcdefghijklmnopqrstuvwxyz {}:"
WIDTH = len(LETTERS) + 1


def letters(agreement: float = 0.6) -> tuple[TabularModel, TabularModel]:
    """A target and a draft over letters and an end; what follows depends on three letters."""

    @lru_cache(maxsize=2**15)
    def row(name: str, tail: tuple[int, ...]) -> Any:
        rng = np.random.default_rng(_hashed(f"{name} {tail}"))
        weights = np.append(rng.dirichlet(np.full(WIDTH - 1, 0.4)) + 1e-4, 0.004)
        return weights / weights.sum()

    def target(prefix: tuple[int, ...]) -> Any:
        return row("target", prefix[-3:])

    def draft(prefix: tuple[int, ...]) -> Any:
        return agreement * target(prefix) + (1 - agreement) * row("draft", prefix[-3:])

    return TabularModel(target, WIDTH), TabularModel(draft, WIDTH)


def _hashed(text: str) -> int:
    """Return 64 bits that depend on a text alone."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def stripped(**values: Any) -> type[SpeculativeDecoder]:
    """Make a decoder that has other parameters in rounds of requests that it drafts for."""

    def step(decoder: Any, batch: Batch, *chance: Any) -> StepResult:
        asked = [state.params for state in batch.states]
        other = [
            replace(s, params=replace(s.params, **{n: f(s.params) for n, f in values.items()}))
            for s in batch.states
        ]
        step = SpeculativeDecoder.step(decoder, decoder.pack(other), *chance)
        after = [
            replace(state, params=own) for state, own in zip(step.batch.states, asked, strict=True)
        ]
        return replace(step, batch=decoder.pack(after))

    return type("Stripped", (SpeculativeDecoder,), {"step": step})


@dataclass(frozen=True)
class Fault:
    """What is planted.

    Attributes:
        found: the question or promise that it breaks.
        drafter, method, decoder, keys: in the place of sound parts.
        body, answer: change a request's JSON, or an answer's.
    """

    found: str
    drafter: Callable[[Any], Any] = ModelDrafter
    method: Method = field(default_factory=TokenVerification)
    decoder: type[SpeculativeDecoder] = SpeculativeDecoder
    keys: Callable[[Any], None] | None = None
    body: Callable[[dict[str, Any]], None] = lambda _: None
    answer: Callable[[dict[str, Any]], None] = lambda _: None


def _without(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda body: body.pop(name, None)


def _zero_logprobs(answer: dict[str, Any]) -> None:
    for choice in answer["choices"]:
        logprobs = choice["logprobs"]
        if logprobs:
            logprobs["token_logprobs"] = [0.0] * len(logprobs["token_logprobs"])


def _one_more_accepted(answer: dict[str, Any]) -> None:
    figures = answer.get("metrics", {}).get("speculative_decoding")
    if figures:
        figures["num_accepted_draft_tokens"] += figures["num_spec_steps"]
        figures["num_draft_tokens"] += figures["num_spec_steps"]


def _one_fewer_counted(answer: dict[str, Any]) -> None:
    answer["usage"]["completion_tokens"] -= 1


def _noise_by_place(keys: Any) -> None:
    """Give all requests the noise of their place in the text."""
    keys[:, 0] = 7
    keys[:, 1] = 0


FAULTS = {
    "a greedy draft reported as sampled": Fault(
        "sampling", drafter=faults.argmax_reported_as_sampled
    ),
    "the bonus from the row before": Fault("sampling", method=faults.bonus_from_the_row_before()),
    "a refused token replaced from the target": Fault(
        "sampling", method=faults.residual_is_the_target()
    ),
    "typical acceptance": Fault("sampling", method=TypicalVerification(0.09, 0.3)),
    "one noise for all requests": Fault("simultaneous requests", keys=_noise_by_place),
    "filters applied twice": Fault(
        "temperature", decoder=stripped(temperature=lambda p: p.temperature**2)
    ),
    "bias ignored on drafts": Fault("logit_bias", decoder=stripped(logit_bias=lambda _: ())),
    "top-p of the draft only": Fault("top_p", decoder=stripped(top_p=lambda _: 1.0)),
    "min_tokens ignored": Fault("min_tokens", decoder=stripped(min_tokens=lambda _: 0)),
    "penalties ignored": Fault(
        "repetition_penalty", decoder=stripped(repetition_penalty=lambda _: 1.0)
    ),
    "min_p ignored": Fault("min_p", body=_without("min_p")),
    "an end token missed inside a draft": Fault(
        "stop_token_ids", decoder=faults.stops_only_between_rounds
    ),
    "stop strings ignored": Fault("stop", body=_without("stop")),
    "log-probabilities of zero": Fault("logprobs", answer=_zero_logprobs),
    "one accepted too many": Fault("acceptance figures", answer=_one_more_accepted),
    "one token fewer counted": Fault("usage", answer=_one_fewer_counted),
}


class Tampered:
    """Changes requests for completions, and their answers.

    A request without a seed is given one of its body and of how often that came before, so that
    answers come again with the same `seed` in whatever order requests arrive.
    """

    def __init__(self, app: ASGIApp, fault: Fault, seed: int = 0) -> None:
        self._app, self._fault, self._seed = app, fault, seed
        self._came = Counter[bytes]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != "/v1/completions":
            await self._app(scope, receive, send)
            return
        data = b""
        while True:
            message = await receive()
            data += message.get("body", b"")
            if not message.get("more_body"):
                break
        body = json.loads(data)
        self._came[data] += 1
        body.setdefault("seed", _hashed(f"{self._seed} {self._came[data]} {body}"))
        self._fault.body(body)
        data = json.dumps(body).encode()
        sent: list[Message] = []
        given = [{"type": "http.request", "body": data, "more_body": False}]

        async def changed() -> Message:
            return given.pop() if given else await receive()

        async def kept(message: Message) -> None:
            sent.append(message)

        scope = {**scope, "headers": _sized(scope["headers"], len(data))}
        await self._app(scope, changed, kept)
        start, answer = sent[0], json.loads(b"".join(m.get("body", b"") for m in sent[1:]))
        if "choices" in answer:
            self._fault.answer(answer)
        out = json.dumps(answer).encode()
        await send({**start, "headers": _sized(start["headers"], len(out))})
        await send({"type": "http.response.body", "body": out})


def _sized(headers: Any, size: int) -> list[Any]:
    others = [(name, value) for name, value in headers if name != b"content-length"]
    return [*others, (b"content-length", str(size).encode())]


def decoder(fault: Fault, depth: int = 3) -> SpeculativeDecoder:
    """Make a decoder of letters with a fault's parts."""
    target, draft = letters()
    chance: Any = Philox4x32()
    if fault.keys is not None:
        chance = SimpleNamespace(draw=partial(_drawn, chance, fault.keys))
    return fault.decoder(
        target,
        fault.drafter(draft),
        tokenizer=alphabet(list(LETTERS)),
        config=SpeculativeConfig(
            depth="fixed", num_speculative_tokens=depth, verification="token", validate="never"
        ),
        verifier=Verifier(fault.method),
        chance=chance,
    )


def _drawn(chance: Any, change: Callable[[Any], None], distributions: Any, keys: Any) -> Any:
    changed = keys.copy()
    change(changed)
    return chance.draw(distributions, changed)


@contextmanager
def serving(fault: Fault, seed: int = 0) -> Iterator[str]:
    """Serve letters with a fault; gives the address. `seed` is of its draws."""
    with toy_server(decoder(fault)) as server, listening(Tampered(server.app, fault, seed)) as url:
        yield url


SOUND = Fault("nothing")
