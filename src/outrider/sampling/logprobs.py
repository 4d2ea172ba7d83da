"""Log-probabilities of emitted tokens under the target's raw logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One emitted token's log-probability, natural, before temperature, penalties and filters.

    Attributes:
        token_id: the token.
        logprob: its own.
        top: the likeliest tokens with theirs, in descending order, as many as were asked for.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


Report = tuple[TokenLogprob, ...]


def report(
    logits: Tensor,
    nodes: Sequence[Sequence[int]],
    tokens: Sequence[list[int]],
    tops: list[int | None],
) -> tuple[Report, ...]:
    """Find the log-probabilities of a round's tokens, for the rows that ask for them.

    Args:
        logits: the target's, [B, N + 1, V].
        nodes: of each row, the nodes that its emitted tokens follow.
        tokens: the emitted tokens of each row.
        tops: how many likeliest tokens each row wants; None if it wants no report at all.

    Returns:
        A report for each row, empty where none is wanted.
    """
    width = logits.shape[1]
    wanted = [row for row, top in enumerate(tops) if top is not None]
    places = [row * width + node for row in wanted for node in nodes[row][: len(tokens[row])]]
    if not places:
        return ((),) * len(tops)
    rows = logits.flatten(0, 1)[torch.tensor(places, device=logits.device)]
    rows = rows.to(torch.promote_types(rows.dtype, torch.float32)).log_softmax(-1)
    chosen = torch.tensor([t for row in wanted for t in tokens[row]], device=rows.device)
    most = min(max(top for top in tops if top is not None), rows.shape[1])
    best = rows.topk(most, -1)
    own = rows.gather(1, chosen[:, None])
    packed = torch.cat([own.double(), best.values.double(), best.indices.double()], 1).tolist()
    found: list[Report] = [()] * len(tops)
    at = iter(packed)
    for row in wanted:
        top = min(tops[row] or 0, most)
        entries = []
        for token, numbers in zip(tokens[row], at, strict=False):
            pairs = zip(numbers[1 + most : 1 + most + top], numbers[1 : 1 + top], strict=True)
            likeliest = tuple((int(index), value) for index, value in pairs)
            entries.append(TokenLogprob(token, numbers[0], likeliest))
        found[row] = tuple(entries)
    return tuple(found)
