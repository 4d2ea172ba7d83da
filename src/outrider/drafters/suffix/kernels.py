"""The suffix automaton's inner loops, compiled with numba where it can be installed.

On a Python too new for numba the same functions run as they stand, some thirty times slower. All
state is in three arrays, so that nothing but arrays crosses into compiled code:

- `nodes` int32 [n, 8], one row a state, half a cache line: see the column names below. Row 0 means
  none, row 1 is the root.
- `table` int32 [2^k, 4], open addressing with linear probing: rows (state, token, target, next) of
  the transitions that a state has beside its first; `next` chains those of one state, slot + 1.
- `meta` int64 [8], the counters named below.

Every state but the root is entered by one token only, its SYMBOL, so that a state stands for the
token that leads to it. A token below 0 ends a text: no match reaches across it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .jit import compiled

Nodes = NDArray[np.int32]
Table = NDArray[np.int32]
Meta = NDArray[np.int64]
Arrays = tuple[Nodes, Table, Meta]
Draft = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]
"""Tokens, the node that each follows, and probabilities, [n] each; nodes are counted from 1."""

LINK, LENGTH, SYMBOL, FIRST, CHAIN, COUNT, END, BEST = range(8)
"""Columns of `nodes`: the suffix link; the longest string's length; the token that leads here; the
target of the first transition, and the slot + 1 of the latest other; how often its strings occur;
where the last of these occurrences ends; the target of the commonest transition."""

SIZE, LAST, CONTEXT, CONTEXT_LENGTH, POSITION, EDGES, STEPS, VISITS = range(8)
"""Entries of `meta`: rows of `nodes` in use; the state of the whole text; the state of its last
`order + 1` tokens, and how many those are; tokens read; slots of `table` in use; how many times the
loops went round that build the automaton, and those that count."""

ROOT = 1
_SIBLINGS = 256
"""Transitions of one state that are looked at when a tree branches; the commonest always is."""


@compiled
def _slot(table: Table, state: int, token: int) -> int:
    """Where the transition of `state` by `token` stands in the table, or belongs."""
    mask = len(table) - 1
    mixed = int(state) * 0x9E3779B1 + (int(token) + 1) * 0x85EBCA77
    mixed ^= mixed >> 32
    slot = (mixed ^ (mixed >> 15)) & mask
    while table[slot, 2] != 0 and (table[slot, 0] != state or table[slot, 1] != token):
        slot = (slot + 1) & mask
    return slot


@compiled
def target(nodes: Nodes, table: Table, state: int, token: int) -> int:
    """The state that `token` leads to, or 0."""
    first = nodes[state, FIRST]
    if first != 0 and nodes[first, SYMBOL] == token:
        return int(first)
    if nodes[state, CHAIN] == 0:
        return 0
    return int(table[_slot(table, state, token), 2])


@compiled
def _connect(nodes: Nodes, table: Table, meta: Meta, state: int, token: int, reached: int) -> None:
    """Add a transition that does not exist yet."""
    if nodes[state, FIRST] == 0:
        nodes[state, FIRST] = reached
        return
    slot = _slot(table, state, token)
    table[slot, 0] = state
    table[slot, 1] = token
    table[slot, 2] = reached
    table[slot, 3] = nodes[state, CHAIN]
    nodes[state, CHAIN] = slot + 1
    meta[EDGES] += 1


@compiled
def rehash(nodes: Nodes, old: Table, table: Table) -> None:
    """Move all transitions to a larger, empty table; those of a state stay in their order.

    Of transitions that are worth as much a tree takes the first, which is not to depend on when the
    table grew.
    """
    heads = np.zeros(len(old), dtype=np.bool_)
    for index in range(len(old)):
        if old[index, 2] != 0:
            heads[nodes[old[index, 0], CHAIN] - 1] = True
    for head in np.flatnonzero(heads):
        state = old[head, 0]
        index, before = int(head), -1
        while index >= 0:
            slot = _slot(table, state, old[index, 1])
            table[slot] = old[index]
            table[slot, 3] = 0
            if before < 0:
                nodes[state, CHAIN] = slot + 1
            else:
                table[before, 3] = slot + 1
            before, index = slot, int(old[index, 3]) - 1


@compiled
def _split(nodes: Nodes, table: Table, meta: Meta, state: int, token: int, whole: int) -> int:
    """Part the strings of `whole` that are no longer than those of `state` and one token more.

    Returns:
        The new state, which holds them.
    """
    part = int(meta[SIZE])
    meta[SIZE] += 1
    nodes[part] = nodes[whole]
    nodes[part, LENGTH] = nodes[state, LENGTH] + 1
    nodes[part, CHAIN] = 0
    slot = nodes[whole, CHAIN]
    while slot != 0:
        _connect(nodes, table, meta, part, table[slot - 1, 1], table[slot - 1, 2])
        slot = table[slot - 1, 3]
        meta[STEPS] += 1
    nodes[whole, LINK] = part
    while state != 0 and target(nodes, table, state, token) == whole:
        if nodes[state, FIRST] == whole:
            nodes[state, FIRST] = part
        else:
            table[_slot(table, state, token), 2] = part
        state = int(nodes[state, LINK])
        meta[STEPS] += 1
    return part


@compiled
def _append(nodes: Nodes, table: Table, meta: Meta, token: int) -> None:
    """One token more: the online construction of Blumer et al. 1985."""
    last = int(meta[LAST])
    new = int(meta[SIZE])
    meta[SIZE] += 1
    nodes[new, LENGTH] = nodes[last, LENGTH] + 1
    nodes[new, SYMBOL] = token
    state = last
    reached = 0
    while state != 0:
        reached = target(nodes, table, state, token)
        if reached != 0:
            break
        _connect(nodes, table, meta, state, token, new)
        state = int(nodes[state, LINK])
        meta[STEPS] += 1
    if state == 0:
        nodes[new, LINK] = ROOT
    elif nodes[reached, LENGTH] == nodes[state, LENGTH] + 1:
        nodes[new, LINK] = reached
    else:
        nodes[new, LINK] = _split(nodes, table, meta, state, token, reached)
    meta[LAST] = new
    meta[POSITION] += 1


@compiled
def _shortened(nodes: Nodes, state: int, length: int) -> int:
    """The state of the last `length` tokens of a string of `state`."""
    while nodes[nodes[state, LINK], LENGTH] >= length:
        state = int(nodes[state, LINK])
    return state


@compiled
def _count(nodes: Nodes, table: Table, meta: Meta, token: int, order: int) -> None:
    """Count the strings of at most `order + 1` tokens that end in the token just appended."""
    before = min(int(meta[CONTEXT_LENGTH]), order)
    context = _shortened(nodes, int(meta[CONTEXT]), before)
    grown = target(nodes, table, context, token)
    meta[CONTEXT] = grown
    meta[CONTEXT_LENGTH] = before + 1
    state = grown
    while state != ROOT:
        nodes[state, COUNT] += 1
        nodes[state, END] = meta[POSITION]
        state = int(nodes[state, LINK])
        meta[VISITS] += 1
    # Each context of the token now leads to one of these states: is it its commonest?
    state = grown
    while context != ROOT:
        length = min(int(nodes[context, LENGTH]), before)
        state = _shortened(nodes, state, length + 1)
        best = nodes[context, BEST]
        if best == 0 or nodes[state, COUNT] >= nodes[best, COUNT]:
            nodes[context, BEST] = state
        context = int(nodes[context, LINK])
        meta[VISITS] += 1


@compiled
def extend(nodes: Nodes, table: Table, meta: Meta, tokens: NDArray[np.int64], order: int) -> None:
    """Append tokens; there must be room for two states and two slots for each."""
    for index in range(len(tokens)):
        token = tokens[index]
        _append(nodes, table, meta, token)
        if token < 0:
            meta[CONTEXT] = ROOT
            meta[CONTEXT_LENGTH] = 0
        else:
            _count(nodes, table, meta, token, order)


@compiled
def own_match(nodes: Nodes, meta: Meta, order: int) -> tuple[int, int]:
    """The longest suffix, of at most `order` tokens, that has been followed: state and length."""
    length = min(int(meta[CONTEXT_LENGTH]), order)
    state = _shortened(nodes, int(meta[CONTEXT]), length)
    while state != ROOT and nodes[state, COUNT] == 1 and nodes[state, END] == meta[POSITION]:
        state = int(nodes[state, LINK])
        length = int(nodes[state, LENGTH])
    return state, length


@compiled
def follow(
    nodes: Nodes, table: Table, state: int, length: int, tokens: NDArray[np.int64], order: int
) -> tuple[int, int]:
    """The longest suffix of a string and `tokens`, of at most `order` tokens, that occurs here.

    `state` and `length` are those of the string's own.
    """
    state = _shortened(nodes, state, length)
    for index in range(len(tokens)):
        reached = target(nodes, table, state, tokens[index])
        while reached == 0 and state != ROOT:
            state = int(nodes[state, LINK])
            length = int(nodes[state, LENGTH])
            reached = target(nodes, table, state, tokens[index])
        if reached != 0:
            length = min(length + 1, order)
            state = _shortened(nodes, reached, length)
    return state, length


@compiled
def _followed(nodes: Nodes, meta: Meta, state: int) -> int:
    """How many occurrences of a state's strings have something after them."""
    open_end = 1 if nodes[state, END] == meta[POSITION] else 0
    return int(nodes[state, COUNT]) - open_end


@compiled
def _context(nodes: Nodes, meta: Meta, state: int, length: int, order: int) -> tuple[int, int]:
    """The longest suffix of a string, of at most `order` tokens, that has been followed."""
    length = min(length, order)
    state = _shortened(nodes, state, length)
    while state != ROOT and _followed(nodes, meta, state) == 0:
        state = int(nodes[state, LINK])
        length = int(nodes[state, LENGTH])
    return state, length


@compiled
def _grow_chain(
    automaton: Arrays, state: int, length: int, order: int, most: int, least: float, out: Draft
) -> tuple[int, float]:
    """Follow the commonest transition, up to `most` times, while the product stays at `least`."""
    nodes, _, meta = automaton
    tokens, parents, probabilities = out
    probability = 1.0
    score = 0.0
    for place in range(most):
        state, length = _context(nodes, meta, state, length, order)
        best = int(nodes[state, BEST])
        if state == ROOT or best == 0:
            return place, score
        probability *= nodes[best, COUNT] / _followed(nodes, meta, state)
        if probability < least:
            return place, score
        tokens[place] = nodes[best, SYMBOL]
        parents[place] = place
        probabilities[place] = probability
        score += probability
        state = best
        length += 1
    return most, score


@compiled
def _offer(
    automaton: Arrays,
    state: int,
    length: int,
    depth: int,
    parent: int,
    weight: float,
    least: float,
    offers: NDArray[np.int64],
    weights: NDArray[np.float64],
    count: int,
) -> int:
    """Offer the transitions of a state that are worth at least `least`; how many offers now.

    `offers` rows are (state, length, depth, parent); the commonest transition comes first. Once all
    that have not been looked at are worth less together, none of them is looked at.
    """
    nodes, table, meta = automaton
    best = int(nodes[state, BEST])
    if state == ROOT or best == 0:
        return count
    left = _followed(nodes, meta, state)
    share = weight / left
    reached = best
    slot = int(nodes[state, CHAIN])
    seen = -2
    while seen < _SIBLINGS and share * left >= least:
        worth = share * nodes[reached, COUNT]
        if seen == -2 or reached != best:
            left -= int(nodes[reached, COUNT])
            if nodes[reached, SYMBOL] >= 0 and worth >= least and count < len(weights):
                offers[count, 0] = reached
                offers[count, 1] = length + 1
                offers[count, 2] = depth + 1
                offers[count, 3] = parent
                weights[count] = worth
                count += 1
            elif seen == -2:
                return count
        if seen == -2:
            reached = int(nodes[state, FIRST])
        elif slot == 0:
            break
        else:
            reached = int(table[slot - 1, 2])
            slot = int(table[slot - 1, 3])
        seen += 1
    return count


@compiled
def _grow_tree(
    automaton: Arrays,
    state: int,
    length: int,
    order: int,
    most: int,
    deepest: int,
    least: float,
    out: Draft,
) -> tuple[int, float]:
    """Take the likeliest transition that is on offer, up to `most` times."""
    nodes, _, meta = automaton
    tokens, parents, probabilities = out
    offers = np.empty((16 * most + 64, 4), dtype=np.int64)
    weights = np.empty(len(offers), dtype=np.float64)
    state, length = _context(nodes, meta, state, length, order)
    count = _offer(automaton, state, length, 0, 0, 1.0, least, offers, weights, 0)
    score = 0.0
    for place in range(most):
        if count == 0:
            return place, score
        top = int(np.argmax(weights[:count]))
        taken = int(offers[top, 0])
        depth = int(offers[top, 2])
        weight = float(weights[top])
        tokens[place] = nodes[taken, SYMBOL]
        parents[place] = offers[top, 3]
        probabilities[place] = weight
        score += weight
        state, length = _context(nodes, meta, taken, int(offers[top, 1]), order)
        # The others keep their order, so that of equals the first offered is taken.
        for index in range(top, count - 1):
            offers[index] = offers[index + 1]
            weights[index] = weights[index + 1]
        count -= 1
        if depth < deepest:
            count = _offer(
                automaton, state, length, depth, place + 1, weight, least, offers, weights, count
            )
    return most, score


@compiled
def _expected(
    parents: NDArray[np.int64], probabilities: NDArray[np.float64], count: int, matched: int
) -> float:
    """The score, with a match of m tokens trusted to last n more with probability m / (m + n).

    Frequencies alone are too sure of themselves: most contexts were seen once.
    """
    depths = np.zeros(count + 1, dtype=np.int64)
    expected = 0.0
    for place in range(count):
        depths[place + 1] = depths[parents[place]] + 1
        expected += probabilities[place] * matched / (matched + depths[place + 1])
    return expected


@compiled
def draft(
    automaton: Arrays,
    state: int,
    length: int,
    order: int,
    limits: tuple[int, int, float, float, float, int],
    branches: bool,
    out: Draft,
) -> tuple[int, int, float, float]:
    """The draft with the best score over all suffixes of a match (SuffixDecoding).

    Args:
        automaton: its arrays.
        state, length: the longest match.
        order: the longest context.
        limits: the most tokens; the most in a row; the factor and offset that bound the number of
            tokens by `factor * match length + offset`; the least probability of a token; the
            shortest match.
        branches: whether a tree is wanted.
        out: the draft is written to the first entries of its arrays.

    Returns:
        How many tokens, the length of the match they follow, the score, and how many of the tokens
        are estimated to be kept.
    """
    budget, deepest, factor, offset, least, shortest = limits
    nodes = automaton[0]
    tokens, parents, probabilities = out
    trial = np.empty_like(tokens), np.empty_like(parents), np.empty_like(probabilities)
    count, matched, score = 0, 0, 0.0
    while state != ROOT and length >= shortest:
        most = int(min(float(budget), factor * length + offset))
        if most <= score:
            break  # No shorter match can do better: a token is worth at most one.
        if branches:
            tried, worth = _grow_tree(automaton, state, length, order, most, deepest, least, trial)
        else:
            tried, worth = _grow_chain(
                automaton, state, length, order, min(most, deepest), least, trial
            )
        if worth > score:
            count, matched, score = tried, length, worth
            tokens[:tried] = trial[0][:tried]
            parents[:tried] = trial[1][:tried]
            probabilities[:tried] = trial[2][:tried]
        state = int(nodes[state, LINK])
        length = int(nodes[state, LENGTH])
    return count, matched, score, _expected(parents, probabilities, count, matched)
