"""Drafts from what followed the same tokens before: in the request itself, or in earlier ones.

Method: SuffixDecoding (Oliaro et al. 2024, arXiv 2411.04975), over suffix automata in place of
suffix trees. See `draft` for the drafts, `pool` for what is kept of earlier requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidConfigError
from ...types.records import DraftPlan, Prefix
from ..base import DraftContext
from ..lookup import Candidate, LookupDrafter, token_ids
from .automaton import SuffixAutomaton
from .draft import Limits, best_draft
from .pool import SuffixPool


@dataclass(slots=True)
class _Request:
    """One sequence.

    Attributes:
        automaton: of `prefix`, from token `start` on.
        known: the longest prefix that may be learnt from; None if there is none.
        prompt_length: of `known`.
    """

    automaton: SuffixAutomaton
    start: int
    prefix: Prefix
    known: Prefix | None = None
    prompt_length: int = 0


class SuffixDrafter(LookupDrafter):
    """Drafts what followed the last tokens before. Needs no second model.

    It finds the longest match in the request's own prompt and output, and in the outputs of earlier
    requests: a pool, which is never used for rows whose text must repeat (seeded ones). A drafter
    belongs to one decoder at a time.

    Args:
        max_match: the longest match looked for, in tokens.
        min_match: the shortest, from 1 to `max_match`.
        max_spec_factor: a draft has at most this many tokens for each that matched, above 0,
        max_spec_offset: and this many more, at least 0.
        min_token_prob: tokens estimated to be kept less often are not proposed, in (0, 1].
        max_pool_tokens: how many tokens of earlier requests are kept, the latest; 0 keeps none.
            Some 600 bytes each.
        max_request_tokens: how many of a request's own tokens are looked at, the latest (from half
            to all of that number once it is exceeded), at least 2. Some 600 bytes each.
        pool_prompts: whether prompts go to the pool as well.

    Raises:
        InvalidConfigError: an argument is out of its range.
    """

    source = "suffix"

    def __init__(
        self,
        *,
        max_match: int = 32,
        min_match: int = 1,
        max_spec_factor: float = 2.0,
        max_spec_offset: float = 0.0,
        min_token_prob: float = 0.1,
        max_pool_tokens: int = 100_000,
        max_request_tokens: int = 65_536,
        pool_prompts: bool = False,
    ) -> None:
        _require_integer("max_match", max_match, 1)
        _require_integer("min_match", min_match, 1)
        if min_match > max_match:
            expected = f"an integer in 1..max_match={max_match}"
            raise InvalidConfigError("min_match", min_match, expected)
        _require_number("max_spec_factor", max_spec_factor)
        if max_spec_factor == 0:
            raise InvalidConfigError("max_spec_factor", max_spec_factor, "a number > 0")
        _require_number("max_spec_offset", max_spec_offset)
        _require_number("min_token_prob", min_token_prob)
        if not 0 < min_token_prob <= 1:
            raise InvalidConfigError("min_token_prob", min_token_prob, "a number in (0, 1]")
        _require_integer("max_pool_tokens", max_pool_tokens, 0)
        _require_integer("max_request_tokens", max_request_tokens, 2)
        self.max_match = max_match
        self.min_match = min_match
        self.max_spec_factor = float(max_spec_factor)
        self.max_spec_offset = float(max_spec_offset)
        self.min_token_prob = float(min_token_prob)
        self.max_request_tokens = max_request_tokens
        self.pool_prompts = pool_prompts
        self._pool = SuffixPool(max_match, max_pool_tokens) if max_pool_tokens else None
        self._requests: dict[int, _Request] = {}

    @property
    def pooled_tokens(self) -> int:
        """How many tokens of earlier requests are kept."""
        return 0 if self._pool is None else len(self._pool)

    def learn(self, tokens: Sequence[int] | NDArray[np.int64]) -> None:
        """Put a text into the pool: token ids that outputs are expected to resemble.

        Raises:
            InvalidConfigError: they are no flat sequence of token ids.
        """
        ids = token_ids("tokens", tokens)
        if self._pool is not None:
            self._pool.insert(ids)

    def candidates(
        self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: DraftContext
    ) -> list[Candidate]:
        """Return the best draft for each row, from the sequence itself or from the pool."""
        rows = zip(
            prefixes,
            plan.depth.tolist(),
            plan.lengths.tolist(),
            ctx.local.tolist(),
            ctx.prompt_lengths.tolist(),
            strict=True,
        )
        found = []
        for prefix, depth, budget, local, prompt_length in rows:
            request = self._read(prefix)
            if ctx.learning:
                request.known, request.prompt_length = prefix, prompt_length
            limits = Limits(
                depth,
                budget,
                plan.tree is not None,
                self.max_spec_factor,
                self.max_spec_offset,
                self.min_token_prob,
                self.min_match,
            )
            found.append(self._best(request, limits, None if local else self._pool))
        return found

    def observe_output(self, prefixes: Sequence[Prefix]) -> None:
        """Note the whole text of sequences that ended, for the pool."""
        for prefix in prefixes:
            request = self._requests.get(prefix.sequence_id)
            if request is not None and request.known is not None:
                request.known = prefix

    def release(self, sequence_ids: Iterable[int], *, discard: bool = False) -> None:
        """Forget these sequences; unless discarded, their outputs go to the pool."""
        for sequence_id in sequence_ids:
            request = self._requests.pop(sequence_id, None)
            if request is None or request.known is None or discard or self._pool is None:
                continue
            first = 0 if self.pool_prompts else request.prompt_length
            self._pool.insert(request.known.tokens[first:])

    def _best(self, request: _Request, limits: Limits, pool: SuffixPool | None) -> Candidate:
        own = request.automaton
        best = best_draft(own, own.own_match(), limits)
        last = request.prefix.tokens[-self.max_match :].tolist() if pool else []
        for automaton in pool or ():
            best = best_draft(automaton, automaton.match(last), limits, best)
        return best[1]

    def _read(self, prefix: Prefix) -> _Request:
        """Return the state of a sequence, brought to this prefix."""
        request = self._requests.get(prefix.sequence_id)
        start = self._start(prefix.length)
        if request is None or request.start != start or not request.prefix.begins(prefix):
            request = _Request(
                SuffixAutomaton(self.max_match),
                start,
                prefix,
                None if request is None else request.known,
                0 if request is None else request.prompt_length,
            )
            self._requests[prefix.sequence_id] = request
            request.automaton.extend(prefix.tokens[start:].tolist())
        else:
            request.automaton.extend(prefix.tokens[request.prefix.length :].tolist())
        request.prefix = prefix
        return request

    def _start(self, length: int) -> int:
        """Return the first token that is looked at of a sequence: a function of its length."""
        step = self.max_request_tokens // 2
        return -(-max(0, length - self.max_request_tokens) // step) * step


def _require_integer(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidConfigError(name, value, f"an integer >= {least}")


def _require_number(name: str, value: float) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not isfinite(value) or value < 0:
        raise InvalidConfigError(name, value, "a finite number >= 0")
