"""What a drafter is given of a round: how to make distributions of logits, and how to draw from them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..config.params import SpeculativeConfig
from ..drafters.growth import existing, level_of, tree_of
from ..random.chance import RoundDraws
from ..sampling import distributions as sampling
from ..sampling.paths import Path
from ..sampling.shaping import Shaper
from ..types.records import Children, Distributions, DraftPlan, DraftProposal
from ..types.transfer import sent
from .batch import Batch


@dataclass(frozen=True, slots=True)
class Told:
    """What `settle` was told of each row's draft, and what came of it.

    Attributes:
        ended: whether it ended early.
        entropies: of the distributions that its tokens were drawn from, where they were asked for.
    """

    ended: tuple[bool, ...]
    entropies: tuple[tuple[float, ...], ...]

    def within(self, depths: list[int]) -> Told:
        """The same, of what is left of the drafts: as many tokens of each row."""
        rows = zip(self.entropies, depths, strict=True)
        return Told(self.ended, tuple(entropies[:depth] for entropies, depth in rows))


class RoundContext:
    """What a drafter may know of a round. It hides whether picks are greedy, drawn or coupled.

    Args:
        batch: the sequences, and their sampling parameters.
        draws: the round's chance.
        plan: how far each row is drafted; rows beyond their depth draw nothing.
        device: where proposals are expected.
        config: how drafts are sampled.
        shaper: what is done to the draft's logits; None for nothing.
        remembers: whether a drafter may learn from the round.

    Attributes:
        witnesses: for each distribution made, [B, M] numbers that are not finite where it means nothing.
        request_error: what a request's own processors or form raised, which is no fault of the
            drafter's; None for nothing.
    """

    def __init__(
        self,
        batch: Batch,
        draws: RoundDraws,
        plan: DraftPlan,
        device: torch.device,
        config: SpeculativeConfig,
        shaper: Shaper | None = None,
        *,
        remembers: bool = True,
    ) -> None:
        self._shaper = shaper
        self.device = device
        self.remembers = remembers
        self._states = batch.states
        self.witnesses: list[Tensor] = []
        self.request_error: Exception | None = None
        self._picked: list[tuple[Distributions, Tensor]] = []
        self._grown: list[tuple[Distributions, Children, Tensor, int]] = []
        self._draws = draws
        self.limit(plan.depth)
        self._keep_going = plan.keep_going
        self._ranking = batch.ranking
        self._latest: tuple[Tensor, Distributions] | None = None
        asked = 0 if plan.keep_going is None else plan.deepest
        self._entropies = np.empty((len(batch.states), asked))
        self._settled = 0
        self._ended = np.zeros(len(batch.states), dtype=np.bool_)
        self._kind = config.tree_children
        self._coupled = draws.coupled
        greedy = config.draft_sample_method == "greedy"
        if plan.levels is None:
            self._params = sampling.GREEDY if greedy else batch.drafting
            return
        self._params = batch.ranking
        self._outright = np.array(batch.outright) | greedy

    @property
    def shaped(self) -> bool:
        """Whether distributions depend on the tokens drafted before, so that `distribution` has to be told them."""
        return self._shaper is not None

    @property
    def local(self) -> NDArray[np.bool_]:
        """Rows [B] to be drafted from their own sequence alone; see `DraftContext.local`."""
        repeats = [
            state.params.seed is not None and not state.params.greedy and not self._coupled
            for state in self._states
        ]
        return np.array(repeats, dtype=np.bool_)

    @property
    def depth(self) -> NDArray[np.int64]:
        """How deep each row is drawn for, [B]: what `limit` and `settle` have left."""
        return self._depth

    @property
    def levels(self) -> list[int]:
        """Where each depth's witnesses begin, side by side, and the last ones end."""
        return [0, *accumulate(witness.shape[1] for witness in self.witnesses)]

    @property
    def sequence_ids(self) -> tuple[int, ...]:
        """Of the rows."""
        return tuple(state.prefix.sequence_id for state in self._states)

    @property
    def prompt_lengths(self) -> NDArray[np.int64]:
        """How many of each row's tokens are its prompt, [B]."""
        return np.array([state.prompt_length for state in self._states], dtype=np.int64)

    def prediction(self, row: int) -> NDArray[np.int64] | None:
        """What a row's output is expected to be, int64 [m]; None if nothing was said."""
        return self._states[row].prediction

    def limit(self, depth: NDArray[np.int64]) -> None:
        """From now on draw for these depths only; see `DraftContext.limit`."""
        self._depth = depth
        self._shallowest = int(depth.min())

    def settle(self) -> NDArray[np.int64]:
        """How deep each row is drafted, after a draw; see `DraftContext.settle`."""
        if self._keep_going is not None and self._settled < self._entropies.shape[1]:
            assert self._latest is not None, "a draft is settled once its distribution is made"
            logits, distributions = self._latest
            if self._params is not self._ranking:
                # An atom says nothing of how sure the draft is.
                distributions, _ = sampling.distributions(logits, self._ranking)
            assert distributions.probs is not None
            # How a float32 sum rounds depends on how rows are shared out among threads.
            entropies = torch.special.entr(distributions.probs).sum(-1, dtype=torch.float64)
            self._entropies[:, self._settled] = entropies.cpu().numpy()
            self._settled += 1
            drawn = self._settled
            drafting = self._depth > drawn
            if drafting.any():
                ending = drafting & ~self._keep_going(self._entropies[:, :drawn], drafting)
                if ending.any():
                    self._ended |= ending
                    self.limit(np.where(ending, drawn, self._depth))
        return self._depth

    @property
    def told(self) -> Told:
        """What is known of the rows' drafts, beside their tokens."""
        ended = tuple(self._ended.tolist())
        found = self._entropies[:, : self._settled].tolist()
        rows = zip(found, self._depth.tolist(), strict=True)
        return Told(ended, tuple(tuple(row[:depth]) for row, depth in rows))

    def distribution(self, logits: Tensor, path: Tensor | None = None) -> Distributions:
        """The distributions that the rows' own parameters make of logits; see `DraftContext.distribution`."""
        if self._shaper is not None:
            if path is None:
                count = 1 if logits.ndim == 2 else logits.shape[1]
                path = torch.empty(len(logits), count, 0, dtype=torch.int64, device=logits.device)
            # Rows that are not drafted this far hold tokens that mean nothing.
            nodes = np.where(self._depth > path.shape[2], path.shape[1], 0).tolist()
            try:
                shaped = self._shaper(logits, Path.of(path, nodes))
            except Exception as error:
                self.request_error = error
                raise
            # Where the request forbids every token the draft may say what it likes.
            nothing = shaped.amax(-1, keepdim=True) == -torch.inf
            logits = torch.where(nothing, logits, shaped)
        distributions, witness = sampling.distributions(logits, self._params)
        self.witnesses.append(witness.reshape(len(witness), -1))
        if self._keep_going is not None:
            self._latest = logits, distributions
        return distributions

    def pick(self, distributions: Distributions, position: int) -> Tensor:
        """Tokens int64 [B] drawn from `distributions`, the `position`-th drafted in this round.

        Rows that are not drafted this far get a token that means nothing.
        """
        tokens = self._pick(distributions, position)
        if position == len(self._picked):
            self._picked.append((distributions, tokens))
        return tokens

    def drawn(self, vocab_size: int) -> DraftProposal | None:
        """The chains that `pick` has drawn so far, or the trees of `children`; None if nothing.

        They end before the first distribution that cannot be verified: an atom, of another vocabulary, or
        no float32 or float64. That was settled before a token was drawn from it.
        """
        if self._grown:
            return self._tree(vocab_size)
        shape, rows = (len(self._states), vocab_size), []
        for distributions, _ in self._picked:
            row = distributions.probs
            if row is None or row.shape != shape or row.dtype not in sampling.DTYPES:
                break
            rows.append(row)
        if not rows:
            return None
        tokens = torch.stack([picked for _, picked in self._picked[: len(rows)]], 1)
        depth = self._depth.clip(max=len(rows))
        return DraftProposal(tokens, depth, Distributions(probs=torch.stack(rows, 1)))

    def forget(self) -> None:
        """Let go of what was drawn, once it has been handed over."""
        self._picked.clear()
        self._grown.clear()

    def _tree(self, vocab_size: int) -> DraftProposal | None:
        """The trees that have grown by whole levels, as many nodes in every row."""
        levels, nodes, start = [], 1, 0
        for distributions, children, counts, first in self._grown:
            probs, shape = distributions.probs, (len(self._states), nodes)
            assert probs is not None
            known = probs.shape == (*shape, vocab_size) and probs.dtype in sampling.DTYPES
            # What a drafter that fails asked for may be anything.
            if not known or first != start or not isinstance(counts, Tensor):
                break
            numbers = set(counts.sum(1).tolist()) if counts.shape == shape else set()
            if len(numbers) != 1:
                break
            start, nodes = start + nodes, numbers.pop()
            own = counts.to(children.tokens.device)
            taken = existing(own, children.tokens.shape[2], nodes)
            levels.append(level_of(children, first, taken))
        return tree_of(levels, self._depth.clip(max=len(levels))) if levels else None

    def _pick(self, distributions: Distributions, position: int) -> Tensor:
        if distributions.probs is None:
            assert distributions.point_masses is not None
            return distributions.point_masses
        if self._draws.race is not None:
            return self._draws.race.times(distributions.probs, position).argmin(-1)
        if position < self._shallowest:
            return self._draws.draft(distributions.probs, position, None)
        rows = np.flatnonzero(self._depth > position)
        drawn = self._draws.draft(distributions.probs[rows], position, rows)
        tokens = torch.zeros(len(self._depth), dtype=torch.int64, device=drawn.device)
        tokens[rows] = drawn
        return tokens

    def promise(self, distributions: Distributions, most: int) -> Tensor:
        """How likely each of `most` children of M nodes is to be kept, float64 [B, M, most]."""
        assert distributions.probs is not None
        best = distributions.probs.topk(most, -1).values.double()
        # The first child of a sampled node is drawn, and most often kept; the likeliest follow.
        drawn_first = torch.cat([torch.ones_like(best[..., :1]), best[..., :-1]], -1)
        outright = sent(torch.from_numpy(self._outright), best.device)[:, None, None]
        return torch.where(outright, best, drawn_first)

    def children(
        self, distributions: Distributions, counts: Tensor, most: int, first: int, level: int
    ) -> Children:
        """Tokens that follow the same node, for each of M nodes; see `DraftContext.children`."""
        children = self._children(distributions, counts, most, first, level)
        self._grown.append((distributions, children, counts, first))
        return children

    def _children(
        self, distributions: Distributions, counts: Tensor, most: int, first: int, level: int
    ) -> Children:
        probs = distributions.probs
        assert probs is not None
        rows = np.full((len(probs), most), -1)
        if self._outright.all():
            return Children(probs.topk(most, -1).indices, None, rows)
        drawing = (self._depth > level) & ~self._outright
        used = np.broadcast_to(drawing[:, None], probs.shape[:2])
        drawn_from: Tensor | None = None
        if self._draws.race is not None:
            times = self._draws.race.times(probs, level)
            tokens = times.topk(most, -1, largest=False).indices
        elif self._coupled:
            # Nothing is made ahead in coupled mode, so that slots need not be columns.
            slots = (first + np.arange(probs.shape[1]))[:, None] * probs.shape[2] + np.arange(most)
            tokens, _ = self._all_drawn(probs, slots, used, replaced=False)
        elif self._kind == "greedy":
            if not self._draws.ahead:
                used = used & (counts.cpu().numpy() > 0)
            tokens, drawn_from = self._best_and_one(probs, counts, most, first, used)
            rows[~self._outright, 0] = 0
        else:
            replaced = self._kind == "with_replacement"
            nodes = probs.shape[1]
            columns = first + nodes - 1 + np.arange(nodes * most).reshape(nodes, most)
            tokens, drawn_from = self._all_drawn(probs, columns, used, replaced)
            rows[~self._outright] = 0 if replaced else np.arange(most)
        if self._outright.any():
            outright = sent(torch.from_numpy(self._outright), probs.device)[:, None, None]
            tokens = torch.where(outright, probs.topk(most, -1).indices, tokens)
        return Children(
            tokens, None if drawn_from is None else Distributions(probs=drawn_from), rows
        )

    def _best_and_one(
        self, probs: Tensor, counts: Tensor, most: int, first: int, used: NDArray[np.bool_]
    ) -> tuple[Tensor, Tensor]:
        """One token drawn from all but the likeliest counts - 1, then those.

        Hu et al. 2025 (arXiv 2502.18779): verified in this order it keeps as much as any
        verifier of these drafts can.
        """
        best = probs.topk(most - 1, -1).indices
        kept = torch.arange(most - 1, device=probs.device) < counts[..., None] - 1
        rest = probs.gather(-1, best).masked_fill(kept, 0)
        distribution = _normalised(probs.scatter(-1, best, rest), probs)
        slots = np.arange(first, first + probs.shape[1])
        drawn = self._draws.drafts(distribution, slots, used)
        return torch.cat([drawn[..., None], best], -1), distribution[:, :, None]

    def _all_drawn(
        self, probs: Tensor, slots: NDArray[np.int64], used: NDArray[np.bool_], replaced: bool
    ) -> tuple[Tensor, Tensor]:
        """All tokens drawn, under slots [M, C]: from one distribution, or from what siblings left of it."""
        tokens, distributions, left = [], [], probs
        for place in range(slots.shape[1]):
            distribution = probs if replaced or not place else _normalised(left, probs)
            tokens.append(self._draws.drafts(distribution, slots[:, place], used))
            distributions.append(distribution)
            left = left.scatter(-1, tokens[-1][..., None], 0)
        return torch.stack(tokens, -1), torch.stack(
            distributions[:1] if replaced else distributions, 2
        )


def _normalised(left: Tensor, otherwise: Tensor) -> Tensor:
    """Rows scaled to sum to one; where nothing is left, the row it was left of."""
    total = left.sum(-1, keepdim=True, dtype=torch.float64).to(left.dtype)
    return torch.where(total > 0, left / total, otherwise)
