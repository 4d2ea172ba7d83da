"""A kit of checks that any drafter passes: what the exactness of an output rests on.

A drafter is given small rounds without an engine, and all outcomes of its draws are walked
(`outrider.random.Enumerator`), so that a fault of any size is seen.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..random import Enumerator
from ..types.finding import Finding
from ..types.plan import DraftPlan, DraftTree, StopRule
from ..types.records import MODEL, DraftProposal, Prefix
from .base import Drafter
from .trial import TrialContext

TOLERANCE = 1e-12
"""How far two probabilities of the same outcome may differ."""

PROMPT = (0, 1, 0, 1, 0)
"""Its last tokens have occurred before, so that there is something to look up."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One way in which a row's draft may come out.

    Attributes:
        probability: of the draws that led here.
        proposal: what was proposed, of one row.
        picked: the tokens drawn at each position of a chain.
    """

    probability: float
    proposal: DraftProposal
    picked: tuple[int, ...]

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens of the row."""
        tokens: list[int] = self.proposal.tokens[0].tolist()
        return tuple(tokens[: int(self.proposal.lengths[0])])

    @property
    def shape(self) -> tuple[int, ...]:
        """The node that each token follows."""
        return tuple(self.proposal.structure[0, : len(self.tokens)].tolist())

    @property
    def reported(self) -> float:
        """The product of the reported probabilities of the tokens."""
        made = self.proposal.distributions
        product = 1.0
        for column, token in enumerate(self.tokens):
            assert made is not None, "tokens come with their distributions"
            row = column
            if self.proposal.distribution_rows is not None:
                row = int(self.proposal.distribution_rows[0, column])
            if made.probs is not None and row >= 0:
                product *= float(made.probs[0, row, token])
            elif made.point_masses is not None:
                product *= float(made.point_masses[0, column] == token)
        return product


class SomeStop(StopRule):
    """Ends drafts that are not confident; takes all that is looked up."""

    def __init__(self, depth: NDArray[np.int64], least: float = 0.4) -> None:
        self._depth = depth
        self._least = least

    @property
    def model_depth(self) -> NDArray[np.int64]:
        """The plan's own depths."""
        return self._depth

    def continues(
        self, confidence: NDArray[np.float64], drafting: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Draft on after a token of enough confidence."""
        return drafting & (confidence[:, -1] >= self._least)

    def kept(
        self, source: str, confidence: NDArray[np.float64], row: int | None = None
    ) -> NDArray[np.float64]:
        """Take confidences as they are."""
        del source, row
        return confidence

    def lookup(self, row: int, reach: NDArray[np.float64]) -> int:
        """Take all tokens."""
        del row
        return len(reach)


def outcomes(
    drafter: Drafter,
    tokens: Sequence[int],
    plan: DraftPlan,
    *,
    sequence_ids: Iterator[int] | None = None,
    **context: Any,
) -> list[Outcome]:
    """Walk all outcomes of a drafter's draws for one sequence.

    Args:
        drafter: learns nothing from this.
        tokens: of the prefix.
        plan: of one row.
        sequence_ids: those that are used; None counts from 0.
        context: for `TrialContext`.
    """
    ids = count() if sequence_ids is None else sequence_ids
    found, waiting = [], [tuple[int, ...]()]
    while waiting:
        chance = Enumerator([waiting.pop()])
        ctx = TrialContext(plan, chance, **context)
        prefix = Prefix(next(ids), tokens)
        proposal = drafter.propose([prefix], plan, ctx)
        release(drafter, [prefix], discard=True)
        waiting += [path for _, path in chance.siblings]
        picked = tuple(int(drawn[0]) for drawn in ctx.picked)
        found.append(Outcome(chance.probability[0], proposal, picked))
    return found


def release(drafter: Drafter, prefixes: Sequence[Prefix], *, discard: bool = False) -> None:
    """End sequences as an engine does: for a drafter and all drafters behind it.

    Args:
        drafter: any drafter.
        prefixes: the whole texts.
        discard: whether nothing is to be learnt of them.
    """
    parts: list[object] = [drafter]
    for part in parts:
        if isinstance(part, Drafter):
            parts += [behind for behind in part.models if not any(behind is p for p in parts)]
            if not discard:
                part.observe_output(prefixes)
            part.release([prefix.sequence_id for prefix in prefixes], discard=discard)


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
        A finding for each of form, lengths, distributions, inclusion, stop tokens, release,
        learning and local rows. A drafter that raises fails the check in which it does.
    """
    kit = _Kit(make_drafter, vocab_size, depth)
    checks: list[tuple[str, Callable[[], str]]] = [
        ("form", kit.form),
        ("lengths", kit.lengths),
        ("distributions", kit.distributions),
        ("inclusion", kit.inclusion),
        ("stop tokens", kit.stop_tokens),
        ("release", kit.release),
        ("learning", kit.learning),
        ("local rows", kit.local_rows),
    ]
    findings = []
    for name, check in checks:
        try:
            wrong = check()
        except Exception as error:
            wrong = f"raised {type(error).__name__}: {error}"
        findings.append(Finding(name, not wrong, wrong or "holds"))
    return tuple(findings)


class _Kit:
    """The checks; each returns what is wrong, or nothing."""

    def __init__(self, make_drafter: Callable[[], Drafter], vocab_size: int, depth: int) -> None:
        self._make = make_drafter
        self._vocab_size = vocab_size
        self._depth = depth
        self._ids = count()

    def form(self) -> str:
        """Proposals have the contract's shapes, dtypes and device."""
        for plan in self._plans():
            wrong = _malformed(self._proposed(self._make(), plan), plan, self._vocab_size)
            if wrong:
                return f"{wrong}, planned {_described(plan)}"
        return ""

    def lengths(self) -> str:
        """No row is drafted further than planned."""
        for plan in self._plans():
            proposal = self._proposed(self._make(), plan)
            most = plan.depth if proposal.parents is None else plan.lengths
            if (proposal.lengths > most).any():
                return f"lengths {proposal.lengths.tolist()}, planned {_described(plan)}"
        return ""

    def distributions(self) -> str:
        """Tokens come from the distributions that are reported for them."""
        for plan in self._walked():
            mass: dict[Any, float] = defaultdict(float)
            reported: dict[Any, set[float]] = defaultdict(set)
            for outcome in self._outcomes(plan):
                mass[outcome.tokens, outcome.shape] += outcome.probability
                reported[outcome.tokens, outcome.shape].add(outcome.reported)
            for key, probability in mass.items():
                error = max(abs(probability - product) for product in reported[key])
                if not error < TOLERANCE:
                    return (
                        f"tokens {list(key[0])} are proposed with probability {probability:.6g}, "
                        f"their distributions say {min(reported[key]):.6g}; return what ctx.pick "
                        "was given, as it was"
                    )
        return ""

    def inclusion(self) -> str:
        """Whether a token is proposed never depends on its own drawn value."""
        for plan in self._walked():
            if plan.tree is not None:
                continue
            included: dict[tuple[int, ...], set[bool]] = defaultdict(set)
            for outcome in self._outcomes(plan):
                for position in range(len(outcome.picked)):
                    before = outcome.picked[:position]
                    included[before].add(len(outcome.tokens) > position)
            for before, ways in included.items():
                if len(ways) > 1:
                    return (
                        f"after drafted tokens {list(before)} the next is proposed or not by its "
                        "own value; decide before it is drawn"
                    )
        return ""

    def stop_tokens(self) -> str:
        """Looked-up drafts end at the first token that would end the request."""
        for stop in range(self._vocab_size):
            for plan in self._plans():
                ids = frozenset({stop})
                proposal = self._proposed(self._make(), plan, stop_ids=ids)
                for row, source in enumerate(proposal.row_sources):
                    length = int(proposal.lengths[row])
                    tokens = [None, *proposal.tokens[row, :length].tolist()]
                    parents = proposal.structure[row, :length].tolist()
                    if source != MODEL and any(tokens[parent] == stop for parent in parents):
                        return f"looked-up tokens {tokens[1:]} go on behind the stop token {stop}"
        return ""

    def release(self) -> str:
        """What was kept of a sequence is gone once it is released; discarded ones are not shared."""
        drafter, plan = self._make(), self._plans()[0]
        sizes = []
        for rounds in (3, 12):
            for _ in range(rounds):
                self._decoded(drafter, plan, learning=True, discard=True)
            sizes.append(_entries(drafter))
        if sizes[0] != sizes[1]:
            return f"{sizes[1] - sizes[0]} entries are left behind by 12 sequences"
        return self._differs(drafter, "after sequences that were discarded")

    def learning(self) -> str:
        """Nothing is learnt from rounds that say so."""
        drafter = self._make()
        for _ in range(3):
            self._decoded(drafter, self._plans()[0], learning=False, discard=False)
        return self._differs(drafter, "after rounds with ctx.learning false")

    def local_rows(self) -> str:
        """Rows that must repeat are drafted alike whatever was decoded before."""
        drafter = self._make()
        for _ in range(3):
            self._decoded(drafter, self._plans()[0], learning=True, discard=False)
        return self._differs(drafter, "for local rows after other sequences", local=True)

    def _plans(self) -> list[DraftPlan]:
        depth = np.array([self._depth, 0, 1], dtype=np.int64)
        two = depth.clip(max=2)
        return [
            DraftPlan(depth),
            DraftPlan(depth, stop=SomeStop(depth)),
            DraftPlan(two, DraftTree((2, 4), (2, 2))),
            DraftPlan(two, DraftTree((2, 3))),
        ]

    def _walked(self) -> list[DraftPlan]:
        """The plans' first rows."""
        plans = []
        for plan in self._plans():
            depth = plan.depth[:1]
            stop = None if plan.stop is None else SomeStop(depth)
            plans.append(DraftPlan(depth, plan.tree, stop))
        return plans

    def _outcomes(self, plan: DraftPlan, **context: Any) -> list[Outcome]:
        return outcomes(self._make(), self._prompt(), plan, sequence_ids=self._ids, **context)

    def _prompt(self, shift: int = 0) -> list[int]:
        return [(token + shift) % self._vocab_size for token in PROMPT]

    def _proposed(self, drafter: Drafter, plan: DraftPlan, **context: Any) -> DraftProposal:
        """Propose for three rows, each draw with its first possible outcome."""
        chance = Enumerator([()] * 3)
        ctx = TrialContext(plan, chance, **context)
        prefixes = [Prefix(next(self._ids), self._prompt(shift)) for shift in range(3)]
        proposal = drafter.propose(prefixes, plan, ctx)
        release(drafter, prefixes, discard=True)
        return proposal

    def _decoded(self, drafter: Drafter, plan: DraftPlan, *, learning: bool, discard: bool) -> None:
        """Take sequences through two rounds and to their end.

        Their outputs hold the kit's prompts, which go on in another way than within themselves.
        """
        outputs = [[*self._prompt(shift), (2 + shift) % self._vocab_size] for shift in range(3)]
        prefixes = [Prefix(next(self._ids), [0, *output[:-1]]) for output in outputs]
        for _ in range(2):
            ctx = TrialContext(plan, Enumerator([()] * 3), learning=learning)
            drafter.propose(prefixes, plan, ctx)
            rows = zip(prefixes, outputs, strict=True)
            prefixes = [prefix.extended(output[-1:]) for prefix, output in rows]
        release(drafter, prefixes, discard=discard)

    def _differs(self, drafter: Drafter, when: str, **context: Any) -> str:
        """Compare a drafter's proposals to those of a new one."""
        for plan in self._plans():
            used = _drafts(self._proposed(drafter, plan, **context))
            fresh = _drafts(self._proposed(self._make(), plan, **context))
            if used != fresh:
                return f"{used} is proposed {when}, {fresh} by a new drafter"
        return ""


def _drafts(proposal: DraftProposal) -> list[tuple[list[int], list[int]]]:
    """Each row's tokens, and the nodes that they follow."""
    rows = zip(proposal.tokens.tolist(), proposal.structure, proposal.lengths, strict=True)
    return [(tokens[:length], parents[:length].tolist()) for tokens, parents, length in rows]


def _malformed(proposal: DraftProposal, plan: DraftPlan, vocab_size: int) -> str:
    """Return what is wrong with the form of a proposal."""
    batch, width = len(plan.depth), proposal.tokens.shape[-1]
    if proposal.tokens.shape != (batch, width) or proposal.tokens.dtype != torch.int64:
        return f"tokens are {proposal.tokens.dtype} {list(proposal.tokens.shape)}"
    lengths = proposal.lengths
    if lengths.shape != (batch,) or lengths.min() < 0 or lengths.max() > width:
        return f"lengths are {lengths.tolist()} for {width} columns"
    if proposal.sources is not None and len(proposal.sources) != batch:
        return f"sources are {proposal.sources}"
    if not width:
        return ""
    made = proposal.distributions
    if made is None or (made.probs is None) == (made.point_masses is None):
        return "distributions have not exactly one of probs and point_masses"
    shape = (batch, width)
    for name in ("parents", "distribution_rows", "confidence"):
        values = getattr(proposal, name)
        if values is not None and values.shape != shape:
            return f"{name} have the shape {values.shape}"
    if (proposal.structure < 0).any() or (proposal.structure > np.arange(width)).any():
        return f"parents are {proposal.structure.tolist()}"
    if made.probs is not None and made.probs.shape[2:] != (vocab_size,):
        return f"distributions have the shape {list(made.probs.shape)}"
    drafted = torch.from_numpy(np.arange(width) < lengths[:, None])
    tokens = proposal.tokens[drafted]
    if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocab_size:
        return f"tokens are {proposal.tokens.tolist()}"
    return ""


def _entries(value: object, seen: set[int] | None = None) -> int:
    """Count what containers hold that can be reached from a value."""
    seen = set() if seen is None else seen
    if id(value) in seen or isinstance(value, type | torch.Tensor | torch.nn.Module):
        return 0
    seen.add(id(value))
    inside: Iterable[object] = ()
    size = 0
    if isinstance(value, dict):
        size, inside = len(value), [*value.keys(), *value.values()]
    elif isinstance(value, list | tuple | set | frozenset):
        size, inside = len(value), value
    elif isinstance(value, np.ndarray):
        size = value.size
    elif type(value).__module__ != "builtins":
        names = [
            name for kind in type(value).__mro__ for name in kind.__dict__.get("__slots__", ())
        ]
        inside = [*vars(value).values()] if "__dict__" in dir(value) else []
        inside = [*inside, *(getattr(value, name, None) for name in names)]
        size, inside = (
            (len(value), [*inside, *value]) if isinstance(value, Sequence) else (0, inside)
        )
    return size + sum(_entries(each, seen) for each in inside)


def _described(plan: DraftPlan) -> str:
    tree = "" if plan.tree is None else f" with levels {plan.tree.levels}"
    return f"depths {plan.depth.tolist()}{tree}"
