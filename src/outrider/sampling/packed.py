"""What requests ask of logits, packed into tensors for a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..types.records import SequenceState


@dataclass(frozen=True, slots=True)
class Entries:
    """Numbers for rows and tokens: int64 [n], int64 [n] and float64 [n]."""

    rows: Tensor
    tokens: Tensor
    values: Tensor

    @staticmethod
    def of(entries: Sequence[tuple[int, int, float]], device: torch.device) -> Entries | None:
        """Pack entries; None if there are none."""
        if not entries:
            return None
        rows, tokens, values = zip(*entries, strict=True)
        return Entries(
            torch.tensor(rows, device=device),
            torch.tensor(tokens, device=device),
            torch.tensor(values, dtype=torch.float64, device=device),
        )

    def add(self, logits: Tensor, values: Tensor) -> None:
        """Add values [n, M] or [n, 1] to logits [B, M, V], in place."""
        nodes = torch.arange(logits.shape[1], device=logits.device)
        values = values.expand(len(self.rows), len(nodes)).to(logits.dtype)
        index = (self.rows[:, None], nodes, self.tokens[:, None])
        logits.index_put_(index, values, accumulate=True)


@dataclass(frozen=True, slots=True)
class PackedLogitsParams:
    """What the parameters of B requests do to logits, as tensors; None where none asks for it.

    Attributes:
        bias: logit biases.
        penalties: repetition, presence and frequency, float64 [B, 3, 1, 1].
        words: last tokens of bad words.
        before: the tokens before those, int64 [W, L], -1 at the left of shorter words.
        only: rows, each with the tokens that alone may come, int64 [n].
        allowed: the same on the host.
        floor: tokens that may not come before that many were emitted.
        processors, grammars: rows that have processors of their own, and a grammar.
    """

    bias: Entries | None
    penalties: Tensor | None
    words: Entries | None
    before: Tensor
    only: tuple[tuple[int, Tensor], ...]
    allowed: dict[int, frozenset[int]]
    floor: Entries | None
    processors: frozenset[int]
    grammars: frozenset[int]

    @staticmethod
    def pack(states: Sequence[SequenceState], device: torch.device) -> PackedLogitsParams | None:
        """Pack what the requests of B sequences ask for; None if none of them asks for anything."""
        rows = list(enumerate(states))
        biases = [(row, *bias) for row, state in rows for bias in state.params.biases]
        asked = [state.params for state in states]
        penalties = [(p.repetition_penalty, p.presence_penalty, p.frequency_penalty) for p in asked]
        packed = torch.tensor(penalties, dtype=torch.float64, device=device).view(-1, 3, 1, 1)
        bad = [(row, word) for row, state in rows for word in state.params.bad_words]
        longest = max((len(word) for _, word in bad), default=1) - 1
        before = [(-1,) * (longest + 1 - len(word)) + word[:-1] for _, word in bad]
        early = [
            (row, token, state.params.min_tokens)
            for row, state in rows
            if state.params.min_tokens
            for token in sorted(state.stop_ids)
        ]
        only = {
            row: state.params.allowed_token_ids
            for row, state in rows
            if state.params.allowed_token_ids is not None
        }
        made = PackedLogitsParams(
            bias=Entries.of(biases, device),
            penalties=packed if any(each != (1, 0, 0) for each in penalties) else None,
            words=Entries.of([(row, word[-1], -np.inf) for row, word in bad], device),
            before=torch.tensor(before, dtype=torch.int64, device=device).view(len(bad), longest),
            only=tuple((row, torch.tensor(ids, device=device)) for row, ids in only.items()),
            allowed={row: frozenset(ids) for row, ids in only.items()},
            floor=Entries.of(early, device),
            processors=frozenset(row for row, state in rows if state.processors),
            grammars=frozenset(row for row, state in rows if state.grammar is not None),
        )
        parts = (made.bias, made.penalties, made.words, made.floor)
        asks = made.only or made.processors or made.grammars
        return made if asks or any(part is not None for part in parts) else None
