"""The conformance kit of verification methods: what every lossless one has to satisfy.

Small chains and trees are enumerated: every draft that may be drawn, every node at which the round
may stop, every token that may follow. The tokens that a round emits are compared with the target's
distribution by the probability of every prefix of three tokens, completed by the target itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..types import trees
from ..types.finding import Finding
from ..types.records import Distributions, DraftProposal
from .methods import Method
from .tree import Tree
from .verifier import Verifier

TOLERANCE = 1e-12
_VOCABULARY = 4
_NOTHING: dict[str, tuple[float, str]] = {
    "stop distribution sums to one": (0.0, "no case"),
    "residuals are distributions": (0.0, "no case"),
    "padding is ignored": (0.0, "no case"),
    "tokens of probability zero are never emitted": (0.0, "no case"),
    "chains are exact": (0.0, "no case"),
    "point masses are exact": (0.0, "no case"),
    "trees are exact": (0.0, "no case"),
}

Row = NDArray[np.float64]
Path = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Draft:
    """One draft of one row, and with which probability it is drawn.

    Attributes:
        probability: of these tokens.
        tokens: one for each node but the root.
        rows: what they were drawn from, [R, V]; none if they are point masses.
        sources: which row each was drawn from.
    """

    probability: float
    tokens: Path
    rows: tuple[Row, ...]
    sources: tuple[int, ...]


class _Pair:
    """A target and a drafter: a distribution after every path, some entries zero."""

    def __init__(self, seed: int, sparse: bool) -> None:
        self._seed, self._sparse = seed, sparse
        self._known: dict[tuple[int, Path], Row] = {}

    def row(self, side: int, path: Path) -> Row:
        """The distribution [V] of the target (0) or the drafter (1) after a path."""
        if (side, path) not in self._known:
            rng = np.random.default_rng((self._seed, side, *(token + 1 for token in path)))
            row = rng.dirichlet(np.full(_VOCABULARY, 0.7))
            if self._sparse and rng.random() < 0.6:
                row[rng.integers(_VOCABULARY)] = 0.0
            self._known[side, path] = row / row.sum()
        return self._known[side, path]

    def target(self, paths: Sequence[Path]) -> Row:
        """The target's distributions after paths, [M, V]."""
        return np.stack([self.row(0, path) for path in paths])


def check_verifier(verifier: Verifier | Method) -> tuple[Finding, ...]:
    """Check that a verification method is lossless, by enumeration of small drafts.

    Args:
        verifier: the method, or a verifier that has one. Coupled verification has none: its text
            does not depend on drafts, and there is nothing to enumerate.

    Returns:
        A finding for each property. A method that raises fails the property under test; one with
        `trees = False` is asked for none.
    """
    method = verifier.method if isinstance(verifier, Verifier) else verifier
    worst = dict(_NOTHING)
    if method is None:
        return tuple(Finding(name, True, "coupled: nothing to enumerate") for name in worst)
    for name, parents, pair, drafts in _cases(method.trees):
        try:
            found = _measured(method, parents, pair, list(drafts))
        except Exception as error:  # whatever a user's method raises is a finding
            found = {"exact": (np.inf, f"{type(error).__name__}: {error}")}
        found[name] = found.pop("exact")
        for key, (error_size, detail) in found.items():
            if worst[key][1] == "no case" or not error_size <= worst[key][0]:
                worst[key] = (error_size, detail)
    return tuple(
        Finding(name, bool(error <= TOLERANCE), f"largest error {error:.1e}, {detail}")
        for name, (error, detail) in worst.items()
    )


def _cases(with_trees: bool) -> Iterator[tuple[str, NDArray[np.int64], _Pair, Iterator[Draft]]]:
    """Names, shapes, models and all drafts."""
    for seed, sparse in itertools.product(range(3), (False, True)):
        pair = _Pair(seed, sparse)
        for depth in (1, 2, 3):
            parents = np.arange(depth)
            yield "chains are exact", parents, pair, _drawn(parents, pair, True)
            outright = Draft(1.0, tuple((seed + i) % _VOCABULARY for i in range(depth)), (), ())
            yield "point masses are exact", parents, pair, iter([outright])
        if with_trees:
            for shape in ([0, 0], [0, 0, 1], [0, 1, 1]):
                for replaced in (False, True):
                    parents = np.array(shape)
                    yield "trees are exact", parents, pair, _drawn(parents, pair, replaced)


def _drawn(parents: NDArray[np.int64], pair: _Pair, replaced: bool) -> Iterator[Draft]:
    """All drafts of a shape; siblings drawn with replacement, or without while there is another."""
    for tokens in itertools.product(range(_VOCABULARY), repeat=len(parents)):
        probability, rows = 1.0, []
        for column, token in enumerate(tokens):
            row = pair.row(1, _path(parents, tokens, int(parents[column])))
            if not replaced:
                taken = [tokens[i] for i in range(column) if parents[i] == parents[column]]
                left = row.copy()
                left[taken] = 0.0
                row = left / left.sum() if left.sum() > 0 else row
            rows.append(row)
            probability *= float(row[token])
        if probability > 0:
            yield Draft(probability, tokens, tuple(rows), tuple(range(len(rows))))


def _path(parents: NDArray[np.int64], tokens: Sequence[int], node: int) -> Path:
    return tuple(tokens[step - 1] for step in trees.path(parents.tolist(), node))


def _measured(
    method: Method, parents: NDArray[np.int64], pair: _Pair, drafts: list[Draft]
) -> dict[str, tuple[float, str]]:
    """The errors of one case, by property ("exact" for the emitted distribution)."""
    batch, width = len(drafts), len(parents)
    tokens = np.array([draft.tokens for draft in drafts])
    target = np.stack(
        [
            pair.target([_path(parents, draft.tokens, node) for node in range(width + 1)])
            for draft in drafts
        ]
    )
    rows = np.array([draft.rows for draft in drafts]) if drafts[0].rows else None
    chain = bool((parents == np.arange(width)).all())
    what = f"drafts with parents {parents.tolist()}"
    tree = _tree(tokens, np.full(batch, width), target, rows, None if chain else parents)
    distribution, claims = method.stop_distribution(tree)
    stop = np.asarray(distribution)
    off = np.abs(stop.sum(-1) - 1).max() + max(0.0, -float(stop.min()))
    found = {"stop distribution sums to one": (float(off), what)}
    emitted: dict[Path, float] = {}
    worst = 0.0
    for node in range(width + 1):
        residual = np.asarray(method.residual(tree, claims, np.full(batch, node)))
        for row, draft in enumerate(drafts):
            reached = draft.probability * float(stop[row, node])
            if not reached > 0:
                continue
            wrong = abs(float(residual[row].sum()) - 1) + max(0.0, -float(residual[row].min()))
            # What rounding alone brings about counts for as much as it is likely.
            worst = max(worst, wrong * min(1.0, reached / TOLERANCE))
            kept = _path(parents, draft.tokens, node)
            for token in range(_VOCABULARY):
                path = (*kept, token)
                emitted[path] = emitted.get(path, 0.0) + reached * float(residual[row, token])
    found["residuals are distributions"] = (worst, what)
    forbidden = sum(mass for path, mass in emitted.items() if not _likely(pair, path))
    found["tokens of probability zero are never emitted"] = (forbidden, what)
    found["exact"] = (_distance(pair, emitted), what)
    found["padding is ignored"] = (_padding_error(method, tree, stop, chain), what)
    return found


def _tree(
    tokens: NDArray[np.int64],
    lengths: NDArray[np.int64],
    target: Row,
    rows: Row | None,
    parents: NDArray[np.int64] | None,
) -> Tree:
    """Drafts of one shape beside their target, in NumPy."""
    batch, width = tokens.shape
    distributions: Any = Distributions(point_masses=tokens)  # type: ignore[arg-type]
    if rows is not None:
        distributions = Distributions(probs=rows)  # type: ignore[arg-type]
    structure = None if parents is None else np.tile(parents, (batch, 1))
    sources = None if parents is None or rows is None else trees.chain(batch, width)
    proposal = DraftProposal(tokens, lengths, distributions, structure, sources)  # type: ignore[arg-type]
    return Tree.of(proposal, target)


def _likely(pair: _Pair, path: Path) -> bool:
    return all(pair.row(0, path[:i])[token] > 0 for i, token in enumerate(path))


def _distance(pair: _Pair, emitted: dict[Path, float]) -> float:
    """The largest error in the probability of a text, where the target completes what was emitted."""
    length = max(map(len, emitted))
    worst = 0.0
    for text in itertools.product(range(_VOCABULARY), repeat=length):
        after = [float(pair.row(0, text[:i])[token]) for i, token in enumerate(text)]
        wanted = float(np.prod(after))
        got = sum(
            emitted.get(text[:end], 0.0) * float(np.prod(after[end:]))
            for end in range(1, length + 1)
        )
        worst = max(worst, abs(got - wanted))
    return worst


def _padding_error(method: Method, tree: Tree, stop: Row, chain: bool) -> float:
    """How far the stop distribution moves with NaN behind a row's drafts, on chains."""
    if not chain:
        return 0.0
    batch, width = tree.tokens.shape

    def widened(rows: Any, entry: float) -> Any:
        return np.concatenate([rows, np.full_like(rows[:, :1], entry)], axis=1)

    rows = None if tree.draft is None else widened(tree.draft, np.nan)
    target = widened(tree.target, np.nan)
    padded = _tree(widened(tree.tokens, 0), np.full(batch, width), target, rows, None)
    found, claims = method.stop_distribution(padded)
    after = method.residual(padded, claims, np.full(batch, width))
    before = method.residual(tree, method.stop_distribution(tree)[1], np.full(batch, width))
    moved = (np.asarray(found)[:, :-1] - stop, np.asarray(found)[:, -1], after - before)
    error = max(float(np.abs(part).max()) for part in moved)
    return error if np.isfinite(error) else float("inf")
