"""Answers as OpenAI writes them: whole ones, and chunks of those that are streamed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..engine.outputs import StreamEvent
from ..errors import about
from .parameters import Form, named_as_asked
from .schema import Body, ChatBody
from .service import Job, RowRound, Update
from .tokens import TokenTexts

_IMPOSSIBLE = -9999.0


@dataclass
class Reply:
    """An answer that grows round by round.

    Args:
        body: what was asked.
        form: of the text.
        head: its id, time, model and fingerprint, as OpenAI names them.
        texts: of the model's tokens, where log-probabilities are asked for.
        figures: which figures about speculation it carries.
        deepest: the most tokens that a round drafts in a row.

    Attributes:
        job: what is decoded for it, once it is submitted.
    """

    body: Body
    form: Form | None
    head: dict[str, Any]
    texts: TokenTexts | None
    figures: str
    deepest: int
    job: Job = field(init=False)
    events: list[StreamEvent] = field(default_factory=list)
    rounds: list[RowRound] = field(default_factory=list)
    _places: dict[int, int] = field(default_factory=dict)

    @property
    def chats(self) -> bool:
        """Whether it answers a conversation."""
        return isinstance(self.body, ChatBody)

    def add(self, update: Update) -> list[StreamEvent]:
        """Note what a round brought, and return its tokens with their texts.

        Raises:
            UserCodeError: the tokenizer raised.
            OutriderError: the request was ended before it had ended by itself.
        """
        if update.error is not None:
            with named_as_asked(self.form):
                raise update.error
        events = list(update.events)
        self.events += events
        self.rounds += update.rounds
        return events

    def whole(self) -> dict[str, Any]:
        """Return the answer of a request that has ended.

        Raises:
            UserCodeError: the tokenizer raised.
        """
        by_choice: list[list[StreamEvent]] = [[] for _ in self.job.states]
        for event in self.events:
            by_choice[self._index(event)].append(event)
        choices = [self._choice(index, events) for index, events in enumerate(by_choice)]
        kind = "chat.completion" if self.chats else "text_completion"
        whole = {**self.head, "object": kind, "choices": choices, "usage": self.usage()}
        return whole | self._metrics()

    def chunks(
        self, tokens: Sequence[StreamEvent], of_choices: Sequence[RowRound]
    ) -> list[dict[str, Any]]:
        """Return what is streamed of a round: one chunk for each choice that has something new.

        Raises:
            UserCodeError: the tokenizer raised.
        """
        found: list[dict[str, Any]] = []
        for index in dict.fromkeys(self._index(event) for event in tokens):
            events = [event for event in tokens if self._index(event) == index]
            if self.chats and events[0].position == 0:
                found.append(self._chunk(self._delta(index, {"role": "assistant", "content": ""})))
            text = "".join(event.text or "" for event in events)
            reason = events[-1].finish_reason
            seen = self.body.top is not None or self.body.return_token_ids
            if text or reason or seen or self.figures == "detailed":
                delta = self._delta(index, {"content": text} if self.chats else text)
                logprobs = {"logprobs": self._logprobs(events)}
                chunk = self._chunk(delta | logprobs | self._ids(events))
                if self.figures == "detailed":
                    (each,) = (each for each in of_choices if each.choice == index)
                    chunk["speculation"] = {
                        "tokens": [{"text": e.text or "", "origin": e.origin} for e in events],
                        "drafted": each.drafted,
                        "accepted": each.accepted,
                        "depth": each.depth,
                        "source": each.source,
                        "round_ms": 1e3 * each.seconds,
                    }
                found.append(chunk)
            if reason:
                last = self._delta(index, {} if self.chats else "", reason)
                if self.chats:
                    found.append(self._chunk(last))
                else:
                    found[-1]["choices"][0]["finish_reason"] = reason
        return found

    def closing(self) -> dict[str, Any] | None:
        """Return the chunk with the usage and the figures that ends a stream, if one was asked."""
        figures = self._metrics()
        if not self.body.stream_options.include_usage and not figures:
            return None
        usage = {"usage": self.usage()} if self.body.stream_options.include_usage else {}
        return {**self._chunk(), **usage, **figures}

    def figures_logged(self, outcome: str | None = None) -> dict[str, Any]:
        """Return what a log says of a request that has ended: figures, and nothing of its texts.

        `outcome` is "cancelled" or an error's code, where it did not end by itself.
        """
        reasons = sorted({str(e.finish_reason) for e in self.events if e.finish_reason})
        usage = self.usage()
        drafted, accepted = (
            sum(getattr(each, name) for each in self.rounds) for name in ("drafted", "accepted")
        )
        return {
            "id": self.head["id"],
            "outcome": outcome or ",".join(reasons),
            "prompt_tokens": usage["prompt_tokens"],
            "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
            "completion_tokens": usage["completion_tokens"],
            "rounds": len(self.rounds),
            "drafted_tokens": drafted,
            "accepted_tokens": accepted,
            **{name: round(value, 1) for name, value in self._times().items()},
        }

    def usage(self) -> dict[str, Any]:
        """Count tokens."""
        first = [state for state in self.job.states if state.choice == 0]
        prompt = sum(state.prompt_length for state in first)
        emitted = len(self.events)
        asked = self.body.prediction is not None
        predicted = [each for each in self.rounds if asked and each.source == "prediction"]
        accepted = sum(each.accepted for each in predicted)
        rejected = sum(each.drafted for each in predicted) - accepted
        return {
            "prompt_tokens": prompt,
            "completion_tokens": emitted,
            "total_tokens": prompt + emitted,
            "prompt_tokens_details": {"cached_tokens": min(prompt, self.job.cached)},
            "completion_tokens_details": {
                "accepted_prediction_tokens": accepted,
                "rejected_prediction_tokens": rejected,
            },
        }

    def _chunk(self, *choices: dict[str, Any]) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self.chats else "text_completion"
        chunk = {**self.head, "object": kind, "choices": list(choices)}
        if self.body.stream_options.continuous_usage_stats:
            chunk["usage"] = self.usage()
        elif self.body.stream_options.include_usage:
            chunk["usage"] = None
        return chunk

    def _delta(self, index: int, content: Any, reason: str | None = None) -> dict[str, Any]:
        name = "delta" if self.chats else "text"
        return {"index": index, name: content, "logprobs": None, "finish_reason": reason}

    def _ids(self, events: Sequence[StreamEvent]) -> dict[str, Any]:
        """Return the ids of tokens, as vLLM has them; nothing if none were asked for."""
        asked = self.body.return_token_ids
        return {"token_ids": [event.token_id for event in events]} if asked else {}

    def _index(self, event: StreamEvent) -> int:
        return event.request * (self.body.n or 1) + event.choice

    def _choice(self, index: int, events: Sequence[StreamEvent]) -> dict[str, Any]:
        text = "".join(event.text or "" for event in events)
        reason = events[-1].finish_reason
        said = {"message": {"role": "assistant", "content": text, "refusal": None}}
        return {
            "index": index,
            **(said if self.chats else {"text": text}),
            "logprobs": self._logprobs(events),
            "finish_reason": reason,
            **self._ids(events),
        }

    def _logprobs(self, events: Sequence[StreamEvent]) -> dict[str, Any] | None:
        """Return log-probabilities in the form of the route, None if none were asked for."""
        reported = [event for event in events if event.logprob is not None]
        if not reported:
            return None
        sequence_id = self.job.states[self._index(events[0])].prefix.sequence_id
        with about(sequence_id, "decoding the texts of tokens"):
            if self.chats:
                entries = [
                    self._entry(event, event.token_id, event.logprob)
                    | {
                        "top_logprobs": [
                            self._entry(event, *top) for top in event.top_logprobs or ()
                        ]
                    }
                    for event in reported
                ]
                return {"content": entries, "refusal": None}
            named = [self._likeliest(event) for event in reported]
        return {
            "tokens": [name for name, _ in named],
            "token_logprobs": [_finite(event.logprob) for event in reported],
            "top_logprobs": [tops for _, tops in named],
            "text_offset": self._offsets(events),
        }

    def _offsets(self, events: Sequence[StreamEvent]) -> list[int]:
        """Return where in its choice's text each token begins; asked once for each event."""
        index, found = self._index(events[0]), []
        for event in events:
            found.append(self._places.get(index, 0))
            self._places[index] = found[-1] + len(event.text or "")
        return found

    def _likeliest(self, event: StreamEvent) -> tuple[str, dict[str, Any]]:
        """Return a token's name, and the likeliest tokens by theirs, the token among them."""
        assert self.texts is not None
        values: dict[int, float | None] = dict(event.top_logprobs or ())
        order = [event.token_id, *(each for each in values if each != event.token_id)]
        if self.body.return_tokens_as_token_ids:
            names = {token_id: f"token_id:{token_id}" for token_id in order}
        else:
            names = self.texts.keys(order, first=event.position == 0)
        values.setdefault(event.token_id, event.logprob)
        return names[event.token_id], {
            names[each]: _finite(value) for each, value in values.items()
        }

    def _entry(self, event: StreamEvent, token_id: int, logprob: float | None) -> dict[str, Any]:
        first = event.position == 0
        assert self.texts is not None
        ends = token_id in self.job.states[self._index(event)].stop_ids
        data = b"" if ends else self.texts.data(token_id, first=first)
        by_id = self.body.return_tokens_as_token_ids
        return {
            "token": f"token_id:{token_id}" if by_id else self.texts.text(token_id, first=first),
            "logprob": _finite(logprob),
            "bytes": None if data is None else list(data),
        }

    def _metrics(self) -> dict[str, Any]:
        """Return the figures about speculation, as vLLM names them; nothing if none were asked."""
        if self.figures == "none":
            return {}
        each = [self._speculation(index) for index in range(len(self.job.states))]
        several = {"speculative_decoding_choices": each} if len(each) > 1 else {}
        return {"metrics": {**self._times(), "speculative_decoding": each[0], **several}}

    def _times(self) -> dict[str, float]:
        """Return how long it took, as vLLM names it."""
        times, emitted = self.job.times(), len(self.events)
        if not times:
            return {}
        generated = times["prefill"] + times["decode"]
        return {
            "time_to_first_token_ms": 1e3 * times["first_token"],
            "generation_time_ms": 1e3 * generated,
            "queue_time_ms": 1e3 * times["queue"],
            "mean_itl_ms": 1e3 * times["decode"] / max(1, emitted - 1),
            "tokens_per_second": emitted / max(1e-9, generated),
        }

    def _speculation(self, index: int) -> dict[str, Any]:
        own = [each for each in self.rounds if each.choice == index]
        drafted, accepted = sum(each.drafted for each in own), sum(each.accepted for each in own)
        kept = Counter(min(each.accepted, self.deepest) for each in own)
        found = {
            "mean_acceptance_length": sum(each.emitted for each in own) / max(1, len(own)),
            "draft_acceptance_rate": accepted / max(1, drafted),
            "acceptance_histogram": [kept[length] for length in range(self.deepest + 1)],
            "num_spec_steps": len(own),
            "num_accepted_draft_tokens": accepted,
            "num_draft_tokens": drafted,
            "num_spec_tokens": self.deepest,
            "per_position": [
                sum(each.accepted > place for each in own) / sum(each.depth > place for each in own)
                for place in range(max((each.depth for each in own), default=0))
            ],
        }
        if self.figures == "detailed":
            found["per_step_accepted"] = [each.accepted for each in own]
            found["per_step_drafted"] = [each.drafted for each in own]
        return found


def _finite(logprob: float | None) -> float | None:
    """Return a log-probability as JSON can write it, that of an impossible token as OpenAI does."""
    return None if logprob is None else max(logprob, _IMPOSSIBLE)
