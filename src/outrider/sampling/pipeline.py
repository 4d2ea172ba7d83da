"""Apply what requests ask of logits, in the order that `SamplingParams` gives.

What looks at earlier tokens sees, at each drafted position, the drafted tokens before it, as if
they had been emitted. A draft may lead where no sequence ever comes: behind what ends the request,
below a token that the request forbids, or below one that verification will refuse. So that the
outcome is that of decoding without drafts:

- Processors and grammars are not asked behind the end of the request, nor below a token that the
  request forbids.
- What they raise, and a grammar that allows nothing, is not an error of the round. The round emits
  the tokens of a kept path before the first such node, and the next one begins at that node: an
  error at a round's first node is raised, since decoding without drafts comes there as well. It
  names the sequence. What is raised while a draft is made is passed over: verification asks again.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import embedding

from ..config.processors import forked
from ..errors import DegenerateDistributionError, OutriderError, UserCodeError, about, shown
from ..types.records import SequenceState
from .grammar import Mask
from .packed import Entries, PackedLogitsParams
from .paths import Path
from .processors import called, named

_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
_ADDED = np.where(_BITS, 0.0, -np.inf)
"""What is added to eight logits whose bits in a mask are a byte, [256, 8]."""

Ended = Callable[[SequenceState, tuple[int, ...]], bool]
"""Whether drafted tokens, were they emitted, would have ended a request."""

_Place = tuple[int, tuple[int, ...]]
"""A node: its row, and the drafted tokens that lead to it."""


@dataclass(frozen=True, slots=True)
class PipelineResult:
    """Logits as the requests want them.

    Attributes:
        logits: [B, M, V], in max(float32, the dtype given); of blocked nodes without what
            processors and grammars say.
        blocked: nodes, by row and index, after which no token may be emitted in this round: what
            was raised there, or None where nothing was asked.
    """

    logits: Tensor
    blocked: dict[tuple[int, int], OutriderError | None]

    def usable(self, row: int, nodes: Sequence[int]) -> int:
        """Return how many nodes of a row's kept path, the prefix first, come before a blocked one.

        Raises:
            OutriderError: what was raised at the first node.
        """
        for count, node in enumerate(nodes):
            if (row, node) in self.blocked:
                error = self.blocked[row, node]
                if count == 0 and error is not None:
                    raise error
                return count
        return len(nodes)


class LogitsPipeline:
    """Processes the logits of one round.

    Args:
        packed: of the batch.
        states: its sequences.
        device: of the logits.
        ended: where requests end; None for nowhere.
        masks: of the round, filled as they are made; shared by both pipelines.
    """

    def __init__(
        self,
        packed: PackedLogitsParams,
        states: Sequence[SequenceState],
        device: torch.device,
        ended: Ended | None = None,
        masks: dict[_Place, Mask | None] | None = None,
    ) -> None:
        self._packed = packed
        self._states = states
        self._ended = ended
        self.masks = {} if masks is None else masks
        self._after: dict[_Place, tuple[Any, ...]] = {}
        self._logits: dict[_Place, Tensor] = {}
        self._peaks: dict[_Place, list[Tensor]] = {}
        self._blocked: set[_Place] = set()
        lengths = [state.prefix.length - state.prompt_length for state in states]
        self._emitted = torch.tensor(lengths, device=device)[:, None]
        if packed.penalties is not None:
            counted = torch.from_numpy(_counted(states)).to(device)
            self._seen, self._uses = counted[0], counted[1:]
        if packed.words is not None:
            longest = packed.before.shape[1]
            padding = np.full(longest, -1)
            tails = [np.concatenate([padding, state.prefix.tokens[-longest:]]) for state in states]
            last = np.stack([tail[len(tail) - longest :] for tail in tails])
            self._tails = torch.from_numpy(last).to(device)

    def __call__(self, logits: Tensor, path: Path) -> PipelineResult:
        """Process logits [B, M, V] after the M nodes of a path."""
        processed = logits.to(torch.promote_types(logits.dtype, torch.float32), copy=True)
        packed = self._packed
        if packed.bias is not None:
            packed.bias.add(processed, packed.bias.values[:, None])
        if packed.penalties is not None:
            processed = self._penalised(processed, path, packed.penalties.to(processed.dtype))
        if packed.words is not None:
            packed.words.add(processed, _forbidden(self._completed(packed.words, path)))
        for row, allowed in packed.only:
            kept = processed[row, :, allowed]
            processed[row] = -torch.inf
            processed[row, :, allowed] = kept
        ends = None
        if packed.floor is not None:
            early = (self._emitted + path.depth)[packed.floor.rows] < packed.floor.values[:, None]
            ends = processed[packed.floor.rows, :, packed.floor.tokens]
            ends = ends.masked_fill(~early, -torch.inf)
            packed.floor.add(processed, _forbidden(early))
        return PipelineResult(processed, self._ask(processed, path, ends))

    def drafting(self) -> LogitsPipeline:
        """Return one for the round's drafts, whose processors go their own way."""
        twin = copy.copy(self)
        twin._after, twin._logits, twin._peaks, twin._blocked = {}, {}, {}, set()
        return twin

    def not_finite(self, row: int) -> OutriderError | None:
        """Return the error of the first processor whose logits after a row's prefix allow no draw.

        None if there is none. Asking waits for the device.
        """
        sequence_id, place = self._states[row].prefix.sequence_id, (row, ())
        for index, (before, after) in enumerate(pairwise(self._peaks.get(place, ()))):
            if before.isfinite() and not after.isfinite():
                _, name = named(self._after[place][index])
                return UserCodeError(
                    f"logits_processors[{index}] of sequence {sequence_id}, {name}, returned "
                    f"logits whose largest is {float(after)}; expected logits without NaN or +inf, "
                    "one of them finite",
                    sequence_id=sequence_id,
                )
        return None

    def forbids(self, row: int, drafted: tuple[int, ...], token: int) -> bool:
        """Return whether a row's request forbids a token after drafted ones, whatever the logits.

        Processors of a user's own are not asked.
        """
        state, packed = self._states[row], self._packed
        params, emitted = state.params, state.emitted + len(drafted)
        if row in packed.allowed and token not in packed.allowed[row]:
            return True
        if emitted < params.min_tokens and token in state.stop_ids:
            return True
        for *before, last in params.bad_words:
            if last == token:
                text = state.prefix.tokens[max(0, len(state.prefix) - len(before)) :].tolist()
                if not before or [*text, *drafted][-len(before) :] == before:
                    return True
        if row not in packed.grammars:
            return False
        mask = self._mask(row, drafted)
        return mask is None or not mask[token >> 3] >> (token & 7) & 1

    def processors(self, row: int, path: Sequence[int]) -> tuple[Any, ...]:
        """Return a row's processors as they stand after the last call on a path.

        For what a round emitted, the path is all of its tokens but the last.
        """
        for length in range(len(path), -1, -1):
            found = self._after.get((row, tuple(path[:length])))
            if found is not None:
                return found
        return self._states[row].processors

    def _penalised(self, logits: Tensor, path: Path, penalties: Tensor) -> Tensor:
        """Apply the penalties to logits [B, M, V], in place, at the tokens that came before."""
        # A place without a token stands for one that was seen, and comes to the same as that.
        drafted = path.tokens.where(path.real, self._seen[:, :1, None])
        repeats = (drafted[..., None] == drafted[..., None, :]) & path.real[..., None, :]
        place = torch.searchsorted(self._seen, drafted.flatten(1)).clamp(
            max=self._seen.shape[1] - 1
        )
        known = self._seen.gather(1, place) == drafted.flatten(1)
        uses = self._uses.gather(2, place.expand(2, *place.shape)) * known
        uses = uses.view(2, *drafted.shape) + repeats.sum(-1)
        before = logits.gather(2, drafted)
        seen = self._seen[:, None].expand(-1, logits.shape[1], -1)
        punished = _punished(logits.gather(2, seen), self._uses[:, :, None], penalties)
        logits.scatter_(2, seen, punished)
        return logits.scatter_(2, drafted, _punished(before, uses, penalties))

    def _completed(self, words: Entries, path: Path) -> Tensor:
        """Return before which nodes all of a word but its last token came, bool [W, M]."""
        before = self._packed.before
        batch, nodes = path.tokens.shape[:2]
        tails = self._tails[words.rows][:, None].expand(-1, nodes, -1)
        history = torch.cat([tails, path.tokens[words.rows]], 2)
        depth = path.depth.expand(batch, nodes)[words.rows]
        last = depth[..., None] + torch.arange(before.shape[1], device=before.device)
        wanted = before[:, None]
        return ((history.gather(2, last) == wanted) | (wanted == -1)).all(-1)

    def _ask(
        self, processed: Tensor, path: Path, ends: Tensor | None
    ) -> dict[tuple[int, int], OutriderError | None]:
        """Ask the rows' own processors and grammars node by node, on logits [B, M, V], in place.

        In lexical order of their paths: parents come before their children.

        Args:
            processed: the logits.
            path: what leads to the nodes.
            ends: logits [n, M] that `floor` took from its entries; -inf where it took none.
        """
        blocked: dict[tuple[int, int], OutriderError | None] = {}
        places: list[tuple[int, int]] = []
        masks: list[Mask] = []
        packed = self._packed
        rows = sorted(packed.processors | packed.grammars)
        for row, paths in path.listed(rows).items() if rows else ():
            for node in sorted(range(len(paths)), key=paths.__getitem__):
                drafted, mask = paths[node], None
                try:
                    with about(self._states[row].prefix.sequence_id, "logits processing"):
                        if not self._reached(row, drafted):
                            blocked[row, node] = None
                            self._blocked.add((row, drafted))
                            continue
                        if row in packed.grammars:
                            mask = self._mask(row, drafted)
                            if mask is None:
                                raise nothing_left(self._states[row])
                        if row in packed.processors:
                            self._process(row, drafted, processed[row, node])
                except OutriderError as error:
                    blocked[row, node] = error
                    self._blocked.add((row, drafted))
                    continue
                if mask is not None:
                    places.append((row, node))
                    masks.append(mask)
        left = _masked(processed, places, masks) if places else ()
        for (row, node), mask, some in zip(places, masks, left, strict=True):
            if not some and not self._ends_early(processed, (row, node), mask, ends):
                blocked[row, node] = nothing_left(self._states[row])
        return blocked

    def _ends_early(
        self, processed: Tensor, place: tuple[int, int], mask: Mask, ends: Tensor | None
    ) -> bool:
        """Let the end come before `min_tokens` where nothing else may; return whether it may."""
        floor, (row, node) = self._packed.floor, place
        if floor is None or ends is None:
            return False
        own = floor.rows == row
        alone = torch.full_like(processed[row, node], -torch.inf)
        alone[floor.tokens[own]] = ends[own, node]
        (some,) = _masked(alone[None, None], [(0, 0)], [mask])
        if some:
            processed[row, node] = alone
        return some

    def _reached(self, row: int, drafted: tuple[int, ...]) -> bool:
        """Return whether a sequence may come to a node, as far as the nodes before it tell."""
        if not drafted:
            return True
        above = (row, drafted[:-1])
        if above in self._blocked or (self._ended and self._ended(self._states[row], drafted)):
            return False
        return above not in self._logits or bool(self._logits[above][drafted[-1]] != -torch.inf)

    def _mask(self, row: int, drafted: tuple[int, ...]) -> Mask | None:
        """Return the mask of a node of a row that has a grammar; None if it allows nothing."""
        state, place = self._states[row], (row, drafted)
        if place not in self.masks:
            self.masks[place] = state.grammar.mask(state.prefix, drafted)
        return self.masks[place]

    def _process(self, row: int, drafted: tuple[int, ...], logits: Tensor) -> None:
        """Call a row's own processors on the logits [V] of a node, in place."""
        state = self._states[row]
        tokens = torch.from_numpy(state.prefix.tokens)
        history = torch.cat([tokens, torch.tensor(drafted, dtype=torch.int64)]).to(logits.device)
        running = tuple(map(forked, self.processors(row, drafted[:-1] if drafted else ())))
        processed = logits.clone()
        peaks = [logits.amax()]
        for index, processor in enumerate(running):
            place = f"logits_processors[{index}] of sequence {state.prefix.sequence_id}"
            processed = called(processor, history, processed, place)
            peaks.append(processed.amax())
        logits.copy_(processed)
        self._peaks[row, drafted] = peaks
        self._after[row, drafted] = running
        self._logits[row, drafted] = logits


def _punished(logits: Tensor, uses: Tensor, penalties: Tensor) -> Tensor:
    """Apply penalties [B, 3, 1, 1] to the logits [B, M, T] of some tokens.

    Args:
        logits: of the tokens.
        uses: how often the output and the whole prefix hold each, [2, B, M, T].
        penalties: repetition, presence and frequency.
    """
    counts, seen = uses.unbind(0)
    repetition, presence, frequency = penalties.unbind(1)
    punished: Tensor = torch.where(logits > 0, logits / repetition, logits * repetition)
    repeated = torch.where(seen > 0, punished, logits)
    return repeated - frequency * counts - presence * (counts > 0)


def _counted(states: Sequence[SequenceState]) -> NDArray[np.int64]:
    """List the tokens of each prefix, and how often the output and the prefix hold them, [3, B, S].

    In order of their ids; at the end of shorter rows the last one is repeated.
    """
    found = []
    for state in states:
        uses = np.bincount(state.prefix.tokens)
        emitted = np.bincount(state.prefix.tokens[state.prompt_length :], minlength=len(uses))
        seen = np.flatnonzero(uses)
        found.append(np.stack([seen, emitted[seen], uses[seen]]))
    longest = max(part.shape[1] for part in found)
    return np.stack([np.pad(p, ((0, 0), (0, longest - p.shape[1])), "edge") for p in found], 1)


def _masked(logits: Tensor, places: list[tuple[int, int]], masks: list[Mask]) -> list[bool]:
    """Set logits [B, M, V] that the masks of places (row, node) forbid to -inf, in place.

    Says of each mask whether any token was left; where none was, the logits are as they were.
    """
    rows, nodes = torch.tensor(places, device=logits.device).T
    bits = torch.from_numpy(np.stack(masks)).to(logits.device)
    table = torch.from_numpy(_ADDED).to(logits)
    given = logits[rows, nodes]
    masked = given + embedding(bits.int(), table).flatten(1)[:, : logits.shape[2]]
    left = masked.amax(-1) > -torch.inf
    logits[rows, nodes] = torch.where(left[:, None], masked, given)
    found: list[bool] = left.tolist()
    return found


def nothing_left(state: SequenceState) -> DegenerateDistributionError:
    """Return the error of a sequence whose grammar, or what else it asks, allows no token."""
    asked = state.grammar.asked
    field = f"structured_output.{asked.kind}"
    return DegenerateDistributionError(
        f"no token could follow: {field}={shown(asked.value)} led to a dead end, or bad_words, "
        "allowed_token_ids, min_tokens or a logits processor forbid what it allows; expected at "
        "least one token that all of them allow (relax one of them)",
        sequence_id=state.prefix.sequence_id,
        field=field,
    )


def _forbidden(where: Tensor) -> Tensor:
    """Return minus infinity where a condition holds, 0 elsewhere."""
    return torch.zeros(where.shape, device=where.device).masked_fill(where, -torch.inf)
