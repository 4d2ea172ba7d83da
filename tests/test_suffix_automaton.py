"""The suffix automaton against plain searches of the text, and its cost counted in operations."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.drafters.candidate import Candidate
from outrider.drafters.suffix import kernels as suffix_kernels
from outrider.drafters.suffix.automaton import SuffixAutomaton
from outrider.drafters.suffix.pool import SuffixPool

texts = st.integers(1, 4).flatmap(lambda v: st.lists(st.integers(0, v - 1), max_size=40))
orders = st.integers(1, 6)
bounds = st.tuples(
    st.integers(1, 8),
    st.integers(1, 5),
    st.sampled_from([0.5, 1.0, 2.0, 4.0]),
    st.sampled_from([0.0, 1.0, 3.0]),
    st.sampled_from([0.1, 0.3, 1.0]),
    st.integers(1, 2),
)


def tokens_of(text: Sequence[int]) -> np.ndarray:
    return np.array(text, dtype=np.int64)


@dataclass
class Search:
    """What the automaton knows, by looking at every position of the texts.

    `closed` says that the end of a text is something that follows.
    """

    texts: list[list[int]]
    order: int
    closed: bool

    def continuations(self, context: tuple[int, ...]) -> tuple[int, list[tuple[int, int]]]:
        """How often `context` was followed, and (token, count), commonest and latest first."""
        followed, counts, latest = 0, Counter[int](), {}
        for number, text in enumerate(self.texts):
            for end in range(len(context), len(text) + 1):
                if tuple(text[end - len(context) : end]) != context:
                    continue
                if end < len(text):
                    counts[text[end]] += 1
                    latest[text[end]] = (number, end)
                elif not self.closed:
                    continue
                followed += 1
        ranked = sorted(counts, key=lambda token: (counts[token], latest[token]), reverse=True)
        return followed, [(token, counts[token]) for token in ranked]

    def context(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """The longest suffix that was followed, of at most `order` tokens."""
        tokens = tokens[max(0, len(tokens) - self.order) :]
        while tokens and not self.continuations(tokens)[0]:
            tokens = tokens[1:]
        return tokens

    def next(self, tokens: tuple[int, ...]) -> list[tuple[int, float]]:
        """Tokens that may follow, with their frequencies."""
        context = self.context(tokens)
        if not context:
            return []
        followed, ranked = self.continuations(context)
        return [(token, count / followed) for token, count in ranked]

    def chain(self, tokens: tuple[int, ...], most: int, least: float) -> list[tuple[int, float]]:
        drafted: list[tuple[int, float]] = []
        probability = 1.0
        while len(drafted) < most and (ranked := self.next(tokens)):
            probability *= ranked[0][1]
            if probability < least:
                break
            drafted.append((ranked[0][0], probability))
            tokens = (*tokens, ranked[0][0])
        return drafted

    def tree(self, tokens: tuple[int, ...], depth: int, least: float) -> list[float]:
        """The probabilities of all nodes of at most `depth`."""
        found = []
        level = [(tokens, 1.0)]
        for _ in range(depth):
            level = [
                ((*path, token), weight * frequency)
                for path, weight in level
                for token, frequency in self.next(path)
                if weight * frequency >= least
            ]
            found += [weight for _, weight in level]
        return sorted(found, reverse=True)


def best_chain(search: Search, tokens: list[int], matched: int, limits: tuple) -> tuple:
    budget, deepest, factor, offset, least, shortest = limits
    best: tuple[float, int, list[tuple[int, float]]] = (0.0, 0, [])
    for length in range(matched, shortest - 1, -1):
        most = min(budget, int(factor * length + offset), deepest)
        drafted = search.chain(tuple(tokens[len(tokens) - length :]), most, least)
        score = sum(probability for _, probability in drafted)
        if score > best[0] + 1e-12:
            best = (score, length, drafted)
    return best


def best_tree(search: Search, tokens: list[int], matched: int, limits: tuple) -> float:
    budget, deepest, factor, offset, least, shortest = limits
    return max(
        (
            sum(
                search.tree(tuple(tokens[len(tokens) - length :]), deepest, least)[
                    : min(budget, int(factor * length + offset))
                ]
            )
            for length in range(matched, shortest - 1, -1)
        ),
        default=0.0,
    )


def require_chain(candidate: Candidate, search: Search, tokens: list[int], matched: int, limits):
    score, length, drafted = best_chain(search, tokens, matched, limits)
    assert candidate.tokens.tolist() == [token for token, _ in drafted]
    assert candidate.probabilities.tolist() == pytest.approx([p for _, p in drafted])
    assert candidate.parents.tolist() == list(range(len(drafted)))
    assert candidate.score == pytest.approx(score)
    assert candidate.matched == length


def require_tree(candidate: Candidate, search: Search, tokens: list[int], matched: int, limits):
    assert candidate.score == pytest.approx(best_tree(search, tokens, matched, limits))
    start = tuple(tokens[len(tokens) - candidate.matched :])
    paths, weights = [start], [1.0]
    for token, parent, probability in zip(
        candidate.tokens.tolist(), candidate.parents.tolist(), candidate.probabilities, strict=True
    ):
        frequency = dict(search.next(paths[parent]))[token]
        assert probability == pytest.approx(weights[parent] * frequency)
        paths.append((*paths[parent], token))
        weights.append(probability)
    assert len(set(paths)) == len(paths)
    assert max(map(len, paths)) - len(start) <= limits[1]


@settings(max_examples=150, deadline=None)
@given(texts, orders, bounds)
def test_drafts_from_a_text_itself(text: list[int], order: int, limits: tuple) -> None:
    automaton = SuffixAutomaton(order, 64)
    for token in text:
        automaton.extend(tokens_of([token]))
    search = Search([text], order, closed=False)
    matched = len(search.context(tuple(text)))
    match = automaton.own_match()
    assert match[1] == matched
    require_chain(automaton.draft(match, limits, False), search, text, matched, limits)
    require_tree(automaton.draft(match, limits, True), search, text, matched, limits)


@settings(max_examples=150, deadline=None)
@given(st.lists(texts, max_size=4), texts, orders, bounds)
def test_drafts_from_other_texts(
    known: list[list[int]], text: list[int], order: int, limits: tuple
) -> None:
    pool = SuffixPool(order, 1000)
    for other in known:
        pool.insert(tokens_of(other))
    (automaton,) = pool.automata
    search = Search(known, order, closed=True)
    matched = len(search.context(tuple(text)))
    match = automaton.match(tokens_of(text))
    assert match[1] == matched
    require_chain(automaton.draft(match, limits, False), search, text, matched, limits)
    require_tree(automaton.draft(match, limits, True), search, text, matched, limits)


@settings(max_examples=50, deadline=None)
@given(texts, st.lists(st.integers(1, 7), max_size=20), orders)
def test_how_a_text_is_cut_into_pieces_does_not_matter(
    text: list[int], cuts: list[int], order: int
) -> None:
    whole, pieces = SuffixAutomaton(order, 64), SuffixAutomaton(order, 64)
    whole.extend(tokens_of(text))
    rest = tokens_of(text)
    for cut in cuts:
        pieces.extend(rest[:cut])
        rest = rest[cut:]
    pieces.extend(rest)
    assert whole.states == pieces.states
    assert whole.operations == pieces.operations
    assert whole.own_match() == pieces.own_match()


def hard_texts(length: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    fibonacci = [[0], [0, 1]]
    while len(fibonacci[-1]) < length:
        fibonacci.append(fibonacci[-1] + fibonacci[-2])
    return {
        "one token": np.zeros(length, dtype=np.int64),
        "two tokens": rng.integers(0, 2, length),
        "many tokens": rng.integers(0, 100_000, length),
        "a loop": np.tile(rng.integers(0, 50, 97), length)[:length],
        "halves": np.repeat([0, 1], length // 2),
        "fibonacci": tokens_of(fibonacci[-1][:length]),
        "blocks": np.concatenate([np.r_[np.zeros(k, np.int64), 1] for k in range(200)])[:length],
    }


@pytest.mark.parametrize("name", hard_texts(10))
def test_the_cost_of_a_token_does_not_grow(name: str) -> None:
    """Operations are counted: building is bounded by a constant, counting by the order."""
    order = 16
    automaton = SuffixAutomaton(order, 16_000)
    text = hard_texts(16_000)[name]
    automaton.extend(text)
    built, counted = automaton.operations
    assert built <= 6 * len(text)
    assert counted <= (2 * order + 1) * len(text)
    assert automaton.states <= 2 * len(text)
    assert automaton.nbytes <= 128 * len(text) + 64


def test_the_cost_would_be_seen_to_grow() -> None:
    """The bound on counting is one that the walk without its cap breaks."""
    automaton = SuffixAutomaton(1000, 2000)
    automaton.extend(np.zeros(2000, dtype=np.int64))
    assert automaton.operations[1] > (2 * 16 + 1) * 2000


def test_a_tree_does_not_depend_on_when_the_table_grew() -> None:
    """Most of what follows was seen once, so that the order of equals decides."""
    rng, sizes = np.random.default_rng(8), list[int]()
    limits = 40, 3, 9.0, 40.0, 0.001, 1
    for _ in range(20):
        text = np.append(rng.integers(0, 12, 699), 0)
        at_once, grown = SuffixAutomaton(8, 1000), SuffixAutomaton(8, 1000)
        at_once.reserve(1000)
        at_once.extend(text)
        for first in range(0, len(text), 7):
            grown.extend(text[first : first + 7])
        trees = []
        for automaton in (at_once, grown):
            out = np.empty(40, np.int64), np.empty(40, np.int64), np.empty(40)
            state, length = automaton.own_match()
            count, *_ = suffix_kernels.draft(automaton.arrays, state, length, 8, limits, True, out)
            trees.append([part[:count].tolist() for part in out])
        assert trees[0] == trees[1]
        sizes.append(len(trees[0][0]))
    assert sum(sizes) > 200


def test_memory_stays_bounded_and_the_oldest_is_forgotten() -> None:
    rng = np.random.default_rng(0)
    most = 2000
    pool = SuffixPool(8, most)
    sizes, held = [], []
    for number in range(400):
        length = int(rng.integers(0, 2500 if number % 50 == 0 else 120))
        text = rng.integers(0, 50, length)
        pool.insert(text)
        sizes.append(len(pool))
        held.append(pool.nbytes)
        last = text[-9:]
        if len(last) == 9:
            match = pool.automata[0].match(last[:-1])
            assert match[1] == 8
    assert max(sizes) <= most
    assert max(held) <= 128 * most + 2 * 64
    fresh = SuffixPool(8, most)
    fresh.insert(tokens_of(range(1000, 1008)))
    known = tokens_of(range(1000, 1008))
    for _ in range(2):
        assert max(automaton.match(known)[1] for automaton in fresh.automata) == 8
        fresh.insert(rng.integers(0, 50, 998))
    fresh.insert(rng.integers(0, 50, 998))
    assert max(automaton.match(known)[1] for automaton in fresh.automata) == 0


@settings(max_examples=50, deadline=None)
@given(texts, texts, orders)
def test_a_match_can_be_kept_from_token_to_token(
    known: list[int], text: list[int], order: int
) -> None:
    automaton = SuffixAutomaton(order, 64)
    automaton.extend(tokens_of(known))
    match = (suffix_kernels.ROOT, 0)
    for end in range(1, len(text) + 1):
        match = automaton.match(tokens_of(text[end - 1 : end]), match)
        assert match == automaton.match(tokens_of(text[:end]))


def test_the_loops_are_the_same_without_numba() -> None:
    """What is compiled is the Python function, which is all there is where numba is missing."""
    program = (
        "import sys; sys.modules['numba'] = None; import numpy as np; "
        "from outrider.drafters.suffix.automaton import SuffixAutomaton; "
        "a = SuffixAutomaton(8, 300); t = np.random.default_rng(1).integers(0, 3, 300); "
        "a.extend(t); c = [a.draft(a.own_match(), (9, 5, 2.0, 1.0, 0.01, 1), b) for b in (0, 1)]; "
        "print(a.states, a.operations, a.match(t[5:9]), *(x.tokens.tolist() for x in c))"
    )
    plain = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60
    )
    automaton = SuffixAutomaton(8, 300)
    text = np.random.default_rng(1).integers(0, 3, 300)
    automaton.extend(text)
    limits = (9, 5, 2.0, 1.0, 0.01, 1)
    drafts = [automaton.draft(automaton.own_match(), limits, b).tokens.tolist() for b in (0, 1)]
    shown = [automaton.states, automaton.operations, automaton.match(text[5:9]), *drafts]
    assert plain.stdout.strip() == " ".join(map(str, shown))
