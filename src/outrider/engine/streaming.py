"""Turn rounds, as they happen, into events of one token each."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing

from ..types.protocols import Tokenizer
from ..types.records import SequenceState
from .batch import StepResult
from .detokenize import StreamDecoder
from .outputs import StreamEvent
from .stopping import final_text


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
    owner = {state.prefix.sequence_id: i for i, run in enumerate(requests) for state in run}
    decoders = {
        state.prefix.sequence_id: StreamDecoder(tokenizer, state.params.stop)
        for run in requests
        for state in run
        if tokenizer is not None
    }
    with closing(steps):
        for step in steps:
            for row, (state, tokens) in enumerate(
                zip(step.batch.states, step.emitted, strict=True)
            ):
                sequence_id = state.prefix.sequence_id
                first = len(state.prefix) - state.prompt_length - len(tokens)
                for index, token in enumerate(tokens):
                    last = index == len(tokens) - 1 and state.finish_reason is not None
                    decoder = decoders.get(sequence_id)
                    text = None
                    if decoder is not None and tokenizer is not None:
                        text = (
                            decoder.finish(final_text(state, tokenizer))
                            if last
                            else decoder.push(token)
                        )
                    entry = step.logprobs[row][index] if step.logprobs[row] else None
                    yield StreamEvent(
                        request=owner[sequence_id],
                        choice=state.choice,
                        token_id=token,
                        text=text,
                        origin=step.origin(row, index),
                        position=first + index,
                        round=state.round - 1,
                        finish_reason=state.finish_reason if last else None,
                        logprob=None if entry is None else entry.logprob,
                        top_logprobs=None if entry is None else entry.top,
                    )
