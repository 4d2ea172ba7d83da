"""Turn rounds into outputs: into events of one token each as they happen, or into whole ones."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing

from ..errors import OutriderError, about
from ..sampling.logprobs import TokenLogprob
from ..types.protocols import Tokenizer
from ..types.records import SequenceState
from .batch import StepResult
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
        self.owner = {s.prefix.sequence_id: i for i, group in enumerate(groups) for s in group}
        self.last = {state.prefix.sequence_id: state for group in groups for state in group}
        self.errors: dict[int, OutriderError] = {}
        self._scheduler = scheduler
        self._keeps = keeps

    def rounds(self) -> Generator[StepResult | OutriderError]:
        """Decode to the end: yield each round, and each error that ended one or more sequences.

        Raises:
            OutriderError: the first error, unless they are kept. It names the prompt.
        """
        scheduler = self._scheduler
        with scheduler:
            scheduler.submit(self.last.values())
            while not scheduler.idle:
                try:
                    step = scheduler.step()
                except OutriderError as error:
                    yield self.failed(error)
                    if error.sequence_id is None:
                        return
                else:
                    if step is not None:
                        self.last |= {s.prefix.sequence_id: s for s in step.batch.states}
                        yield step

    def failed(self, error: OutriderError) -> OutriderError:
        """End the sequence that an error names, or all that have not ended; return the error.

        Raises:
            OutriderError: the error, unless errors are kept.
        """
        named = error.sequence_id
        if named is not None:
            error.request = self.owner[named]
            self._scheduler.cancel(named)
        if not self._keeps:
            if named is not None and len(self.requests) > 1:
                error.args = (
                    f"prompts[{error.request}] cannot be decoded to its end, and the outputs of "
                    f'the others are lost; on_error="return" keeps them; {error}',
                )
            raise error
        unfinished = [key for key, state in self.last.items() if state.finish_reason is None]
        ended = unfinished if named is None else [named]
        self.errors |= {key: error for key in ended if key not in self.errors}
        return error


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
        for step in steps:
            if isinstance(step, OutriderError):
                continue
            for row, sequence_id in enumerate(step.batch.sequence_ids):
                tallies[sequence_id].add(step.record, row)
                logprobs[sequence_id].extend(step.logprobs[row])

    def text(state: SequenceState) -> str | None:
        try:
            return None if tokenizer is None else text_of(state, tokenizer)
        except OutriderError as error:
            call.failed(error)
            return None

    def choice(sequence_id: int) -> Choice:
        state = call.last[sequence_id]
        written = text(state)
        error = call.errors.get(sequence_id)
        return Choice(
            index=state.choice,
            text=written,
            token_ids=tuple(state.output_ids),
            finish_reason="error" if error or not state.finish_reason else state.finish_reason,
            depths=state.depths,
            metrics=tallies[sequence_id].metrics(),
            logprobs=None if state.params.logprobs is None else tuple(logprobs[sequence_id]),
            error=error,
        )

    found = []
    for request, group in zip(call.requests, call.groups, strict=True):
        if isinstance(request, OutriderError):
            nothing = Tally(lossy=lossy).metrics()
            refused = Choice(0, None, (), "error", (), nothing, error=request)
            found.append(GenerationOutput((), (refused,), 0))
        else:
            choices = tuple(choice(state.prefix.sequence_id) for state in group)
            found.append(GenerationOutput(request.token_ids, choices, request.seed))
    return found


def text_of(state: SequenceState, tokenizer: Tokenizer) -> str:
    """Return the text of a sequence, as `final_text` does.

    Raises:
        UserCodeError: the tokenizer raised.
    """
    with about(state.prefix.sequence_id, "decoding the text"):
        return final_text(state, tokenizer)


def events(call: Call, tokenizer: Tokenizer | None) -> Iterator[StreamEvent]:
    """Yield every token of some requests as soon as its round is over.

    Args:
        call: the requests.
        tokenizer: makes text of the tokens; without one there is none.

    Raises:
        OutriderError: the first error, unless they are kept.
    """
    streams = Streams(call.groups, tokenizer)
    for index, request in enumerate(call.requests):
        if isinstance(request, OutriderError):
            yield _ending(request, index)
    with closing(call.rounds()) as steps:
        for step in steps:
            if isinstance(step, OutriderError):
                yield from _endings(call, step)
                continue
            for row in range(len(step.emitted)):
                try:
                    yield from streams.of_row(step, row)
                except OutriderError as error:
                    yield from _endings(call, call.failed(error))


def _endings(call: Call, error: OutriderError) -> Iterator[StreamEvent]:
    for sequence_id, found in call.errors.items():
        if found is error:
            state = call.last[sequence_id]
            yield _ending(error, call.owner[sequence_id], state)


def _ending(error: OutriderError, request: int, state: SequenceState | None = None) -> StreamEvent:
    """Make the last event of a choice that failed."""
    return StreamEvent(
        request=request,
        choice=0 if state is None else state.choice,
        token_id=-1,
        text="",
        origin="correction",
        position=0 if state is None else len(state.output),
        round=0 if state is None else state.round,
        finish_reason="error",
        error=error,
    )


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
        if last:
            return decoder.finish(text_of(state, self._tokenizer))
        with about(state.prefix.sequence_id, "decoding the text"):
            return decoder.push(token)
