"""What a request adds to logits, or forbids, before they become a distribution.

In transformers' order: logit bias, repetition penalty, presence and frequency penalties, bad words,
minimum length; then processors of a user's own, then structured output. What looks at earlier
tokens sees, at each drafted position, the drafted tokens before it, as if they had been emitted.
Nothing here loops over the vocabulary, nor over positions but for processors and grammars.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..config.processors import StatefulProcessor, forked
from ..errors import InvalidConfigError
from ..types.records import SequenceState
from .masks import RoundMasks
from .paths import Path

Processor = Callable[[Tensor, Tensor], Tensor]
"""From the tokens so far, int64 [L], and their logits [V] to logits [V]."""

_Place = tuple[int, tuple[int, ...]]
"""A node: its row, and the drafted tokens that lead to it."""


@dataclass(frozen=True, slots=True)
class _Words:
    """Bad words of one length n: the row of each, its first n - 1 tokens [W, n - 1], its last."""

    rows: Tensor
    before: Tensor
    last: Tensor


@dataclass(frozen=True, slots=True)
class Shaping:
    """What the parameters of B requests do to logits, as tensors; None where none asks for it.

    Attributes:
        bias: rows, tokens and values [n] of logit biases.
        repetition: float64 [B, 1, 1], 1 where unused.
        presence, frequency: float64 [B, 1, 1], 0 where unused.
        words: bad words, by length.
        floor: rows and tokens [n] that may not come before min_tokens [n].
        processors: rows that have processors of their own.
        grammars: rows that have a grammar.
    """

    bias: tuple[Tensor, Tensor, Tensor] | None
    repetition: Tensor | None
    presence: Tensor | None
    frequency: Tensor | None
    whole: tuple[bool, ...]
    words: tuple[_Words, ...]
    floor: tuple[Tensor, Tensor, Tensor] | None
    processors: tuple[int, ...]
    grammars: tuple[int, ...]

    @staticmethod
    def pack(states: Sequence[SequenceState], device: torch.device) -> Shaping | None:
        """Pack what the requests of B sequences ask for; None if none of them asks for anything."""
        params = [state.params for state in states]

        def column(values: list[float], unused: float) -> Tensor | None:
            if all(value == unused for value in values):
                return None
            return torch.tensor(values, dtype=torch.float64, device=device)[:, None, None]

        def table(entries: list[tuple[int, int, float]]) -> tuple[Tensor, Tensor, Tensor] | None:
            if not entries:
                return None
            return (
                torch.tensor([row for row, _, _ in entries], device=device),
                torch.tensor([token for _, token, _ in entries], device=device),
                torch.tensor(
                    [value for _, _, value in entries], dtype=torch.float64, device=device
                ),
            )

        lengths: dict[int, list[tuple[int, tuple[int, ...]]]] = defaultdict(list)
        for row, asked in enumerate(params):
            for word in asked.bad_words:
                lengths[len(word)].append((row, word))
        shaping = Shaping(
            bias=table(
                [
                    (row, token, bias)
                    for row, asked in enumerate(params)
                    for token, bias in asked.biases
                ]
            ),
            repetition=column([p.repetition_penalty for p in params], 1.0),
            presence=column([p.presence_penalty for p in params], 0.0),
            frequency=column([p.frequency_penalty for p in params], 0.0),
            whole=tuple(p.repetition_penalty != 1 for p in params),
            words=tuple(
                _Words(
                    torch.tensor([row for row, _ in found], device=device),
                    torch.tensor([word[:-1] for _, word in found], device=device).long(),
                    torch.tensor([word[-1] for _, word in found], device=device),
                )
                for _, found in sorted(lengths.items())
            ),
            floor=table(
                [
                    (row, token, state.params.min_tokens)
                    for row, state in enumerate(states)
                    if state.params.min_tokens
                    for token in sorted(state.stop_ids)
                ]
            ),
            processors=tuple(row for row, state in enumerate(states) if state.processors),
            grammars=tuple(row for row, state in enumerate(states) if state.grammar is not None),
        )
        tables = (
            shaping.bias,
            shaping.repetition,
            shaping.presence,
            shaping.frequency,
            shaping.floor,
        )
        lists = (shaping.words, shaping.processors, shaping.grammars)
        used = any(part is not None for part in tables) or any(lists)
        return shaping if used else None


@dataclass(frozen=True, slots=True)
class _History:
    """The tokens whose logits penalties change: those seen so far, and drafted ones after them.

    Attributes:
        tokens: int64 [B, S], the different tokens of each row in ascending order; a row with fewer
            than others begins with its first one several times.
        counts: int64 [B, S], how often the output has each.
        again: bool [B, S], which of them are a first one's repetitions.
    """

    tokens: Tensor
    counts: Tensor
    again: Tensor

    @staticmethod
    def of(
        states: Sequence[SequenceState], whole: Sequence[bool], device: torch.device
    ) -> _History:
        """What the sequences have seen: their outputs, or where it is looked at the `whole`."""
        found = []
        for state, prompt_too in zip(states, whole, strict=True):
            output = state.prefix.tokens[state.prompt_length :]
            looked_at = state.prefix.tokens if prompt_too else output
            # Where nothing was seen, any token does: its count is 0, and its penalty none.
            tokens = np.flatnonzero(np.bincount(looked_at)) if len(looked_at) else np.zeros(1, int)
            counts = np.bincount(output, minlength=int(tokens[-1]) + 1)
            found.append((tokens, counts[tokens]))
        width = max(len(tokens) for tokens, _ in found)
        packed = np.zeros((3, len(states), width), dtype=np.int64)
        for row, (tokens, counts) in enumerate(found):
            start = width - len(tokens)
            packed[0, row, :start], packed[0, row, start:] = tokens[0], tokens
            packed[1, row, :start], packed[1, row, start:] = counts[0], counts
            packed[2, row, 1 : start + 1] = 1
        tokens, counts, again = torch.from_numpy(packed).to(device)
        return _History(tokens, counts, again.bool())

    def before(self, path: Path, nodes: int) -> tuple[Tensor, Tensor, Tensor]:
        """The tokens that have been seen at each of M nodes, with the drafted ones before it.

        A drafted token that was seen earlier stands twice, and says the same each time.

        Returns:
            Tokens int64 [B, M, S + D], how often the output has each, and whether it was seen.
        """
        shape = (len(self.tokens), nodes, -1)
        known, counts = self.tokens[:, None].expand(shape), self.counts[:, None].expand(shape)
        everywhere = torch.ones_like(known, dtype=torch.bool)
        if not path.tokens.shape[2]:
            return known, counts, everywhere
        real = path.real.expand(shape)
        drafted = path.tokens.expand(shape).where(real, 0)
        flat = drafted.flatten(1)
        place = torch.searchsorted(self.tokens, flat).clamp(max=self.tokens.shape[1] - 1)
        earlier = (self.tokens.gather(1, place) == flat).view(drafted.shape)
        place = place.view(drafted.shape)
        passed = torch.zeros_like(counts).scatter_add_(2, place, (earlier & real).long())
        passed = torch.where(self.again[:, None], passed[..., :1], passed)
        same = (drafted[..., None] == drafted[..., None, :]) & real[..., None, :]
        own = same.sum(-1)
        whole = own + counts.gather(2, place).where(earlier, 0)
        return (
            torch.cat([known, drafted], 2),
            torch.cat([counts + passed, whole], 2),
            torch.cat([everywhere, earlier | (own > 0)], 2),
        )


class Shaper:
    """The shaping of one round: what was asked for, beside what has been emitted so far.

    Args:
        shaping: of the batch.
        states: its sequences.
        vocab_size: V.
        device: of the logits.
        masks: of the batch, shared with the round's other shaper; None makes them.
        everywhere: whether a drafted token may be kept although it is forbidden, so that processors
            are called below such tokens as well.
    """

    def __init__(
        self,
        shaping: Shaping,
        states: Sequence[SequenceState],
        vocab_size: int,
        device: torch.device,
        masks: RoundMasks | None = None,
        everywhere: bool = False,
    ) -> None:
        self._shaping = shaping
        self._states = states
        self._everywhere = everywhere
        self.masks = masks or RoundMasks(states, vocab_size)
        self._after: dict[_Place, tuple[Any, ...]] = {}
        self._left: dict[_Place, Tensor | None] = {}
        emitted = [state.prefix.length - state.prompt_length for state in states]
        self._emitted = torch.tensor(emitted, device=device)[:, None]
        penalties = (shaping.repetition, shaping.presence, shaping.frequency)
        penalised = any(penalty is not None for penalty in penalties)
        self._history = _History.of(states, shaping.whole, device) if penalised else None
        longest = max((int(words.before.shape[1]) for words in shaping.words), default=0)
        tails = np.full((len(states), longest), -1, dtype=np.int64)
        for row, state in enumerate(states):
            last = state.prefix.tokens[max(0, state.prefix.length - longest) :]
            tails[row, longest - len(last) :] = last
        self._tails = torch.from_numpy(tails).to(device)

    def __call__(self, logits: Tensor, path: Path | None) -> Tensor:
        """Logits [B, V] or [B, M, V] as the requests want them, in max(float32, their dtype).

        Args:
            logits: after M nodes.
            path: what leads to the nodes; None for the prefixes themselves.
        """
        flat = logits.ndim == 2
        shaped = logits[:, None] if flat else logits
        shaped = shaped.to(torch.promote_types(logits.dtype, torch.float32), copy=True)
        if path is None:
            empty = self._emitted.new_zeros(len(shaped), shaped.shape[1], 0)
            path = Path.of(empty)
        shaping = self._shaping
        if shaping.bias is not None:
            rows, tokens, values = shaping.bias
            _add(shaped, rows, tokens, values[:, None])
        if self._history is not None:
            self._penalise(shaped, path, self._history)
        for words in shaping.words:
            _add(shaped, words.rows, words.last, self._completed(words, path))
        if shaping.floor is not None:
            rows, tokens, least = shaping.floor
            early = (self._emitted + path.depth)[rows] < least[:, None]
            _add(shaped, rows, tokens, _forbidden(early))
        if shaping.processors:
            self._process(shaped, path)
        if shaping.grammars:
            shaped = self.masks(shaped, path)
        return shaped[:, 0] if flat else shaped

    def drafting(self) -> Shaper:
        """The same for the round's drafts, whose processors remember what they were shown alone."""
        twin = copy.copy(self)
        twin._after, twin._left = {}, {}
        return twin

    def processors(self, row: int, path: Sequence[int]) -> tuple[Any, ...]:
        """A row's own processors as they stand after the call at the end of a path.

        Those that remember nothing are themselves. Where no call was made, as before a path's
        beginning, they stand as after the last call that was.
        """
        for length in range(len(path), -1, -1):
            found = self._after.get((row, tuple(path[:length])))
            if found is not None:
                return found
        return self._states[row].processors

    def _process(self, shaped: Tensor, path: Path) -> None:
        """Call the rows' own processors node by node, on logits [B, M, V], in place.

        Parents come before their children, so that what a processor remembers of a path is there
        when the path goes on. Nodes that no sequence comes to, below the end or below a token that
        is forbidden, are left as they are: a processor may know nothing of such a history.
        """
        prefixes, levels = {}, defaultdict(list)
        for row, paths in path.listed(self._shaping.processors, shaped.shape[1]).items():
            prefixes[row] = torch.from_numpy(self._states[row].prefix.tokens).to(shaped.device)
            for node, drafted in enumerate(paths):
                levels[len(drafted)].append((row, node, drafted))
        for depth in sorted(levels):
            reached = self._reached([(row, drafted) for row, _, drafted in levels[depth]])
            for (row, node, drafted), comes in zip(levels[depth], reached, strict=True):
                if not comes:
                    self._left[row, drafted] = None
                    continue
                history = torch.cat([prefixes[row], prefixes[row].new_tensor(drafted)])
                before = self._states[row].processors
                before = self.processors(row, drafted[:-1]) if drafted else before
                running = self._after[row, drafted] = tuple(map(forked, before))
                for processor in running:
                    shaped[row, node] = _called(processor)(history, shaped[row, node])
                if not self._everywhere:
                    self._left[row, drafted] = shaped[row, node] != -torch.inf

    def _reached(self, places: list[_Place]) -> list[bool]:
        """Whether a sequence may come to nodes of one depth, as far as those before them tell.

        What processors forbid is known on their device, and fetched for all nodes in one copy.
        """
        reached: list[bool] = []
        asked: list[tuple[int, Tensor]] = []
        for row, drafted in places:
            ended = not self._states[row].stop_ids.isdisjoint(drafted)
            comes = not ended and self.masks.leads_to(row, drafted)
            above = (row, drafted[:-1])
            if comes and drafted and above in self._left:
                left = self._left[above]
                comes = left is not None
                if left is not None:
                    asked.append((len(reached), left[drafted[-1]]))
            reached.append(comes)
        if asked:
            allowed = torch.stack([flag for _, flag in asked]).tolist()
            for (index, _), comes in zip(asked, allowed, strict=True):
                reached[index] = comes
        return reached

    def _penalise(self, shaped: Tensor, path: Path, history: _History) -> None:
        """Take the penalties from logits [B, M, V], in place: of the tokens that may have one."""
        tokens, counts, seen = history.before(path, shaped.shape[1])
        logits = shaped.gather(2, tokens)
        counts = counts.to(shaped.dtype)
        shaping = self._shaping
        if shaping.repetition is not None:
            factor = shaping.repetition.to(shaped.dtype)
            punished = torch.where(logits > 0, logits / factor, logits * factor)
            logits = torch.where(seen, punished, logits)
        if shaping.frequency is not None:
            logits = logits - shaping.frequency.to(shaped.dtype) * counts
        if shaping.presence is not None:
            logits = logits - shaping.presence.to(shaped.dtype) * (counts > 0)
        # A token that stands here several times has the same logit each time.
        shaped.scatter_(2, tokens, logits)

    def _completed(self, words: _Words, path: Path) -> Tensor:
        """Minus infinity where a node [M] stands before a word's last token, else 0, [W, M]."""
        longest, needed = self._tails.shape[1], words.before.shape[1]
        nodes = path.tokens.shape[1]
        tails = self._tails[words.rows][:, None].expand(-1, nodes, -1)
        history = torch.cat([tails, path.tokens[words.rows]], 2)
        depth = path.depth.expand(len(self._tails), nodes)[words.rows]
        ends = longest + depth[..., None]
        last = ends - needed + torch.arange(needed, device=ends.device)
        return _forbidden((history.gather(2, last) == words.before[:, None]).all(-1))


def _called(processor: Any) -> Processor:
    """A user's processor in the form that is called here."""
    from transformers import LogitsProcessor

    if isinstance(processor, StatefulProcessor):
        processor = processor.processor
    if isinstance(processor, LogitsProcessor):
        return lambda history, logits: called_on_batch(processor, history, logits)

    def checked(history: Tensor, logits: Tensor) -> Tensor:
        return _checked(processor(history, logits), logits, processor)

    return checked


def called_on_batch(processor: Any, history: Tensor, logits: Tensor) -> Tensor:
    """What a processor makes of one row's logits [V], called as transformers does: on [1, V].

    Raises:
        InvalidConfigError: it returned something else than logits [1, V].
    """
    batch = logits[None]
    return _checked(processor(history[None], batch), batch, processor)[0]


def _checked(returned: Any, given: Tensor, processor: Any) -> Tensor:
    """What a processor returned, if it is logits of the shape of those that it was given."""
    if isinstance(returned, Tensor) and returned.shape == given.shape:
        return returned
    name = getattr(processor, "__qualname__", type(processor).__name__)
    kind = type(returned).__name__
    if isinstance(returned, Tensor):
        kind = f"a tensor of shape {list(returned.shape)}"
    raise InvalidConfigError(
        "logits_processors",
        name,
        f"processors that return logits of the shape they are given, {list(given.shape)}; this one "
        f"returned {kind}",
    )


def _forbidden(where: Tensor) -> Tensor:
    return torch.zeros(where.shape, device=where.device).masked_fill(where, -torch.inf)


def _add(logits: Tensor, rows: Tensor, tokens: Tensor, values: Tensor) -> None:
    """Add values [n, M] (or [n, 1]) at rows and tokens [n] of logits [B, M, V], in place."""
    nodes = torch.arange(logits.shape[1], device=logits.device)
    index = (rows[:, None], nodes, tokens[:, None])
    values = values.expand(len(rows), len(nodes)).to(logits.dtype)
    logits.index_put_(index, values, accumulate=True)
