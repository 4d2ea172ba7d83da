"""Turn rounds into outputs: into events of one token each as they happen, or into whole ones."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from itertools import chain

from ..errors import OutriderError, about
from ..sampling.logprobs import TokenLogprob
from ..types.protocols import Tokenizer
from ..types.records import SequenceState
from .commit import StepResult
from .detokenize import StreamDecoder
from .metrics import Tally
from .outputs import Choice, GenerationOutput, StreamEvent
from .requests import Request
from .scheduler import Scheduler
from .stopping import final_text

Groups = Sequence[Sequence[SequenceState]]
"""The starting states of each request, one for each of its choices; none of a refused one."""


class Call:
    """The rounds of some requests, and what ended those that failed.

    Args:
        scheduler: decodes them, and nothing else.
        requests: what was asked, or why it was refused.
        groups: their states.
        keeps: whether errors are kept; else the first is raised.

    Attributes:
        last: the state of each sequence after its last round, by id.
        errors: what ended those that failed, by id.
        endings: an event for each choice that failed since they were last taken.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        requests: Sequence[Request | OutriderError],
        groups: Groups,
        *,
        keeps: bool,
    ) -> None:
        self.requests = requests
        self.groups = groups
        self.last = {state.prefix.sequence_id: state for group in groups for state in group}
        self.errors: dict[int, OutriderError] = {}
        refused = [(i, error) for i, error in enumerate(requests) if isinstance(error, Exception)]
        self.endings = [_ending(error, index) for index, error in refused]
        self._owner = {s.prefix.sequence_id: i for i, group in enumerate(groups) for s in group}
        self._scheduler = scheduler
        self._keeps = keeps

    def rounds(self) -> Generator[StepResult | None]:
        """Decode to the end: yield each round, and None where an error ended a sequence or more.

        Raises:
            OutriderError: the first error, unless they are kept. It names the prompt.
        """
        with self._scheduler as scheduler:
            scheduler.submit(self.last.values())
            while not scheduler.idle:
                try:
                    step = scheduler.step()
                except OutriderError as error:
                    self.failed(error)
                    yield None
                    if error.sequence_id is None:
                        return
                else:
                    if step is not None:
                        self.last |= {s.prefix.sequence_id: s for s in step.batch.states}
                        yield step

    def failed(self, error: OutriderError) -> None:
        """End the sequence that an error names, or else all that have not ended.

        Raises:
            OutriderError: the error, unless errors are kept.
        """
        ended = [key for key, state in self.last.items() if state.finish_reason is None]
        if error.sequence_id is not None:
            ended = [error.sequence_id]
            error.request = self._owner[error.sequence_id]
            self._scheduler.cancel(error.sequence_id)
        if not self._keeps:
            if error.request is not None and len(self.requests) > 1:
                error.args = (
                    f"prompts[{error.request}] cannot be decoded to its end, and the outputs of "
                    f'the others are lost; on_error="return" keeps them; {error}',
                )
            raise error
        for key in ended:
            if key not in self.errors:
                self.errors[key] = error
                self.endings.append(_ending(error, self._owner[key], self.last[key]))


def _ending(error: OutriderError, request: int, state: SequenceState | None = None) -> StreamEvent:
    """Make the last event of a choice that failed."""
    return StreamEvent(
        request=request,
        choice=0 if state is None else state.choice,
        token_id=-1,
        text="",
        origin="correction",
        position=0 if state is None else state.emitted,
        round=0 if state is None else state.round,
        finish_reason="error",
        error=error,
    )


def outputs(call: Call, tokenizer: Tokenizer | None, *, lossy: bool) -> list[GenerationOutput]:
    """Decode some requests to their ends.

    Args:
        call: the requests.
        tokenizer: makes text of the tokens; without one there is none.
        lossy: whether figures are to be labelled so.

    Raises:
        OutriderError: the first error, unless they are kept.
    """
    tallies = {sequence_id: Tally(lossy=lossy) for sequence_id in call.last}
    logprobs: dict[int, list[TokenLogprob]] = {sequence_id: [] for sequence_id in call.last}
    with closing(call.rounds()) as steps:
        for step in filter(None, steps):
            for row, sequence_id in enumerate(step.batch.sequence_ids):
                tallies[sequence_id].add(step.record, row)
                logprobs[sequence_id].extend(step.logprobs[row])

    def choice(sequence_id: int, state: SequenceState) -> Choice:
        text = None
        try:
            with about(sequence_id, "decoding the text"):
                text = None if tokenizer is None else final_text(state, tokenizer)
        except OutriderError as error:
            call.failed(error)
        return Choice(
            index=state.choice,
            text=text,
            token_ids=tuple(state.output_ids),
            finish_reason="error" if sequence_id in call.errors else state.finish_reason or "error",
            depths=state.depths,
            metrics=tallies[sequence_id].metrics(),
            logprobs=None if state.params.logprobs is None else tuple(logprobs[sequence_id]),
            error=call.errors.get(sequence_id),
        )

    found = []
    for request, group in zip(call.requests, call.groups, strict=True):
        if isinstance(request, OutriderError):
            nothing = Tally(lossy=lossy).metrics()
            refused = Choice(0, None, (), "error", (), nothing, error=request)
            found.append(GenerationOutput((), (refused,), 0))
        else:
            ids = [state.prefix.sequence_id for state in group]
            choices = tuple(choice(each, call.last[each]) for each in ids)
            found.append(GenerationOutput(request.token_ids, choices, request.seed))
    return found


def events(call: Call, tokenizer: Tokenizer | None) -> Iterator[StreamEvent]:
    """Yield every token of some requests as soon as its round is over.

    Args:
        call: the requests.
        tokenizer: makes text of the tokens; without one there is none.

    Raises:
        OutriderError: the first error, unless they are kept.
    """
    streams = Streams(call.groups, tokenizer)
    with closing(call.rounds()) as steps:
        for step in chain([None], steps):
            if step is not None:
                for row in range(len(step.emitted)):
                    try:
                        yield from streams.of_row(step, row)
                    except OutriderError as error:
                        call.failed(error)
            endings, call.endings = call.endings, []
            yield from endings


class Streams:
    """Makes events of what some sequences emit.

    Args:
        requests: the starting states of each request, one for each of its choices.
        tokenizer: makes text of the tokens; without one there is none.
    """

    def __init__(self, requests: Groups, tokenizer: Tokenizer | None) -> None:
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
        """Yield the tokens that one row of a round emitted; each round is asked for in order.

        Raises:
            UserCodeError: the tokenizer raised. It names the sequence.
        """
        state, tokens = step.batch.states[row], step.emitted[row]
        sequence_id = state.prefix.sequence_id
        first = state.emitted - len(tokens)
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
        with about(state.prefix.sequence_id, "decoding the text"):
            if last:
                return decoder.finish(final_text(state, self._tokenizer))
            return decoder.push(token)
