"""Trees over the slot cache, in float64: every node's logits are those of its path alone."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from outrider import TransformersModel
from outrider.errors import ContextLengthError, ModelError
from outrider.runtimes.tabular import mock_pair
from outrider.runtimes.transformers.pending import HostCopy, RowTokens
from outrider.runtimes.transformers.slot_cache import SlotCache
from outrider.runtimes.transformers.slots import Placement, Slot, SlotTable
from outrider.runtimes.transformers.views import View, Views
from outrider.types import trees
from outrider.types.records import Distributions, DraftProposal, Prefix

from .families import CONTEXT, FAMILIES, VOCAB, random_model

Row = tuple[list[int], list[int]]
"""Tokens and parents of one tree."""


def random_tree(rng: random.Random, width: int) -> Row:
    """Any tree, flat or deep: siblings may carry the same token, and often do."""
    alphabet, draws = rng.choice([2, VOCAB]), rng.choice([1, 2, 6])
    tokens = [rng.randrange(alphabet) for _ in range(width)]
    return tokens, [max(rng.randrange(column + 1) for _ in range(draws)) for column in range(width)]


def proposal(*rows: Row) -> DraftProposal:
    """Ragged trees, padded with token 0 after the prefix."""
    lengths = np.array([len(tokens) for tokens, _ in rows])
    tokens = torch.zeros(len(rows), int(lengths.max()), dtype=torch.int64)
    parents = np.zeros(tokens.shape, dtype=np.int64)
    for index, (drafted, follows) in enumerate(rows):
        tokens[index, : len(drafted)] = torch.tensor(drafted, dtype=torch.int64)
        parents[index, : len(drafted)] = follows
    return DraftProposal(tokens, lengths, Distributions(point_masses=tokens), parents)


def path_tokens(row: Row, node: int) -> list[int]:
    tokens, parents = row
    return [tokens[step - 1] for step in trees.path(parents, node)]


def full_logits(model: Any, texts: list[list[int]]) -> torch.Tensor:
    """The logits [n, V] after each text, by the model's own forward without a cache."""
    ids = torch.zeros(len(texts), max(map(len, texts)), dtype=torch.int64)
    for index, text in enumerate(texts):
        ids[index, : len(text)] = torch.tensor(text)
    with torch.no_grad():
        logits: torch.Tensor = model(ids, use_cache=False).logits
    return logits[torch.arange(len(texts)), [len(text) - 1 for text in texts]]


def error(model: Any, found: torch.Tensor, prefix: list[int], row: Row) -> float:
    """How far the logits [>= n + 1, V] are from those of each node's path alone."""
    texts = [[*prefix, *path_tokens(row, node)] for node in range(len(row[0]) + 1)]
    return float((found[: len(texts)] - full_logits(model, texts)).abs().max())


class Case:
    """A family's model behind the adapter, and the model left as it was."""

    def __init__(self, family: str, slots: int = 3) -> None:
        # Gemma 2's own attention takes its softmax in float32 whatever the model's dtype.
        self.tolerance = 1e-5 if family == "gemma2" else 1e-10
        self.reference = random_model(family)
        self.model = TransformersModel(copy.deepcopy(self.reference), max_sequences=slots)

    @contextmanager
    def computed(self) -> Iterator[list[int]]:
        """How many columns each forward computes meanwhile, rows times tokens."""
        counts: list[int] = []

        def note(_: Any, __: Any, inputs: dict[str, Any]) -> None:
            counts.append(inputs["input_ids"].numel())

        hook = self.model.hf_model.register_forward_pre_hook(note, with_kwargs=True)
        yield counts
        hook.remove()

    def verify(self, names: list[int], paths: list[list[int]], rows: list[Row]) -> float:
        """Verify trees: the largest error of any node's logits."""
        prefixes = [Prefix(name, path) for name, path in zip(names, paths, strict=True)]
        logits = self.model.verify(prefixes, proposal(*rows)).logits
        self.model.check_integrity()
        found = zip(logits, paths, rows, strict=True)
        return max(error(self.reference, *each) for each in found)


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Case:
    return Case(request.param)


@pytest.fixture(scope="module")
def llama() -> Case:
    return Case("llama")


def random_rounds(case: Case, rounds: int, seed: int) -> tuple[float, list[int], list[int]]:
    """Rounds on a ragged batch, a random path accepted in each.

    Returns:
        the largest error, the columns computed by each forward after the first round, and how many
        would be if only the last token of each prefix and its tree were.
    """
    rng = random.Random(seed)
    names = [300 + seed, 100 + seed, 200 + seed]
    paths = [[rng.randrange(VOCAB) for _ in range(length)] for length in (2, 9, 21)]
    worst, needed = 0.0, []
    with case.computed() as counts:
        for _ in range(rounds):
            rows = [random_tree(rng, rng.randrange(11)) for _ in names]
            needed.append(3 * (1 + max(len(tokens) for tokens, _ in rows)))
            before = len(counts)
            worst = max(worst, case.verify(names, paths, rows))
            if len(needed) == 1:
                del counts[before:]
            for path, row in zip(paths, rows, strict=True):
                path += [
                    *path_tokens(row, rng.randrange(len(row[0]) + 1)),
                    rng.randrange(VOCAB),
                ]
    case.model.release(names)
    return worst, counts, needed[1:]


@pytest.mark.parametrize("seed", [0, 1])
def test_every_node_of_random_trees_and_the_accepted_path_is_kept(family: Case, seed: int) -> None:
    worst, computed, needed = random_rounds(family, 7, seed)
    assert worst < family.tolerance
    assert computed == needed


def without_ancestors(monkeypatch: pytest.MonkeyPatch) -> None:
    def everything_before(parents: trees.Parents) -> Any:
        batch, width = parents.shape
        return np.tile(np.tri(width, dtype=bool), (batch, 1, 1))

    monkeypatch.setattr(trees, "ancestor_mask", everything_before)


def without_moving(monkeypatch: pytest.MonkeyPatch) -> None:
    collect = SlotCache.collect

    def stay(cache: SlotCache, place: Placement) -> None:
        collect(cache, Placement(place.slot, place.shared, place.donor))

    monkeypatch.setattr(SlotCache, "collect", stay)


def positions_by_column(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = Views.tree

    def careless(views: Views, starts: list[int], ancestors: torch.Tensor, queries: int) -> View:
        view = tree(views, starts, ancestors, queries)
        hung = torch.tensor(starts)[:, None] + torch.arange(ancestors.shape[1])
        return View(view.masks, hung[:, -queries:], view.columns, view.span)

    monkeypatch.setattr(Views, "tree", careless)


def windows_by_column(monkeypatch: pytest.MonkeyPatch) -> None:
    masks = Views._masks

    def careless(views: Views, seen: torch.Tensor, *_: Any) -> Any:
        own = seen.shape[2] - 1 - seen.flip(2).int().argmax(2)
        return masks(views, seen, torch.arange(seen.shape[2]), own)

    monkeypatch.setattr(Views, "_masks", careless)


@pytest.mark.parametrize(
    ("family", "plant"),
    [
        ("llama", without_ancestors),
        ("llama", without_moving),
        ("llama", positions_by_column),
        ("gpt2", positions_by_column),
        ("mistral", windows_by_column),
        ("gemma3", windows_by_column),
    ],
)
def test_a_planted_fault_shows_in_the_logits(
    family: str, plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(family)
    plant(monkeypatch)
    assert random_rounds(case, 7, 0)[0] > 1e-3


def test_a_tree_that_is_thrown_away_shows_in_what_is_computed(
    llama: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Slot, "_path", lambda *_: [])
    worst, computed, needed = random_rounds(llama, 7, 0)
    assert worst < 1e-10
    assert sum(computed) > sum(needed)


#            0
#        1       2        columns: 1 2 | 3 4 5 | 6
#       3 4      5
#         6
FORK: Row = ([7, 8, 9, 10, 9, 11], [0, 0, 1, 1, 2, 4])


@pytest.mark.parametrize("node", range(7))
def test_each_path_of_a_tree_is_kept_and_read_in_its_place(llama: Case, node: int) -> None:
    path = [5, 6, 7, 8, 9]
    assert llama.verify([1], [path], [FORK]) < 1e-10
    path = [*path, *path_tokens(FORK, node), 12]
    with llama.computed() as counts:
        assert llama.verify([1], [path], [FORK]) < 1e-10
    assert counts == [7]
    llama.model.release([1], discard=True)


def test_siblings_with_the_same_token_lead_on_by_whichever_goes_further(llama: Case) -> None:
    twins: Row = ([7, 7, 8], [0, 0, 2])
    assert llama.verify([1], [[5, 6]], [twins]) < 1e-10
    with llama.computed() as counts:
        assert llama.verify([1], [[5, 6, 7, 8, 1]], [twins]) < 1e-10
    assert counts == [4]
    llama.model.release([1], discard=True)


def test_a_new_sequence_shares_a_path_of_a_tree_that_is_still_pending(family: Case) -> None:
    path = [3, 1, 4, 1, 5, 9, 2, 6]
    assert family.verify([1], [path], [FORK]) < family.tolerance
    other = [*path, 7, 10, 1]
    with family.computed() as counts:
        assert family.verify([2], [other], [FORK]) < family.tolerance
        assert family.verify([1], [[*path, 8, 9, 1]], [FORK]) < family.tolerance
        family.model.release([2])
        # The slot of 2 is idle, with a tree: it is taken over for a path of it.
        assert family.verify([3], [[*other, 8, 9, 1]], [FORK]) < family.tolerance
    assert counts == [7, 7, 7]
    family.model.release([1, 3])


def test_more_sequences_over_time_than_slots(llama: Case) -> None:
    rng = random.Random(5)
    live = {name: [rng.randrange(3) for _ in range(4)] for name in (1, 2, 3)}
    for name in range(4, 16):
        names = rng.sample(sorted(live), rng.randrange(1, 4))
        rows = [random_tree(rng, rng.randrange(1, 9)) for _ in names]
        assert llama.verify(names, [live[each] for each in names], rows) < 1e-10
        for each, row in zip(names, rows, strict=True):
            live[each] += [*path_tokens(row, rng.randrange(len(row[0]) + 1)), 1]
        gone = rng.choice(sorted(live))
        llama.model.release([gone])
        live[name] = [*live.pop(gone)[: rng.randrange(2, 6)], rng.randrange(3)]
    llama.model.release(live)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_tree_may_be_wider_than_what_is_left_of_the_context(family: str) -> None:
    """What counts is the deepest node of a row's own, not its columns, nor another row's."""
    case = Case(family)
    path = [index % VOCAB for index in range(CONTEXT - 2)]
    wide: Row = ([*range(1, 10), 4], [0] * 9 + [9])
    deep: Row = (list(range(12)), list(range(12)))
    assert case.verify([1, 2], [path, path[:50]], [wide, deep]) < 1e-10
    with pytest.raises(ContextLengthError, match=r"158 tokens and 3 drafts in a row"):
        case.verify([1], [path], [([1, 2, 3], [0, 1, 2])])
    with case.computed() as counts:
        assert case.verify([1], [[*path, 9, 4]], [([], [])]) < 1e-10
    assert counts == [1]


@torch.inference_mode()
def test_a_cursor_expands_trees_level_by_level(family: Case) -> None:
    rng = random.Random(2)
    names = [12, 10, 11]
    paths = [[rng.randrange(VOCAB) for _ in range(length)] for length in (3, 17, 8)]
    for turn in range(4):
        prefixes = [Prefix(name, path) for name, path in zip(names, paths, strict=True)]
        with family.computed() as counts:
            cursor = family.model.open(prefixes, 4)
            assert turn == 0 or counts == [3]
            rows: list[Row] = [([], []) for _ in names]
            logits = [cursor.logits[:, None]]
            for width in (2, 4, 3):
                for tokens, parents in rows:
                    before = len(tokens)
                    tokens += [rng.randrange(5) for _ in range(width)]
                    parents += [rng.randrange(before + 1) for _ in range(width)]
                new = torch.tensor([[t[-width:], p[-width:]] for t, p in rows])
                logits.append(cursor.expand(new[:, 0], new[:, 1]))
            assert counts[-3:] == [6, 12, 9]
        found = torch.cat(logits, 1)
        for each in zip(found, paths, rows, strict=True):
            assert error(family.reference, *each) < family.tolerance
        for path, row in zip(paths, rows, strict=True):
            path += [*path_tokens(row, rng.randrange(10)), rng.randrange(VOCAB)]
    family.model.release(names)


@torch.inference_mode()
def test_a_cursor_takes_steps_or_trees(llama: Case) -> None:
    one = torch.tensor([4])
    cursor = llama.model.open([Prefix(1, [1, 2])], 3)
    cursor.step(one)
    with pytest.raises(ModelError, match="by step or by expand"):
        cursor.expand(one[None], one[None] * 0)
    cursor = llama.model.open([Prefix(1, [1, 2])], 3)
    cursor.expand(one[None], one[None] * 0)
    with pytest.raises(ModelError, match="by step or by expand"):
        cursor.step(one)
    llama.model.release([1])


def test_the_table_says_what_stands_out_of_its_place() -> None:
    table = SlotTable(2)

    def rest(prefix: list[int]) -> None:
        table.settle(1, np.array(prefix), RowTokens(HostCopy(*_arrays(FORK)), 0))

    place = table.place(Prefix(1, [1, 2]))
    rest([1, 2])
    place = table.place(Prefix(1, [1, 2, 7, 10, 11, 0]))
    assert place == Placement(0, 5, None, (5, 7))
    rest([1, 2, 7, 10, 11, 0])
    assert table.place(Prefix(2, [1, 2, 7, 10, 11, 0, 8, 9, 3])) == Placement(1, 8, 0, (7, 10))
    assert table.place(Prefix(1, [1, 2, 7, 10, 11, 0, 7, 9, 3])) == Placement(0, 8, None, (8,))
    assert table.place(Prefix(1, [1, 2, 7, 3])) == Placement(0, 3)
    rest([1, 2, 7, 3])
    assert table.place(Prefix(1, [1, 2, 5, 3])) == Placement(0, 2)
    table.check_integrity()


def _arrays(row: Row) -> tuple[torch.Tensor, trees.Parents]:
    return torch.tensor([row[0]]), np.array([row[1]])


def test_a_tabular_model_verifies_and_expands_trees() -> None:
    rng = random.Random(0)
    model, _ = mock_pair(3, seed=4)
    paths = [[0, 1], [2]]
    prefixes = [Prefix(index, path) for index, path in enumerate(paths)]
    rows: list[Row] = [random_tree(rng, 7), random_tree(rng, 4)]
    rows = [([token % 3 for token in tokens], parents) for tokens, parents in rows]
    drafted = proposal(*rows)
    logits = model.verify(prefixes, drafted).logits
    cursor = model.open(prefixes, 3)
    assert drafted.parents is not None
    parents = torch.from_numpy(drafted.parents)
    # A call may be fed only nodes whose parents were fed before it: here one node a call.
    fed = [cursor.expand(drafted.tokens[:, i : i + 1], parents[:, i : i + 1]) for i in range(7)]
    expanded = torch.cat(fed, 1)
    for index, (path, row) in enumerate(zip(paths, rows, strict=True)):
        for node in range(len(row[0]) + 1):
            distribution = model.probabilities((*path, *path_tokens(row, node)))
            assert np.array_equal(logits[index, node].exp().numpy(), np.exp(np.log(distribution)))
            if node:
                assert (expanded[index, node - 1] == logits[index, node]).all()
    assert (logits[1, 5:] == 0).all()
