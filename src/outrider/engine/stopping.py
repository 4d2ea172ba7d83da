"""When a sequence ends: stop tokens, stop strings, length; and where its text is cut."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import DegenerateDistributionError, shown
from ..types.protocols import Tokenizer
from ..types.records import FinishReason, SequenceState
from .anchors import Anchors

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

_MARGIN = 8
"""Tokens that are decoded beyond what stop strings need if each token holds a character."""


def until_stop(
    state: SequenceState, tokens: list[int], tokenizer: Tokenizer | None
) -> tuple[list[int], FinishReason | None]:
    """The tokens of a round up to the first that ends the sequence, and why it ended.

    A text in the form that was asked for ends at a token that ends the sequence, or with its last
    token where nothing can follow and no such token is left to say so. Before `min_tokens` tokens
    that is a dead end, as it is where the end may not be said.

    Args:
        state: the sequence before the round.
        tokens: what the round emits.
        tokenizer: for stop strings; requests that have some are refused without one.

    Raises:
        DegenerateDistributionError: a token is not one that the request's grammar allows, which
            is what is left where it allows none; or the text is whole before `min_tokens` tokens.
    """
    by_text = None
    if state.params.stop and tokenizer is not None:
        by_text = _first_completed(state, tokens, tokenizer)
    grammar, output = state.grammar, state.output
    for index, token in enumerate(tokens):
        if grammar is not None:
            if not grammar.takes(output, token):
                raise _nothing_left(state, len(output))
            output = output.plus((token,))
        if token in state.stop_ids or index == by_text:
            return tokens[: index + 1], "stop"
        if grammar is not None and grammar.over(output):
            if len(output) < state.params.min_tokens:
                raise _nothing_left(state, len(output))
            return tokens[: index + 1], "stop"
        if index + 1 == state.remaining:
            return tokens[: index + 1], "length"
    return tokens, None


def _nothing_left(state: SequenceState, length: int) -> DegenerateDistributionError:
    grammar = state.grammar
    assert grammar is not None
    return DegenerateDistributionError(
        f"no token could follow the {length} of sequence {state.prefix.sequence_id}: "
        f"structured_output.{grammar.asked.kind}={shown(grammar.asked.value)} led to a dead end, "
        "or bad_words, min_tokens or a logits processor forbid what it allows; expected at least "
        "one token that all of them allow (relax one of them)",
        sequence_id=state.prefix.sequence_id,
    )


def _first_completed(state: SequenceState, tokens: list[int], tokenizer: Tokenizer) -> int | None:
    """The index of the first token with which the text holds a stop string, None if none does.

    Strings that were complete before `min_tokens` tokens do not count.
    """
    emitted = state.prefix.length - state.prompt_length
    first = max(0, state.params.min_tokens - emitted - 1)
    stops = state.params.stop
    recent, before = _recent(state, tokens[:first], tokenizer)
    text = _text(tokenizer, [*recent, *tokens])
    # Where bytes are left unread, a later token may have made a text unreadable that held one.
    lasting = _REPLACEMENT not in "".join([text, *stops])
    if lasting and find_stop(before, text, stops) is None:
        return None
    for index in range(first, len(tokens)):
        text = _text(tokenizer, [*recent, *tokens[: index + 1]])
        if find_stop(before, text, stops) is not None:
            return index
        before = text
    return None


def _recent(state: SequenceState, tokens: list[int], tokenizer: Tokenizer) -> tuple[list[int], str]:
    """The last emitted tokens, and their text with `tokens` after them.

    As many as it takes to find stop strings in them that `find_stop` finds in all of the output:
    all of it where a part may decode differently.
    """
    output, stops = state.prefix.tokens[state.prompt_length :], state.params.stop
    anchors = None if any(_REPLACEMENT in stop for stop in stops) else Anchors.of(tokenizer)
    needed = max(map(len, stops)) - 1
    width = needed + _MARGIN if anchors is not None else len(output)
    while anchors is not None and width < len(output):
        start = anchors.before(output, len(output) - width)
        ids = output[start:].tolist()
        text = _text(tokenizer, [*ids, *tokens])
        if len(text.strip(_REPLACEMENT)) >= needed:
            return ids, text
        width *= 2
    ids = output.tolist()
    return ids, _text(tokenizer, [*ids, *tokens])


def find_stop(before: str, text: str, stops: Sequence[str]) -> int | None:
    """Where the first stop string begins that `text` holds and `before`, its beginning, does not.

    A half character at the end of `before` is not yet what it will be.
    """
    settled = len(before.rstrip(_REPLACEMENT))
    found = [text.find(stop, max(0, settled - len(stop) + 1)) for stop in stops]
    return min((place for place in found if place >= 0), default=None)


def final_text(state: SequenceState, tokenizer: Tokenizer) -> str:
    """The text of an ended sequence, cut before the stop string that ended it if one did."""
    ids = state.output_ids
    text = _text(tokenizer, ids)
    if state.finish_reason != "stop" or not state.params.stop:
        return text
    place = find_stop(_text(tokenizer, ids[:-1]), text, state.params.stop)
    return text if place is None else text[:place]


def held_back(text: str, stops: Sequence[str]) -> int:
    """How many characters at the end of `text` may be the beginning of a stop string."""
    most = max((len(stop) for stop in stops), default=1) - 1
    for length in range(min(most, len(text)), 0, -1):
        if any(stop.startswith(text[-length:]) for stop in stops):
            return length
    return 0


def _text(tokenizer: Tokenizer, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=True)
