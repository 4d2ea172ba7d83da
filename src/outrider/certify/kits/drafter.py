"""The conformance kit of drafters: what the exactness of an output rests on.

A drafter is given small rounds without a target, and all outcomes of its draws are walked
(`outrider.random.Enumerator`), so that a fault of any size is seen.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

from ...config.params import SamplingParams
from ...drafters.base import Drafter
from ...engine.validation import check_proposal
from ...policies.confidence import ConfidenceRule
from ...random import Enumerator
from ...types.finding import Finding
from ...types.plan import DraftPlan, DraftTree
from ...types.records import MODEL, DraftProposal, Prefix
from .drafter_round import Outcome, TrialContext, drafts, outcomes, release
from .runner import TOLERANCE, require, run

PROMPT = (0, 1, 0, 1, 0)
"""Its last tokens have occurred before, so that there is something to look up."""

_NOT_HELD = (type, ModuleType, FunctionType, torch.Tensor, torch.nn.Module)


def check_drafter(
    make_drafter: Callable[[], Drafter], vocab_size: int, *, depth: int = 3
) -> tuple[Finding, ...]:
    """Check a drafter against its contract.

    Args:
        make_drafter: makes a new drafter, for a model small enough that all its drafts can be
            walked: `vocab_size ** depth` of them.
        vocab_size: the target's V, at least 2.
        depth: how deep chains are drafted; trees have two levels.

    Returns:
        A finding for each of form, distributions, inclusion, stop tokens, release, learning and
        local rows. A drafter that raises fails the check in which it does.
    """
    kit = _Kit(make_drafter, vocab_size, depth)
    properties = [kit.form, kit.distributions, kit.inclusion, kit.stop_tokens]
    properties += [kit.release, kit.learning, kit.local_rows]
    return run((check.__name__.replace("_", " "), check) for check in properties)


@dataclass
class _Kit:
    """The checks of one kind of drafter, each by the name of its property."""

    make: Callable[[], Drafter]
    vocab_size: int
    depth: int
    ids: Iterator[int] = field(default_factory=count)

    def form(self) -> None:
        """Proposals have the contract's shapes, dtypes and ranges, and are as deep as planned."""
        prefixes = [Prefix(row, PROMPT) for row in range(3)]
        for plan, proposal in self._proposals():
            check_proposal(proposal, prefixes, plan, self.vocab_size, torch.device("cpu"))

    def distributions(self) -> None:
        """Tokens come from the distributions that are reported for them."""
        for _, walked in self._walked:
            mass: dict[Any, float] = defaultdict(float)
            for outcome in walked:
                mass[outcome.tokens, outcome.shape] += outcome.probability
            for outcome in walked:
                probability = mass[outcome.tokens, outcome.shape]
                require(
                    abs(probability - outcome.reported) < TOLERANCE,
                    f"tokens {list(outcome.tokens)} are proposed with probability "
                    f"{probability:.6g}, their distributions say {outcome.reported:.6g}; return "
                    "what ctx.pick was given, as it was",
                )

    def inclusion(self) -> None:
        """Whether a token is proposed never depends on its own drawn value."""
        for plan, walked in self._walked:
            included: dict[tuple[int, ...], set[bool]] = defaultdict(set)
            for outcome in walked if plan.tree is None else ():
                for position in range(len(outcome.picked)):
                    before = outcome.picked[:position]
                    included[before].add(len(outcome.tokens) > position)
            for before, ways in included.items():
                require(
                    len(ways) == 1,
                    f"after drafted tokens {list(before)} the next is proposed or not by its own "
                    "value; decide before it is drawn",
                )

    def stop_tokens(self) -> None:
        """Looked-up drafts end at the first token that would end the request."""
        for stop in range(self.vocab_size):
            for _, proposal in self._proposals(stop_ids=frozenset({stop})):
                rows = zip(drafts(proposal), proposal.row_sources, strict=True)
                for (tokens, parents), source in rows:
                    followed = [tokens[parent - 1] for parent in parents if parent]
                    require(
                        source == MODEL or stop not in followed,
                        f"looked-up tokens {list(tokens)} go on behind the stop token {stop}",
                    )

    def release(self) -> None:
        """What was kept of a released sequence is gone; discarded ones are not shared."""
        drafter, plan = self.make(), self._plans()[0]
        sizes = []
        for rounds in (3, 12):
            for _ in range(rounds):
                self._decode(drafter, plan, learning=True, discard=True)
            sizes.append(_entries(drafter))
        left = sizes[1] - sizes[0]
        require(not left, f"{left} entries are left behind by 12 sequences")
        self._require_same(drafter, "after sequences that were discarded")

    def learning(self) -> None:
        """Nothing is learnt from rounds that say so."""
        self._after_three("after rounds with ctx.learning false", learning=False)

    def local_rows(self) -> None:
        """Rows that must repeat are drafted alike whatever was decoded before."""
        self._after_three(
            "for local rows after other sequences", learning=True, params=SamplingParams(seed=1)
        )

    def _after_three(self, when: str, *, learning: bool, **context: Any) -> None:
        drafter = self.make()
        for _ in range(3):
            self._decode(drafter, self._plans()[0], learning=learning, discard=False)
        self._require_same(drafter, when, **context)

    def _plans(self, rows: int = 3) -> list[DraftPlan]:
        depth = np.array([self.depth, 0, 1], dtype=np.int64)[:rows]
        two = depth.clip(max=2)
        rule = ConfidenceRule(depth, np.full_like(depth, -1), 0.25)
        return [
            DraftPlan(depth),
            DraftPlan(depth, stop=rule),
            DraftPlan(two, DraftTree((2, 4), (2, 2))),
            DraftPlan(two, DraftTree((2, 3))),
        ]

    @cached_property
    def _walked(self) -> list[tuple[DraftPlan, list[Outcome]]]:
        """All outcomes of one row, for each plan."""
        return [(plan, outcomes(self.make(), PROMPT, plan)) for plan in self._plans(rows=1)]

    def _prompt(self, shift: int = 0) -> list[int]:
        return [(token + shift) % self.vocab_size for token in PROMPT]

    def _proposals(self, **context: Any) -> Iterator[tuple[DraftPlan, DraftProposal]]:
        for plan in self._plans():
            yield plan, self._proposed(self.make(), plan, **context)

    def _proposed(self, drafter: Drafter, plan: DraftPlan, **context: Any) -> DraftProposal:
        """Propose for three rows, each draw with its first possible outcome."""
        ctx = TrialContext(plan, Enumerator([()] * 3), **context)
        prefixes = [Prefix(next(self.ids), self._prompt(shift)) for shift in range(3)]
        proposal = drafter.propose(prefixes, plan, ctx)
        release(drafter, prefixes, discard=True)
        return proposal

    def _decode(self, drafter: Drafter, plan: DraftPlan, *, learning: bool, discard: bool) -> None:
        """Take sequences through two rounds and to their end.

        Their outputs hold the kit's prompts, which go on in another way than within themselves.
        """
        outputs = [[*self._prompt(shift), (2 + shift) % self.vocab_size] for shift in range(3)]
        prefixes = [Prefix(next(self.ids), [0, *output[:-1]]) for output in outputs]
        for _ in range(2):
            ctx = TrialContext(plan, Enumerator([()] * 3), learning=learning)
            drafter.propose(prefixes, plan, ctx)
            rows = zip(prefixes, outputs, strict=True)
            prefixes = [prefix.extended(output[-1:]) for prefix, output in rows]
        release(drafter, prefixes, discard=discard)

    def _require_same(self, drafter: Drafter, when: str, **context: Any) -> None:
        """Compare a drafter's proposals to those of a new one."""
        for plan, proposal in self._proposals(**context):
            fresh, used = drafts(proposal), drafts(self._proposed(drafter, plan, **context))
            require(used == fresh, f"{used} is proposed {when}, {fresh} by a new drafter")


def _entries(held: object) -> int:
    """Count what containers hold that can be reached from an object."""
    waiting, seen, size = [held], set[int](), 0
    while waiting:
        value = waiting.pop()
        if id(value) in seen or isinstance(value, _NOT_HELD):
            continue
        seen.add(id(value))
        if isinstance(value, np.ndarray):
            size += value.size
        elif isinstance(value, Collection):
            size += len(value)
        waiting += gc.get_referents(value)
    return size
