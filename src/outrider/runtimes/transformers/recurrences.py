"""Recurrences as functions of ancestors: what a few new tokens give, and what they leave behind.

A state is held at one position of a sequence. Of each token since then stands what it did to the
state: the logarithm of a decay, a left and a right factor. The state after token i is

    S_i = exp(c_i) S_0 + sum over ancestors j of exp(c_i - c_j) left_j (x) right_j

with c the sums of log decays along a token's path, so that it is never written down while drafts
are verified: chains, ragged rows and trees are all the same. What the next prefix names is folded
into the state, and the rest is forgotten.

Gated delta rule: Yang et al., arXiv 2412.06464, per channel Kimi Linear, arXiv 2510.26692. Mamba 2:
Dao and Gu, arXiv 2405.21060. Mamba 1: Gu and Dao, arXiv 2312.00752.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

Records = dict[str, Tensor]
"""What tokens since the state did to it, each [B, W, ...]."""

Record = Callable[[str, Tensor], Tensor]
"""Adds to the records of a name what new tokens did, [B, q, ...], and returns all, [B, W, ...]."""


@dataclass(frozen=True)
class Nodes:
    """Where the new tokens of a forward stand after their sequences' states.

    Attributes:
        rows, columns: of each token among those of the forward, int64 [T].
        steps: which token after its sequence's state it is, int64 [T].
        seen: which of W tokens since its state a column follows, or is, bool [B, q, W].
    """

    rows: Tensor
    columns: Tensor
    steps: Tensor
    seen: Tensor

    @cached_property
    def own(self) -> Tensor:
        """The step of each column, int64 [B, q]; 0 where there is no token."""
        return (self.seen * torch.arange(self.seen.shape[2], device=self.seen.device)).amax(2)

    @cached_property
    def real(self) -> Tensor:
        """Which columns have a token, bool [B, q]."""
        return self.seen.any(2)

    def taps(self, kernel: int) -> Tensor:
        """Return where the last inputs of each column stand, int64 [B, q, kernel].

        That is among kernel - 1 inputs before the state, and the W after it.
        """
        rank = self.seen.flip(2).cumsum(2).flip(2)  # 1 is the token itself, 2 the one before it
        count, seen = rank[..., :1], self.seen[:, :, None]
        steps = torch.arange(self.seen.shape[2], device=rank.device)
        back = torch.arange(kernel - 1, -1, -1, device=rank.device)
        within = ((seen & (rank[:, :, None] == back[:, None] + 1)) * steps).sum(3)
        found = torch.where(count > back, within, count - 1 - back) + kernel - 1
        return found.clamp(min=0)


def linear(
    state: Tensor,
    record: Record,
    nodes: Nodes,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    step: Tensor,
    beta: Tensor | None = None,
) -> Tensor:
    """Compute gated linear attention of new tokens, or with `beta` the gated delta rule.

    Args:
        state: S_0, [B, H, K, V].
        record: of "step" and "decay" [.., H, 1 or K], "left" [.., H, K] and "right" [.., H, V].
        nodes: where the tokens stand.
        query, key: [B, q, H, K].
        value: [B, q, H, V].
        step: log decays, [B, q, H, 1], or for each channel [B, q, H, K].
        beta: how much of what a key recalls is exchanged, [B, q, H].

    Returns:
        Outputs [B, q, H, V].
    """
    unseen = ~nodes.seen.any(1)[..., None, None]

    def recorded(name: str, new: Tensor) -> Tensor:
        """Record what new tokens did; what earlier texts and refused drafts left may be NaN."""
        return record(name, new).masked_fill(unseen, 0)

    sums = torch.einsum("bqw,bwhk->bqhk", nodes.seen.to(step.dtype), recorded("step", step))
    decays, left = recorded("decay", sums), recorded("left", key)
    query, key, right, sums = (each.transpose(1, 2) for each in (query, key, value, sums))
    apart = sums[:, :, :, None] - decays.transpose(1, 2)[:, :, None]
    between = apart.masked_fill(~nodes.seen[:, None, ..., None], -torch.inf).exp()
    reached = sums.exp()

    def scores(of: Tensor) -> Tensor:
        """Products with the left factors of ancestors, decayed, [B, H, q, W]."""
        if between.shape[-1] == 1:
            return (of @ left.permute(0, 2, 3, 1)) * between[..., 0]
        return torch.einsum("bhqk,bwhk,bhqwk->bhqw", of, left, between)

    if beta is not None:
        weight = beta.transpose(1, 2)[..., None]
        recalled = weight * scores(key)
        # What earlier tokens wrote is known; the new ones' follows from one another.
        known = recorded("right", torch.zeros_like(value)).transpose(1, 2)
        right = weight * (right - (key * reached) @ state) - recalled @ known
        own = nodes.own[:, None, None].expand(-1, *recalled.shape[1:3], -1)
        system = recalled.gather(3, own).tril(-1).masked_fill(~nodes.real[:, None, None], 0)
        right = right.masked_fill(~nodes.real[:, None, :, None], 0)
        right = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    rights = recorded("right", right.transpose(1, 2)).transpose(1, 2)
    return ((query * reached) @ state + scores(query) @ rights).transpose(1, 2)


def linear_folded(state: Tensor, records: Records, counts: Tensor) -> Tensor:
    """Return the states after the first tokens of the records, so many of each row, int64 [B]."""
    taken = torch.arange(records["decay"].shape[1], device=state.device) < counts[:, None]
    last = (counts - 1).clamp(min=0)[:, None, None, None].expand(-1, 1, *records["decay"].shape[2:])
    end = records["decay"].gather(1, last)
    apart = (end - records["decay"]).masked_fill(~taken[..., None, None], -torch.inf)
    left = records["left"].masked_fill(~taken[..., None, None], 0) * apart.exp()
    right = records["right"].masked_fill(~taken[..., None, None], 0)
    return state * end[:, 0].exp()[..., None] + torch.einsum("bwhk,bwhv->bhkv", left, right)


def selective(
    state: Tensor,
    record: Record,
    nodes: Nodes,
    value: Tensor,
    size: Tensor,
    decay: Tensor,
    key: Tensor,
    query: Tensor,
) -> Tensor:
    """Compute Mamba 1's selective scan of new tokens, the state of each from its parent's.

    Decays are of each channel and each part of the state, so that no products of keys stand for
    them.

    Args:
        state: [B, D, N].
        record: of "size" and "value" [.., D] and "key" [.., N].
        nodes: where the tokens stand.
        value, size: of the inputs and steps, [B, q, D].
        decay: log decays of a step of size 1, [D, N].
        key, query: [B, q, N].

    Returns:
        Outputs [B, q, D].
    """
    new = {"size": size, "value": value, "key": key}
    records = {name: record(name, each) for name, each in new.items()}
    width = nodes.seen.shape[2]
    steps = torch.arange(width, device=state.device)
    before = nodes.seen & (steps < nodes.own[..., None])
    # Tokens of earlier forwards follow one another.
    parents = (steps - 1).repeat(len(state), 1)
    last = torch.where(before, steps, -1).amax(2)
    parents[nodes.rows, nodes.steps] = last[nodes.rows, nodes.columns]
    states = state.new_zeros(len(state), width + 1, *state.shape[1:])
    states[:, 0] = state
    rows = torch.arange(len(state), device=state.device)
    for step in range(width):
        states[:, step + 1] = _stepped(states[rows, parents[:, step] + 1], records, step, decay)
    return torch.einsum("bqdn,bqn->bqd", states[rows[:, None], nodes.own + 1], query)


def selective_folded(state: Tensor, records: Records, counts: Tensor, decay: Tensor) -> Tensor:
    """Return the states after the first tokens of the records; see `linear_folded`."""
    for step in range(records["size"].shape[1]):
        there = (counts > step)[:, None, None]
        state = torch.where(there, _stepped(state, records, step, decay), state)
    return state


def _stepped(state: Tensor, records: Records, step: int, decay: Tensor) -> Tensor:
    size, value, key = (records[name][:, step] for name in ("size", "value", "key"))
    return torch.exp(decay * size[..., None]) * state + (size * value)[..., None] * key[:, None]
