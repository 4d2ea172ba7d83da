"""The results of a request, whole and as they stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..errors import OutriderError
from ..sampling.logprobs import TokenLogprob
from ..types.records import FinishReason
from .metrics import SpeculationMetrics

Origin = Literal["draft", "correction", "bonus"]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a request's n continuations.

    To replay it, ask for the same prompt with the output's `seed`, this choice's `depths`, and an n
    that includes its `index`. Where tokens are looked up that repeats a run that had a seed to
    begin with, and any coupled or greedy one.

    Attributes:
        index: 0 to n - 1.
        text: the continuation without special tokens, and without the token that ended it; None if
            the decoder has no tokenizer, or it failed.
        token_ids: the emitted tokens, a stop token included.
        finish_reason: "stop", "length" or "error".
        depths: one integer a round: n for n tokens drafted by a model, -n for n looked up.
        metrics: of the rounds this choice was in.
        logprobs: of its tokens, if they were asked for.
        error: what ended it before its end, with `on_error="return"`; its tokens are those that it
            had. None if it ended by itself.
    """

    index: int
    text: str | None
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    depths: tuple[int, ...]
    metrics: SpeculationMetrics
    logprobs: tuple[TokenLogprob, ...] | None = None
    error: OutriderError | None = None


@dataclass(frozen=True, slots=True)
class GenerationOutput:
    """The output of one request: its choices, and the seed that repeats them.

    Attributes:
        prompt_token_ids: the prompt as it was decoded from; empty if the request was refused.
        choices: the n continuations, in order; one without tokens if the request was refused.
        seed: the seed asked for, or the fresh one that was used; 0 if the request was refused.
    """

    prompt_token_ids: tuple[int, ...]
    choices: tuple[Choice, ...]
    seed: int

    @property
    def error(self) -> OutriderError | None:
        """The first error of its choices; None if all ended by themselves."""
        return next((choice.error for choice in self.choices if choice.error is not None), None)

    @property
    def text(self) -> str | None:
        """The first choice's text."""
        return self.choices[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The first choice's tokens."""
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> FinishReason:
        """Why the first choice ended."""
        return self.choices[0].finish_reason

    @property
    def depths(self) -> tuple[int, ...]:
        """What the first choice's rounds drafted; see `Choice`."""
        return self.choices[0].depths

    @property
    def metrics(self) -> SpeculationMetrics:
        """The first choice's figures."""
        return self.choices[0].metrics


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One emitted token; or, with `on_error="return"`, the error that ended a choice.

    Attributes:
        request: index of the prompt.
        choice: index among the n continuations.
        token_id: the token; -1 with an error.
        text: what became readable with it; "" while a character is incomplete, None without a
            tokenizer. The texts of a choice's events join to its text. Only the last one may hold
            half a character, as U+FFFD, where `max_tokens` cuts inside one.
        origin: "draft" if it was drafted and accepted, "correction" if it replaced a rejected
            draft, "bonus" if it followed drafts that were all accepted, none at all included.
        position: index among the emitted tokens, from 0.
        round: the round that emitted it, from 0.
        finish_reason: on a choice's last token, why it ended.
        logprob: the token's log-probability under the target's raw logits, if asked for.
        top_logprobs: the likeliest tokens with theirs, if asked for.
        error: what ended the choice before its end; None with every token.
    """

    request: int
    choice: int
    token_id: int
    text: str | None
    origin: Origin
    position: int
    round: int
    finish_reason: FinishReason | None
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] | None = None
    error: OutriderError | None = None
