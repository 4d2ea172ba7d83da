"""What a drafter is given of a round: how to make distributions of logits, and how to draw."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..config.params import SpeculativeConfig
from ..random import RoundDraws
from ..sampling import distributions as sampling
from ..sampling.batch import Batch
from ..sampling.paths import Path
from ..sampling.pipeline import LogitsPipeline
from ..types.records import Children, Distributions, DraftPlan
from ..types.transfer import sent

_ENTROPY_SCALE = 0.2
"""Of the confidence 1 - sqrt(scale * entropy): the value of AdaEDL (arXiv 2410.18351)."""


class DraftContext:
    """What a drafter may know of a round: how to make distributions, and how to draw.

    Whether drafts are greedy, drawn or coupled is hidden from the drafter.

    Args:
        batch: the sequences, and their sampling parameters.
        draws: the round's randomness.
        plan: how far each row is drafted; rows beyond their depth draw nothing.
        config: how drafts are sampled.
        pipeline: what is done to the draft's logits; None for nothing.
        learning: see the attribute.

    Attributes:
        device: where proposals are expected.
        learning: whether a drafter may learn from this round. An enumeration walks all its
            outcomes.
        confidence: the draft's confidence in each token drawn so far, float64 [B, n].
        finite: for each distribution made, [B, M] numbers that are finite where it is.
    """

    def __init__(
        self,
        batch: Batch,
        draws: RoundDraws,
        plan: DraftPlan,
        config: SpeculativeConfig,
        pipeline: LogitsPipeline | None = None,
        *,
        learning: bool = True,
    ) -> None:
        self._batch = batch
        self._draws = draws
        self._plan = plan
        self._pipeline = pipeline
        self.device = batch.device
        self.learning = learning
        self._children_kind = config.tree_children
        greedy = config.draft_sample_method == "greedy"
        self._deterministic = np.array(batch.deterministic) | greedy
        self._params = batch.ranking
        if plan.tree is None:
            self._params = sampling.GREEDY if greedy else batch.drafting
        self._depth = plan.depth
        self._latest: tuple[Tensor, Distributions] | None = None
        self.confidence: NDArray[np.float64] = np.empty((len(batch.states), 0))
        self.finite: list[Tensor] = []

    @property
    def processes_logits(self) -> bool:
        """Whether distributions depend on the tokens drafted before: `distribution` needs them."""
        return self._pipeline is not None

    @property
    def local(self) -> NDArray[np.bool_]:
        """Rows that must be drafted from their own sequence alone, bool [B], on the host.

        Their text depends on what is drafted and is promised to repeat: what a drafter learnt from
        other sequences must not be used for them.
        """
        params = [state.params for state in self._batch.states]
        seeded = [each.seed is not None and not each.greedy for each in params]
        return np.array(seeded, dtype=np.bool_) & (not self._draws.coupled)

    @property
    def prompt_lengths(self) -> NDArray[np.int64]:
        """The number of prompt tokens of each row, int64 [B], on the host."""
        return np.array([state.prompt_length for state in self._batch.states], dtype=np.int64)

    def prediction(self, row: int) -> NDArray[np.int64] | None:
        """Return the row's expected output, int64 [m], on the host; None if there is none."""
        return self._batch.states[row].prediction

    def stop_ids(self, row: int) -> frozenset[int]:
        """Return the tokens that end the row's request: a draft may end with one of them."""
        state = self._batch.states[row]
        return state.stop_ids if state.emitted >= state.params.min_tokens else frozenset()

    def allowed(
        self, row: int, tokens: NDArray[np.int64], parents: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Return which tokens of a row's chain or tree its request allows, with all before them.

        Args:
            row: of the round.
            tokens: int64 [n], on the host.
            parents: the node that each follows, int64 [n]: 0 the prefix.

        Returns:
            bool [n].
        """
        if self._pipeline is None:
            return np.ones(len(tokens), dtype=np.bool_)
        paths: list[tuple[int, ...] | None] = [()]
        for token, parent in zip(tokens.tolist(), parents.tolist(), strict=True):
            path = paths[parent]
            if path is not None:
                path = None if self._pipeline.forbids(row, path, token) else (*path, token)
            paths.append(path)
        return np.array([path is not None for path in paths[1:]], dtype=np.bool_)

    def limit_depths(self, depth: NDArray[np.int64]) -> None:
        """Draw nothing from now on for rows beyond these depths [B], at most the plan's.

        What is drawn for a row must not depend on what others need.
        """
        self._depth = depth

    def depths(self, confidence: Tensor | None = None) -> NDArray[np.int64]:
        """Return how deep each row is drafted, int64 [B], after the tokens drawn so far.

        To be asked after each `pick`, before the next step of the model. Where the plan's stop rule
        says so a row ends here, and draws nothing from now on.

        Args:
            confidence: how likely the tokens drawn last are kept, [B], if the model says so itself;
                None goes by their distributions' entropy H: 1 - sqrt(scale * H).
        """
        stop, drawn = self._plan.stop, self.confidence.shape[1] + 1
        if stop is None or self._latest is None or drawn > self._plan.deepest:
            return self._depth
        if confidence is None:
            logits, made = self._latest
            if made.probs is None or self._deterministic.any():
                # A point mass says nothing of how sure the draft is.
                made, _ = sampling.distributions(logits, self._batch.ranking)
            assert made.probs is not None
            # How a float32 sum rounds depends on how rows are shared out among threads.
            entropy = torch.special.entr(made.probs).sum(-1, dtype=torch.float64)
            sure = (1 - np.sqrt(_ENTROPY_SCALE * entropy.cpu().numpy())).clip(min=0)
        else:
            sure = confidence.double().cpu().numpy()
        self.confidence = np.column_stack([self.confidence, sure])
        self._latest = None
        drafting = self._depth > drawn
        if drafting.any():
            ending = drafting & ~stop.continues(self.confidence, drafting)
            self._depth = np.where(ending, drawn, self._depth)
        return self._depth

    def distribution(self, logits: Tensor, path: Tensor | None = None) -> Distributions:
        """Make the distributions that the rows' own parameters ask for.

        Args:
            logits: [B, V] or [B, M, V], after M nodes of each row, all at one depth D.
            path: the drafted tokens that lead to them, int64 [B, M, D]; None if there are none, or
                if logits are not processed.
        """
        if self._pipeline is not None:
            whole = logits[:, None] if logits.ndim == 2 else logits
            if path is None:
                path = whole.new_empty(*whole.shape[:2], 0, dtype=torch.int64)
            # Rows that are not drafted this far hold padding.
            nodes = np.where(self._depth > path.shape[2], path.shape[1], 0).tolist()
            processed = self._pipeline(whole, Path.of(path, nodes)).logits.view_as(logits)
            # Where a request forbids every token, or a processor returns NaN, the target's logits
            # tell; the draft may say what it likes.
            usable = processed.amax(-1, keepdim=True).isfinite()
            logits = torch.where(usable, processed, logits)
        made, finite = sampling.distributions(logits, self._params)
        self.finite.append(finite.reshape(len(finite), -1))
        self._latest = (logits, made) if self._plan.stop is not None else None
        return made

    def pick(self, distributions: Distributions, position: int) -> Tensor:
        """Draw tokens int64 [B], the `position`-th of this round; each position once a round.

        Rows that are not drafted this far get an undefined token.
        """
        if distributions.probs is None:
            assert distributions.point_masses is not None
            return distributions.point_masses
        probs = distributions.probs
        if self._draws.race is not None:
            return self._draws.race.times(probs, position).argmin(-1)
        used = (self._depth > position)[:, None]
        return self._draws.drafts(probs[:, None], np.array([position]), used)[:, 0]

    def estimate_acceptance(self, distributions: Distributions, most: int) -> Tensor:
        """Estimate how likely each of `most` children is kept, float64 [B, M, most].

        Made before anything is drawn; it does not grow from one child to the next.
        """
        assert distributions.probs is not None
        best = distributions.probs.topk(most, -1).values.double()
        # The first child of a sampled node is drawn, and most often kept; the likeliest follow.
        drawn_first = torch.cat([torch.ones_like(best[..., :1]), best[..., :-1]], -1)
        return torch.where(self._deterministic_rows(best.device), best, drawn_first)

    def children(
        self, distributions: Distributions, counts: Tensor, most: int, first: int, level: int
    ) -> Children:
        """Draw tokens that follow the same node, for each of M nodes at depth `level`.

        Args:
            distributions: for [B, M].
            counts: the number of children of each node, int64 [B, M], 0 included.
            most: the largest count, known on the host.
            first: the index of the first of these M nodes in the tree; each node once a round.
            level: how many drafted tokens lead to these nodes.
        """
        probs = distributions.probs
        assert probs is not None
        rows = np.full((len(probs), most), -1)
        if self._deterministic.all():
            return Children(probs.topk(most, -1).indices, None, rows)
        there = self._there(counts, most, level)
        drawn_from: Tensor | None = None
        if self._draws.race is not None:
            times = self._draws.race.times(probs, level)
            tokens = times.topk(most, -1, largest=False).indices
        elif self._draws.coupled:
            slots = (first + np.arange(probs.shape[1]))[:, None] * probs.shape[2] + np.arange(most)
            tokens, _ = self._all_drawn(probs, slots, there, replaced=False)
        elif self._children_kind == "greedy":
            tokens, drawn_from = self._best_and_one(probs, counts, most, first, there[..., 0])
            rows[~self._deterministic, 0] = 0
        else:
            replaced = self._children_kind == "with_replacement"
            nodes = probs.shape[1]
            columns = first + nodes - 1 + np.arange(nodes * most).reshape(nodes, most)
            tokens, drawn_from = self._all_drawn(probs, columns, there, replaced)
            rows[~self._deterministic] = 0 if replaced else np.arange(most)
        if self._deterministic.any():
            deterministic = self._deterministic_rows(probs.device)
            tokens = torch.where(deterministic, probs.topk(most, -1).indices, tokens)
        made = None if drawn_from is None else Distributions(probs=drawn_from)
        return Children(tokens, made, rows)

    def _there(self, counts: Tensor, most: int, level: int) -> NDArray[np.bool_]:
        """Which children are drawn, bool [B, M, C].

        Of noise made ahead, all: asking for the counts would wait for the device.
        """
        drawn = (self._depth > level) & ~self._deterministic
        wanted = most if self._draws.ahead else counts.cpu().numpy()[..., None]
        there = np.broadcast_to(np.arange(most) < wanted, (*counts.shape, most))
        return there & drawn[:, None, None]

    def _deterministic_rows(self, device: torch.device) -> Tensor:
        return sent(self._deterministic, device)[:, None, None]

    def _best_and_one(
        self, probs: Tensor, counts: Tensor, most: int, first: int, used: NDArray[np.bool_]
    ) -> tuple[Tensor, Tensor]:
        """Draw one token from all but the likeliest counts - 1, which follow it.

        Hu et al. 2025 (arXiv 2502.18779): verified in this order it keeps as much as any verifier
        of these drafts can.
        """
        best = probs.topk(most - 1, -1).indices
        kept = torch.arange(most - 1, device=probs.device) < counts[..., None] - 1
        rest = probs.gather(-1, best).masked_fill(kept, 0)
        drawn_from = _normalised(probs.scatter(-1, best, rest), probs)
        slots = np.arange(first, first + probs.shape[1])
        drawn = self._draws.drafts(drawn_from, slots, used)
        return torch.cat([drawn[..., None], best], -1), drawn_from[:, :, None]

    def _all_drawn(
        self, probs: Tensor, slots: NDArray[np.int64], used: NDArray[np.bool_], replaced: bool
    ) -> tuple[Tensor, Tensor]:
        """Draw all tokens, under slots [M, C]: from one distribution, or from what is left."""
        tokens, drawn_from, left = [], [], probs
        for place in range(slots.shape[1]):
            one = probs if replaced or not place else _normalised(left, probs)
            tokens.append(self._draws.drafts(one, slots[:, place], used[..., place]))
            drawn_from.append(one)
            left = left.scatter(-1, tokens[-1][..., None], 0)
        return torch.stack(tokens, -1), torch.stack(drawn_from[:1] if replaced else drawn_from, 2)


def _normalised(masses: Tensor, otherwise: Tensor) -> Tensor:
    """Masses [..., V] as distributions; those of `otherwise` where there is none."""
    total = masses.sum(-1, keepdim=True, dtype=torch.float64).to(masses.dtype)
    return torch.where(total > 0, masses / total, otherwise)
