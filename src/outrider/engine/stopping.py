"""Decide when a sequence ends: stop tokens, stop strings, length; and where its text is cut."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from ..types.protocols import Tokenizer
from ..types.records import FinishReason, SequenceState
from .detokenize import REPLACEMENT, SafeOffsets

_MARGIN = 8
"""Tokens that are decoded beyond what stop strings need if each token holds a character."""


def until_stop(
    state: SequenceState, tokens: Sequence[int], tokenizer: Tokenizer | None
) -> tuple[list[int], FinishReason | None]:
    """Cut a round's tokens after the first that ends the sequence.

    A text in the form that was asked for ends at a token that ends the sequence, or with its last
    token where nothing can follow and no such token is left to say so.

    Args:
        state: the sequence before the round.
        tokens: what the round emits.
        tokenizer: for stop strings; requests that have some are refused without one.

    Returns:
        The tokens up to there, and why the sequence ended; None if it goes on.
    """
    ends = (i for i, token in enumerate(tokens) if token in state.stop_ids)
    # No tokenizer is asked behind the end.
    remaining = state.remaining
    found = list(tokens[: min(remaining, next(ends, len(tokens)) + 1)])
    cut = len(found)
    if state.params.stop and tokenizer is not None:
        by_text = _first_completed(state, found, tokenizer)
        cut = cut if by_text is None else by_text
    if state.grammar is not None:
        places = range(min(cut, len(found)))
        over = state.grammar.over
        cut = next((i for i in places if over(state.prefix, tuple(found[: i + 1]))), cut)
    if cut < len(found):
        return found[: cut + 1], "stop"
    if found and found[-1] in state.stop_ids:
        return found, "stop"
    return found, "length" if len(found) == remaining else None


def _first_completed(state: SequenceState, tokens: list[int], tokenizer: Tokenizer) -> int | None:
    """Return the index of the first token that completes a stop string, None if none does.

    Strings that were complete before `min_tokens` tokens do not count.
    """
    first = max(0, state.params.min_tokens - state.emitted - 1)
    stops = state.params.stop
    recent, before = _recent(state, tokens[:first], tokenizer)
    with suppress(Exception):  # A tokenizer may fail at a token behind the stop.
        text = _text(tokenizer, [*recent, *tokens])
        # Where bytes are left unread, a later token may have made a text unreadable that held one.
        lasting = REPLACEMENT not in "".join([text, *stops])
        if lasting and find_stop(before, text, stops) is None:
            return None
    for index in range(first, len(tokens)):
        text = _text(tokenizer, [*recent, *tokens[: index + 1]])
        if find_stop(before, text, stops) is not None:
            return index
        before = text
    return None


def _recent(state: SequenceState, tokens: list[int], tokenizer: Tokenizer) -> tuple[list[int], str]:
    """Return the last emitted tokens, and their text with `tokens` after them.

    As many as it takes to find stop strings in them that `find_stop` finds in all of the output:
    all of it where a part may decode differently.
    """
    output, stops = state.prefix.tokens[state.prompt_length :], state.params.stop
    offsets = None if any(REPLACEMENT in stop for stop in stops) else SafeOffsets.of(tokenizer)
    needed = max(map(len, stops)) - 1
    width = needed + _MARGIN if offsets is not None else len(output)
    while offsets is not None and width < len(output):
        start = offsets.before(output, len(output) - width)
        ids = output[start:].tolist()
        text = _text(tokenizer, [*ids, *tokens])
        if len(text.strip(REPLACEMENT)) >= needed:
            return ids, text
        width *= 2
    ids = output.tolist()
    return ids, _text(tokenizer, [*ids, *tokens])


def find_stop(before: str, text: str, stops: Sequence[str]) -> tuple[int, int] | None:
    """Return where the first stop string begins and ends that a text holds, and its beginning not.

    A half character at the end of `before` is not yet what it will be.
    """
    settled = len(before.rstrip(REPLACEMENT))
    found = [(text.find(stop, max(0, settled - len(stop) + 1)), len(stop)) for stop in stops]
    return min(((place, place + size) for place, size in found if place >= 0), default=None)


def final_text(state: SequenceState, tokenizer: Tokenizer) -> str:
    """Return the text of an ended sequence, cut at the stop string that ended it if one did.

    A token that ended it is no part of the text, be it special or not.
    """
    ids, stops = state.output_ids, state.params.stop
    text = _text(tokenizer, ids)
    if state.finish_reason != "stop":
        return text
    before, included = _text(tokenizer, ids[:-1]), state.params.include_stop_str_in_output
    place = find_stop(before, text, stops)
    if place is not None:
        return text[: place[included]]
    if ids[-1] not in state.stop_ids:
        return text
    name = tokenizer.decode(ids[-1:])
    return before + name if included and name in stops else before


def _text(tokenizer: Tokenizer, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=True)
