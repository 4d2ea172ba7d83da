"""Turn rounds into outputs: into events of one token each as they happen, or into whole ones."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing

from ..sampling.logprobs import TokenLogprob
from ..types.protocols import Tokenizer
from ..types.records import SequenceState
from .batch import StepResult
from .detokenize import StreamDecoder
from .metrics import Tally
from .outputs import Choice, GenerationOutput, StreamEvent
from .requests import Request
from .stopping import final_text


def outputs(
    steps: Generator[StepResult],
    requests: Sequence[Request],
    groups: Sequence[Sequence[SequenceState]],
    tokenizer: Tokenizer | None,
    *,
    lossy: bool,
) -> list[GenerationOutput]:
    """Decode some requests to their ends.

    Args:
        steps: the rounds.
        requests: what was asked.
        groups: the starting states of each, one for each of its choices.
        tokenizer: makes text of the tokens; without one there is none.
        lossy: whether figures are to be labelled so.
    """
    last = {state.prefix.sequence_id: state for group in groups for state in group}
    tallies = {sequence_id: Tally(lossy=lossy) for sequence_id in last}
    logprobs: dict[int, list[TokenLogprob]] = {sequence_id: [] for sequence_id in last}
    with closing(steps):
        for step in steps:
            for row, state in enumerate(step.batch.states):
                sequence_id = state.prefix.sequence_id
                last[sequence_id] = state
                tallies[sequence_id].add(step.record, row)
                logprobs[sequence_id].extend(step.logprobs[row])

    def choice(sequence_id: int) -> Choice:
        state = last[sequence_id]
        assert state.finish_reason is not None
        return Choice(
            index=state.choice,
            text=None if tokenizer is None else final_text(state, tokenizer),
            token_ids=tuple(state.output_ids),
            finish_reason=state.finish_reason,
            depths=tuple(state.depths),
            metrics=tallies[sequence_id].metrics(),
            logprobs=None if state.params.logprobs is None else tuple(logprobs[sequence_id]),
        )

    return [
        GenerationOutput(
            prompt_token_ids=request.token_ids,
            choices=tuple(choice(state.prefix.sequence_id) for state in group),
            seed=request.seed,
        )
        for request, group in zip(requests, groups, strict=True)
    ]


def events(
    steps: Generator[StepResult],
    requests: Sequence[Sequence[SequenceState]],
    tokenizer: Tokenizer | None,
) -> Iterator[StreamEvent]:
    """Yield every token of some requests as soon as its round is over.

    Args:
        steps: the rounds.
        requests: the starting states of each, one for each of its choices.
        tokenizer: makes text of the tokens; without one there is none.
    """
    streams = Streams(requests, tokenizer)
    with closing(steps):
        for step in steps:
            for row in range(len(step.emitted)):
                yield from streams.of_row(step, row)


class Streams:
    """Makes events of what some sequences emit.

    Args:
        requests: the starting states of each request, one for each of its choices.
        tokenizer: makes text of the tokens; without one there is none.
    """

    def __init__(
        self, requests: Sequence[Sequence[SequenceState]], tokenizer: Tokenizer | None
    ) -> None:
        self._tokenizer = tokenizer
        self._owner = {
            state.prefix.sequence_id: i for i, run in enumerate(requests) for state in run
        }
        self._decoders = {
            state.prefix.sequence_id: StreamDecoder(tokenizer, state.params.stop)
            for run in requests
            for state in run
            if tokenizer is not None
        }

    def of_row(self, step: StepResult, row: int) -> Iterator[StreamEvent]:
        """Yield the tokens that one row of a round emitted; each round is asked for in order."""
        state, tokens = step.batch.states[row], step.emitted[row]
        sequence_id = state.prefix.sequence_id
        first = len(state.prefix) - state.prompt_length - len(tokens)
        for index, token in enumerate(tokens):
            last = index == len(tokens) - 1 and state.finish_reason is not None
            entry = step.logprobs[row][index] if step.logprobs[row] else None
            yield StreamEvent(
                request=self._owner[sequence_id],
                choice=state.choice,
                token_id=token,
                text=self._text(state, token, last=last),
                origin=step.origin(row, index),
                position=first + index,
                round=state.round - 1,
                finish_reason=state.finish_reason if last else None,
                logprob=None if entry is None else entry.logprob,
                top_logprobs=None if entry is None else entry.top,
            )

    def _text(self, state: SequenceState, token: int, *, last: bool) -> str | None:
        """Return the text that a token completes."""
        if self._tokenizer is None:
            return None
        decoder = self._decoders[state.prefix.sequence_id]
        return decoder.finish(final_text(state, self._tokenizer)) if last else decoder.push(token)
