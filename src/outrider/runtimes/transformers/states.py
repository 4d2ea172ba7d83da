"""The cache of a hybrid model: blocks for attention, and of each recurrent layer states.

Each sequence has a slot: in it, for every recurrent layer, the state at one position of the
sequence, the inputs of its convolutions before that, and records of the tokens since. Beside them
stand checkpoints, states at the ends of prompts and of texts, by which later sequences find again
what blocks hold of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import ModelError
from ...types.transfer import sent
from ..blocks import Tokens
from ..flat import FlatBatch, rows_of
from ..lengths import PREFILLED_ALONE
from ..states import Checkpoints, States
from .block_cache import BlockCache, Grid
from .recurrences import Nodes, Records


@dataclass(slots=True)
class LayerStates:
    """What one recurrent layer keeps, a row a slot; tensors are made when it is first computed.

    Attributes:
        state: [slots, ...], None for layers that have convolutions alone.
        records: of tokens since, each [slots, W, ...].
        contexts: the inputs before the state, by convolution, [slots, kernel - 1, C].
        inputs: those since, [slots, W, C].
        folded: brings states past the first of their records.
        computed: whether the present forward has asked for the state.
    """

    state: Tensor | None = None
    records: Records = field(default_factory=dict)
    contexts: dict[int, Tensor] = field(default_factory=dict)
    inputs: dict[int, Tensor] = field(default_factory=dict)
    folded: Callable[[Tensor, Records, Tensor], Tensor] | None = None
    computed: bool = False

    def lasting(self) -> list[Tensor]:
        """Return what a checkpoint is made of."""
        return [*self.contexts.values(), *([] if self.state is None else [self.state])]


class HybridCache(BlockCache, States):
    """Blocks of keys and values, and the states of recurrent layers.

    Args:
        layers, blocks: see `BlockCache`.
        slots: for how many sequences there are states, and at most so many checkpoints.

    Attributes:
        layers_of: what each recurrent layer keeps, by the number of the layer.
        rows: the slots of the present forward's rows, int64 [B].
        nodes: where its tokens stand; None for a part of a prompt.
    """

    checkpoints: Checkpoints[list[list[Tensor]]]

    def __init__(
        self,
        layers: Sequence[Sequence[Tensor]],
        blocks: int,
        slots: int,
        device: torch.device,
    ) -> None:
        super().__init__(layers, blocks)
        self._device, self._count = device, slots
        self.layers_of = [LayerStates() for _ in layers]
        self.rows = torch.zeros(0, dtype=torch.int64, device=device)
        self.nodes: Nodes | None = None
        self.forget()

    def forget(self) -> None:
        """Forget all sequences and checkpoints."""
        self._slots: dict[int, int] = {}
        self._base: dict[int, int] = {}
        self.checkpoints = Checkpoints(self._count)

    def cut(self, name: int, shared: int) -> int:
        """Cut a sequence back to so many tokens, or to none if its state is beyond them."""
        if self._base[name] <= shared:
            return shared
        self._start(name)
        return 0

    def admit(self, name: int, known: Tokens) -> int:
        """Give a new sequence a slot, with the states of the last checkpoint in its tokens."""
        self._slots[name] = min({*range(self._count)} - {*self._slots.values()})
        self._start(name, *self.checkpoints.use(known))
        return self._base[name]

    def fold(self, names: Sequence[int], starts: Sequence[int]) -> None:
        """Bring the states of sequences to these positions, which recorded tokens lead to."""
        moved = [
            (name, start - self._base[name])
            for name, start in zip(names, starts, strict=True)
            if start > self._base[name]
        ]
        if not moved:
            return
        slots, most = [self._slots[name] for name, _ in moved], max(count for _, count in moved)
        rows = sent(np.array(slots), self._device)
        counts = sent(np.array([count for _, count in moved]), self._device)
        for layer in self.layers_of:
            for key, context in layer.contexts.items():
                line = torch.cat([context[rows], layer.inputs[key][rows, :most]], 1)
                kept = torch.arange(context.shape[1], device=self._device)
                index = (counts[:, None] + kept)[..., None].expand(-1, -1, line.shape[2])
                context[rows] = line.gather(1, index)
            if layer.state is not None and layer.folded is not None:
                records = {name: each[rows, :most] for name, each in layer.records.items()}
                layer.state[rows] = layer.folded(layer.state[rows], records, counts)
        for name, count in moved:
            self._base[name] += count

    def save(self, name: int, tokens: Tokens) -> None:
        """Keep a checkpoint of a sequence's states; its tokens begin with these."""
        slot, base = self._slots[name], self._base[name]
        if not 0 < base <= len(tokens):
            return
        layers = [[each[slot].clone() for each in layer.lasting()] for layer in self.layers_of]
        self.checkpoints.add(tokens[:base], layers)

    def release(self, names: Iterable[int]) -> None:
        """Give back the slots of sequences."""
        for name in names:
            self._slots.pop(name, None)
            self._base.pop(name, None)

    # What a forward computes.

    def set_batch(self, grid: Grid, batch: FlatBatch) -> None:
        """Say what the next forward computes."""
        super().set_batch(grid, batch)
        for layer in self.layers_of:
            layer.computed = False
        names = list(batch.sequence_ids)
        bases = np.array([self._base[name] for name in names])
        self.rows = sent(np.array([self._slots[name] for name in names]), self._device)
        count = int(batch.missing[0])
        if len(names) == 1 and count > PREFILLED_ALONE and not batch.drafted.any():
            # A part of a prompt, of which nothing is taken back: the layers' own functions do.
            self.nodes = None
            self._base[names[0]] += count
            return
        base = sent(bases, self._device)
        after = batch.places - bases[rows_of(batch.missing + batch.drafted)[0]]
        # What a column sees of earlier and new places, from its sequence's state on.
        most, width = grid.seen.shape[2], int(after.max()) + 1
        places = (base[:, None] + torch.arange(width, device=self._device))[:, None]
        index = places.clamp(max=most - 1).expand(-1, grid.seen.shape[1], -1)
        seen = grid.seen.gather(2, index) & (places < most)
        self.nodes = Nodes(grid.rows, grid.columns, sent(after, self._device), seen & grid.real)

    # What layers of the model call.

    def update_conv_state(
        self,
        conv_states: Tensor,
        layer_idx: int,
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
        **_: object,
    ) -> Tensor:
        """Keep a convolution's inputs [B, C, q]; return what it reads.

        That is the inputs before the state, and those since, of this forward and earlier ones.
        """
        assert conv_kernel_size is not None
        layer, new = self.layers_of[layer_idx], conv_states.transpose(1, 2)
        context = layer.contexts.get(state_idx)
        if context is None:
            context = new.new_zeros(self._count, conv_kernel_size - 1, new.shape[2])
            layer.contexts[state_idx] = context
        before = context[self.rows]
        if self.nodes is None:
            line = torch.cat([before, new], 1)
            context[self.rows] = line[:, line.shape[1] - context.shape[1] :]
            return line.transpose(1, 2)
        since = self.recorded(layer.inputs, state_idx, new)
        return torch.cat([before, since], 1).transpose(1, 2)

    def get_conv_state(self, *_: object, **__: object) -> None:
        """Return None: layers take their path for any number of tokens."""

    # States are kept where they are computed.
    get_recurrent_state = update_recurrent_state = has_previous_state = get_conv_state

    # What the recurrent functions ask.

    def state(self, layer: LayerStates, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Return the states of the rows, [B, ...]; those of a new layer are zero.

        Raises:
            ModelError: the layer has several, of heads that it computes one by one, as Zamba's.
        """
        if layer.computed:
            raise ModelError("a layer computes its recurrence in several parts, and one is kept")
        layer.computed = True
        if layer.state is None:
            layer.state = like.new_zeros(self._count, *shape)
        return layer.state[self.rows]

    def recorded(self, kept: dict[Any, Tensor], key: Any, new: Tensor) -> Tensor:
        """Record what new tokens did, [B, q, ...]; return the records of all since the states.

        Args:
            kept: the records.
            key: which of them.
            new: those of new tokens.

        Returns:
            [B, W, ...]; where a row has no token stands what earlier ones left.
        """
        nodes, held = self.nodes, kept.get(key)
        assert nodes is not None
        width = nodes.seen.shape[2]
        if held is None or held.shape[1] < width:
            more = new.new_zeros(self._count, -(-width // 8) * 8, *new.shape[2:])
            if held is not None:
                more[:, : held.shape[1]] = held
            kept[key] = held = more
        held[self.rows[nodes.rows], nodes.steps] = new[nodes.rows, nodes.columns].to(held.dtype)
        return held[self.rows, :width]

    @torch.inference_mode()
    def _start(
        self, name: int, base: int = 0, kept: Sequence[Sequence[Tensor]] | None = None
    ) -> None:
        """Set a sequence's states to those of a checkpoint, or before all tokens."""
        slot = self._slots[name]
        for number, layer in enumerate(self.layers_of):
            for place, each in enumerate(layer.lasting()):
                each[slot] = kept[number][place] if kept else 0.0
        self._base[name] = base
