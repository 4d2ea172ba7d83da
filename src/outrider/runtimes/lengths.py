"""How long texts may be that a runtime computes: what is asked for, and what fits."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..config.validation import integer
from ..errors import ContextLengthError, EmptyPrefixError, InvalidConfigError
from ..types.records import Prefix

PREFILLED_ALONE = 16
"""Rows of a batch that miss more tokens than this are prefilled by themselves first."""


def checked_length(asked: int | None, context: int | None) -> int:
    """Return the longest prefix: what is asked for, or the model's context.

    Raises:
        InvalidConfigError: it does not fit the context, or neither is known.
    """
    if asked is None and context is None:
        raise InvalidConfigError(
            "max_length", None, "an integer >= 2, because the model's config states no context"
        )
    if asked is None:
        return int(context or 0)
    expected = None if context is None else f"an integer in 2..{context}, the model's context"
    return integer("max_length", asked, 2, context or math.inf, expected)


def check_lengths(prefixes: Sequence[Prefix], drafts: Sequence[int], longest: int) -> None:
    """Refuse prefixes without tokens, and those that do not fit.

    Args:
        prefixes: of any sequences.
        drafts: how many follow each in a row.
        longest: how long a prefix and its drafts may be together.

    Raises:
        EmptyPrefixError, ContextLengthError: see `Runtime.verify`.
    """
    for prefix, more in zip(prefixes, drafts, strict=True):
        name, length = prefix.sequence_id, len(prefix)
        if length == 0:
            raise EmptyPrefixError(f"sequence {name} has no tokens; a prefix needs at least one")
        if length + more > longest:
            raise ContextLengthError(
                f"sequence {name} has {length} tokens and {more} drafts in a row; the model's "
                f"context is {longest}"
            )


def overfed(fed: int, longest: int) -> ContextLengthError:
    """Make the error of a cursor that is fed more tokens than any of its rows has room for."""
    return ContextLengthError(
        f"{fed} tokens were fed to a cursor whose prefixes have no room for them; the model's "
        f"context is {longest}: draft no further"
    )
