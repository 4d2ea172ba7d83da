"""Log-probabilities of tokens, as JSON takes them and as lines for reading."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..sampling.logprobs import TokenLogprob
    from ..types.protocols import Tokenizer


def entries(told: Iterable[TokenLogprob], tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """What JSON holds of each token: its id, its text alone, its log-probability, the likeliest."""
    return [
        _entry(entry.token_id, entry.logprob, tokenizer)
        | {"top_logprobs": [_entry(*pair, tokenizer) for pair in entry.top]}
        for entry in told
    ]


def lines(told: Iterable[TokenLogprob], tokenizer: Tokenizer) -> Iterator[str]:
    """A line for each token."""
    yield "logprob  token (the likeliest)"
    for entry in told:
        likeliest = ", ".join(
            f"{tokenizer.decode([token])!r} {logprob:.3f}" for token, logprob in entry.top
        )
        beside = f" ({likeliest})" if likeliest else ""
        yield f"{entry.logprob:7.3f}  {tokenizer.decode([entry.token_id])!r}{beside}"


def _entry(token_id: int, logprob: float, tokenizer: Tokenizer) -> dict[str, Any]:
    return {"token_id": token_id, "token": tokenizer.decode([token_id]), "logprob": logprob}
