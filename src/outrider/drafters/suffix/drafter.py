"""Drafts from what followed the same tokens before: in the request itself, or in earlier ones.

Method: SuffixDecoding (Oliaro et al. 2024, arXiv 2411.04975), with a search in place of a suffix
tree. A chain follows the commonest continuation; a tree takes the likeliest continuation on offer
each time. A draft of a match of m tokens has at most `factor * m + offset` tokens, and counts the
number of its tokens that are expected to be kept; the best draft is proposed, of equals that of the
longer match. Of chains only the first `HORIZON` tokens count, so that which one is best does not
depend on how deep a round drafts.

Frequencies alone are too sure of themselves, since most contexts were seen once. So a token's
confidence is its share times the confidence that a match of m tokens lasts (see
`lookup.match_confidence`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from ...config.validation import integer, real
from ...types.records import DraftPlan, Prefix
from ..base import DraftContext
from ..lookup import HORIZON, NOTHING, Candidate, LookupDrafter, matches, token_ids

_LATEST = 1000
"""How many occurrences of a context are counted, the latest."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How large a draft may be.

    Attributes:
        depth: the most tokens in a row.
        tokens: the most tokens.
        branches: whether a tree is wanted.
        factor: the most tokens for each that matched,
        offset: and this many more.
        least: the least probability of a token, with all before it.
        shortest: the shortest match.
    """

    depth: int
    tokens: int
    branches: bool
    factor: float = 2.0
    offset: float = 0.0
    least: float = 0.1
    shortest: int = 1


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
            8 bytes each; a look-up searches through all of them.
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
        pool_prompts: bool = False,
    ) -> None:
        self._max_match = integer("max_match", max_match, 1)
        expected = f"an integer in 1..max_match={max_match}"
        self._limits = partial(
            Limits,
            factor=real("max_spec_factor", max_spec_factor, "a number > 0", lambda x: x > 0),
            offset=real("max_spec_offset", max_spec_offset, "a number >= 0", lambda x: x >= 0),
            least=real(
                "min_token_prob", min_token_prob, "a number in (0, 1]", lambda x: 0 < x <= 1
            ),
            shortest=integer("min_match", min_match, 1, max_match, expected),
        )
        self._max_pool_tokens = integer("max_pool_tokens", max_pool_tokens, 0)
        self._pool_prompts = pool_prompts
        self._pool = np.empty(0, dtype=np.int64)
        # The prompt's length of each live sequence that may be learnt from.
        self._learnable: dict[int, int] = {}

    def learn(self, tokens: Sequence[int] | NDArray[np.int64]) -> None:
        """Put a text into the pool: token ids that outputs are expected to resemble.

        Raises:
            InvalidConfigError: they are no flat sequence of token ids.
        """
        ids = token_ids("tokens", tokens)
        if not len(ids):
            return
        pool = np.concatenate([self._pool, ids, [-1]])
        kept = np.flatnonzero(pool >= 0)
        surplus = len(kept) - self._max_pool_tokens
        self._pool = pool[kept[surplus - 1] + 1 :] if surplus > 0 else pool

    def candidates(
        self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: DraftContext
    ) -> list[Candidate]:
        """Return the best draft for each row, from the sequence itself or from the pool."""
        found = []
        rows = zip(prefixes, plan.depth, plan.lengths, ctx.prompt_lengths, ctx.local, strict=True)
        for prefix, depth, tokens, prompt_length, local in rows:
            if ctx.learning:
                self._learnable[prefix.sequence_id] = int(prompt_length)
            limits = self._limits(depth, tokens, plan.tree is not None)
            last = prefix.tokens[-self._max_match :]
            best = best_draft(prefix.tokens, last, limits)
            if not local:
                best = best_draft(self._pool, last, limits, best)
            found.append(best[1])
        return found

    def observe_output(self, prefixes: Sequence[Prefix]) -> None:
        """Put the outputs of sequences that ended into the pool."""
        for prefix in prefixes:
            prompt_length = self._learnable.pop(prefix.sequence_id, None)
            if prompt_length is not None:
                self.learn(prefix.tokens[0 if self._pool_prompts else prompt_length :])

    def release(self, sequence_ids: Iterable[int], *, discard: bool = False) -> None:
        """Forget these sequences; nothing is learnt of those that did not end."""
        for sequence_id in sequence_ids:
            self._learnable.pop(sequence_id, None)


Draft = tuple[float, Candidate]
"""How many tokens are expected to be kept, and the tokens."""


def best_draft(
    text: NDArray[np.int64],
    last: NDArray[np.int64],
    limits: Limits,
    best: Draft = (0.0, NOTHING),
) -> Draft:
    """Return the best draft over all suffixes of some tokens, or `best` if none is better.

    Args:
        text: where they are looked for, int64 [n]. Several texts are each ended by a -1.
        last: the tokens, int64 [m].
        limits: of the draft.
        best: what it has to exceed.
    """
    for places, length in matches(text[:-1], last):
        most = int(min(limits.tokens, limits.factor * length + limits.offset))
        levels = min(most, limits.depth, limits.depth if limits.branches else HORIZON)
        # What is expected if all followed each time; of a shorter match it is less.
        ceiling = sum(length / place for place in range(length + 1, length + levels + 1))
        if length < limits.shortest or ceiling <= best[0]:
            break
        draft = _grown(text, last[len(last) - length :].tolist(), places, most, limits)
        if draft[0] > best[0]:
            best = draft
    return best


def _grown(
    text: NDArray[np.int64],
    matched: list[int],
    places: NDArray[np.int64],
    most: int,
    limits: Limits,
) -> Draft:
    """Take the likeliest continuation on offer, `most` times; on a chain of the last token's."""
    tokens, parents, confidence, reached = list[int](), list[int](), list[float](), list[float]()
    offers: list[tuple[float, int, int, float, list[int], NDArray[np.int64]]] = []

    def offer(path: list[int], places: NDArray[np.int64], parent: int, reach: float) -> None:
        """Offer what followed a node; the latest of equals first, those of nodes in their order."""
        places = places[-_LATEST:]
        followed = text[places].tolist()
        counts, latest = Counter(followed), dict(zip(followed, places.tolist(), strict=True))
        counts.pop(-1, None)
        found = sorted(counts, key=lambda token: (counts[token], latest[token]), reverse=True)
        for token in found if limits.branches else found[:1]:
            own = counts[token] / len(followed) * len(path) / (len(path) + 1)
            if reach * own >= limits.least:
                item = -reach * own, parent, -latest[token], own, [*path, token], places
                heappush(offers, item)

    offer(matched, places, 0, 1.0)
    while offers and len(tokens) < most:
        reach, parent, _, own, path, places = heappop(offers)
        tokens.append(path[-1])
        parents.append(parent)
        confidence.append(own)
        reached.append(-reach)
        if len(path) == len(matched) + limits.depth:
            continue
        places = places[text[places] == path[-1]] + 1
        places = places[places < len(text)]
        if not len(places):  # All of it has been at the end of the text alone: a shorter context.
            places, _ = next(iter(matches(text[:-1], np.array(path))), (places, 0))
        offer(path, places, len(tokens), -reach)
    counted = reached if limits.branches else reached[:HORIZON]
    return sum(counted), Candidate(
        np.array(tokens, dtype=np.int64),
        np.array(confidence),
        np.array(parents, dtype=np.int64) if limits.branches else None,
    )
