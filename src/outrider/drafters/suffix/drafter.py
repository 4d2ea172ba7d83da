"""Drafts from what followed the same tokens before: in the request itself, or in earlier ones.

Method: SuffixDecoding (Oliaro et al. 2024, arXiv 2411.04975). The longest match of the last tokens
and each shorter one make a draft: the commonest continuation, or a tree of the likeliest ones. A
token counts the product of the empirical frequencies down to it, and a draft the sum over its
tokens, which is how many of them are kept on average if the future resembles the past; the best one
is proposed, every token a point mass. It is no longer than `max_spec_factor` times its match.

Three things differ. Where the paper keeps suffix trees, suffix automata stand here (see
`suffix_automaton`). Occurrences that nothing has followed yet do not count as ones that something
else has followed. And between the request's own draft and the pool's decides not the score but an
estimate that trusts short matches less (`Candidate.expected`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from math import isfinite
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidConfigError
from ...types.protocols import DraftContext
from ...types.records import DraftPlan, Prefix
from ..candidate import Candidate, LookupDrafter, token_ids
from ..track_record import TrackRecord
from .automaton import SuffixAutomaton, prepare
from .pool import SuffixPool


@dataclass(slots=True)
class _Request:
    """One sequence: the prefix that was read, from token `start` on, and what may be learnt of it.

    `prompt_length` is that of `known`: the prefix of the last round that may be remembered, or what
    came of it.
    """

    automaton: SuffixAutomaton
    start: int
    prefix: Prefix
    known: Prefix | None = None
    prompt_length: int = 0


class SuffixDrafter(LookupDrafter):
    """Drafts what followed the last tokens before. Needs no second model.

    It finds the longest match in the request's own prompt and output, and in the outputs of earlier
    requests: a pool, which rows whose text must repeat (seeded ones) are never shown. The first
    one that is made on a machine takes some ten seconds, to compile. Threads may share it.

    Args:
        max_match: the longest match looked for, in tokens.
        min_match: the shortest, from 1 to `max_match`.
        max_spec_factor: a draft has at most this many tokens for each that matched, above 0,
        max_spec_offset: and this many more, at least 0.
        min_token_prob: tokens estimated to be kept less often are not proposed, in (0, 1].
        max_pool_tokens: how many tokens of earlier requests are kept, the latest; 0 keeps none,
            otherwise at least 4. At most 128 bytes each.
        max_request_tokens: how many of a request's own tokens are looked at, the latest (from half
            to all of that number once it is exceeded), at least 4. At most 128 bytes each.
        max_requests: how many requests' states are kept, those of the current batch apart; those
            unused for longest are dropped, and made again when asked for.
        pool_prompts: whether prompts go to the pool as well.

    Raises:
        InvalidConfigError: an argument is out of its range.
    """

    def __init__(
        self,
        *,
        max_match: int = 32,
        min_match: int = 1,
        max_spec_factor: float = 2.0,
        max_spec_offset: float = 0.0,
        min_token_prob: float = 0.1,
        max_pool_tokens: int = 1_000_000,
        max_request_tokens: int = 65_536,
        max_requests: int = 256,
        pool_prompts: bool = False,
    ) -> None:
        _require_integer("max_match", max_match, 1)
        _require_integer("min_match", min_match, 1)
        if min_match > max_match:
            raise InvalidConfigError(
                "min_match", min_match, f"an integer in 1..max_match={max_match}"
            )
        for name, value in (
            ("max_spec_factor", max_spec_factor),
            ("max_spec_offset", max_spec_offset),
            ("min_token_prob", min_token_prob),
        ):
            if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
                raise InvalidConfigError(name, value, "a finite number")
        if max_spec_factor <= 0:
            raise InvalidConfigError("max_spec_factor", max_spec_factor, "a number > 0")
        if max_spec_offset < 0:
            raise InvalidConfigError("max_spec_offset", max_spec_offset, "a number >= 0")
        if not 0 < min_token_prob <= 1:
            raise InvalidConfigError("min_token_prob", min_token_prob, "a number in (0, 1]")
        if max_pool_tokens != 0:
            _require_integer("max_pool_tokens", max_pool_tokens, 4, "0, to keep none, or ")
        _require_integer("max_request_tokens", max_request_tokens, 4)
        _require_integer("max_requests", max_requests, 1)
        self.max_match = max_match
        self.min_match = min_match
        self.max_spec_factor = float(max_spec_factor)
        self.max_spec_offset = float(max_spec_offset)
        self.min_token_prob = float(min_token_prob)
        self.max_request_tokens = max_request_tokens
        self.max_requests = max_requests
        self.pool_prompts = pool_prompts
        self._pool = SuffixPool(max_match, max_pool_tokens) if max_pool_tokens else None
        self._requests: dict[int, _Request] = {}
        self._record = TrackRecord()
        self._lock = Lock()
        prepare()

    @property
    def nbytes(self) -> int:
        """Bytes held for the pool and for requests."""
        with self._lock:
            pooled = 0 if self._pool is None else self._pool.nbytes
            return pooled + sum(request.automaton.nbytes for request in self._requests.values())

    @property
    def pooled_tokens(self) -> int:
        """How many tokens the pool holds, one for the end of each text included."""
        with self._lock:
            return 0 if self._pool is None else len(self._pool)

    def __getstate__(self) -> dict[str, Any]:
        """All but the lock, copied while no other thread changes it: to be pickled or copied."""
        with self._lock:
            return deepcopy({name: kept for name, kept in vars(self).items() if name != "_lock"})

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=Lock())
        prepare()

    def learn(self, tokens: Sequence[int] | NDArray[np.int64]) -> None:
        """Put a text into the pool: token ids that outputs are expected to resemble.

        Raises:
            InvalidConfigError: they are no flat sequence of token ids.
        """
        ids = token_ids("tokens", tokens)
        if self._pool is not None:
            with self._lock:
                self._pool.insert(ids)

    def candidates(
        self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: DraftContext
    ) -> list[Candidate]:
        """What would be proposed for each row, with its score.

        A function of the row's own prefix, and unless the row is `ctx.local` of the pool and of how
        often such tokens were kept so far.
        """
        rows = zip(
            prefixes,
            plan.depth.tolist(),
            plan.lengths.tolist(),
            ctx.local.tolist(),
            ctx.prompt_lengths.tolist(),
            strict=True,
        )
        found = []
        with self._lock:
            for prefix, depth, budget, local, prompt_length in rows:
                request = self._synchronised(prefix)
                if ctx.remembers:
                    request.known, request.prompt_length = prefix, prompt_length
                found.append(self._best(request, depth, budget, plan.levels is not None, local))
            self._forget_requests(len(prefixes))
            return self._record.applied(prefixes, found, ctx)

    def ended(self, prefixes: Sequence[Prefix]) -> None:
        """Note what these sequences came to, the tokens of their last rounds included."""
        with self._lock:
            for prefix in prefixes:
                request = self._requests.get(prefix.sequence_id)
                if request is not None and request.known is not None:
                    request.known = prefix

    def release(self, sequence_ids: Iterable[int], *, discard: bool = False) -> None:
        """Drop what is kept of these sequences; unless discarded, their outputs go to the pool.

        An output is known as `ended` told it, else up to the last round that was drafted for.
        """
        with self._lock:
            for sequence_id in sequence_ids:
                request = self._requests.pop(sequence_id, None)
                if request is None or request.known is None or discard or self._pool is None:
                    continue
                first = 0 if self.pool_prompts else request.prompt_length
                self._pool.insert(request.known.tokens[first:])

    def _best(
        self, request: _Request, depth: int, budget: int, branches: bool, local: bool
    ) -> Candidate:
        if depth == 0:
            return Candidate.nothing()
        limits = (
            budget,
            depth,
            self.max_spec_factor,
            self.max_spec_offset,
            self.min_token_prob,
            self.min_match,
        )
        own = request.automaton
        best = own.draft(own.own_match(), limits, branches)
        if not local and self._pool is not None:
            for automaton in self._pool.automata:
                match = automaton.match(request.prefix.tokens)
                if match[1] < self.min_match:
                    continue
                other = automaton.draft(match, limits, branches)
                if other.expected > best.expected:
                    best = other
        return best

    def _synchronised(self, prefix: Prefix) -> _Request:
        """The state of a sequence, brought to this prefix; it becomes the latest used."""
        request = self._requests.pop(prefix.sequence_id, None)
        start = self._start(prefix.length)
        read = 0 if request is None else request.prefix.length
        if (
            request is None
            or request.start != start
            or read > prefix.length
            or not np.array_equal(request.prefix.tokens, prefix.tokens[:read])
        ):
            automaton = SuffixAutomaton(self.max_match, self.max_request_tokens)
            known = None if request is None else request.known
            prompt_length = 0 if request is None else request.prompt_length
            request = _Request(automaton, start, prefix, known, prompt_length)
            read = start
        request.automaton.extend(prefix.tokens[read:])
        request.prefix = prefix
        self._requests[prefix.sequence_id] = request
        return request

    def _start(self, length: int) -> int:
        """The first token that is looked at of a sequence: a function of its length."""
        step = self.max_request_tokens // 2
        return -(-max(0, length - self.max_request_tokens) // step) * step

    def _forget_requests(self, current: int) -> None:
        """Drop the states unused for longest, those of the current batch never."""
        while len(self._requests) > max(self.max_requests, current):
            del self._requests[next(iter(self._requests))]


def _require_integer(name: str, value: object, least: int, otherwise: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidConfigError(name, value, f"{otherwise}an integer >= {least}")
