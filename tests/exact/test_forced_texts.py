"""What a draft would have had kept of a known text, against the shipped engine, by enumeration."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from outrider import ModelDrafter, SamplingParams, SpeculativeDecoder
from outrider.bench.records import Prompt
from outrider.bench.texts import Text, written
from outrider.certify.enumeration import outcomes
from outrider.runtimes.tabular import TabularModel

from ..support.exactness import configured

pytestmark = pytest.mark.exact

V, DEPTH = 3, 3
PROMPT = (0, 1)


def table(seed: int) -> TabularModel:
    def distribution(path: tuple[int, ...]) -> Any:
        made = np.random.default_rng([seed, *path]).dirichlet(np.ones(V) * 0.7)
        return made / made.sum()

    return TabularModel(distribution, V)


def kept_by_engine(
    target: TabularModel, draft: TabularModel, method: str, tree: tuple[int, ...] | None = None
) -> np.ndarray[Any, Any]:
    """P(text, kept >= i) for each text of the draft's depth and i, by enumerating a round."""
    depth = len(tree or range(DEPTH))
    config = configured(method, depth, tree_shape=tree)
    decoder = SpeculativeDecoder(target, ModelDrafter(draft), config=config)
    params = SamplingParams(max_tokens=99)
    found = np.zeros((depth, *[V] * depth))
    (state,) = decoder.start(PROMPT, params)
    for step, row, mass in outcomes(decoder, [(state, 1.0)], 64):
        emitted, kept = step.emitted[row], step.record.accepted[row]
        rest = max(0, depth - len(emitted))
        for tail in product(range(V), repeat=rest):
            text = (*emitted, *tail)[:depth]
            chance = mass * follows(target, (*PROMPT, *emitted), tail)
            found[(slice(0, kept), *text)] += chance
    return found


def follows(model: TabularModel, path: tuple[int, ...], tail: tuple[int, ...]) -> float:
    chance = 1.0
    for token in tail:
        chance *= float(model.probabilities(path)[token])
        path = (*path, token)
    return chance


def recorded(target: TabularModel, draft: TabularModel, tokens: tuple[int, ...]) -> Text:
    text = Text(Prompt(PROMPT, "a"), 1.0)
    for place, token in enumerate(tokens):
        path = (*PROMPT, *tokens[:place])
        p, q = target.probabilities(path)[token], draft.probabilities(path)[token]
        text.ratios.append(float(q / p))
    return text


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("method", ["block", "token"])
def test_reach_is_the_probability_of_what_the_engine_keeps_given_the_text(
    method: str, seed: int
) -> None:
    target, draft = table(seed), table(seed + 100)
    engine = kept_by_engine(target, draft, method)
    for tokens in product(range(V), repeat=DEPTH):
        text = recorded(target, draft, tokens)
        reach = text.reach(0, DEPTH, blocks=method == "block")
        chance = follows(target, PROMPT, tokens)
        assert np.abs(engine[(slice(None), *tokens)] - chance * reach).max() < 1e-12


def test_that_notices_reach_of_the_other_method() -> None:
    target, draft = table(0), table(100)
    engine = kept_by_engine(target, draft, "block")
    texts = product(range(V), repeat=DEPTH)
    errors = [
        np.abs(
            engine[(slice(None), *tokens)]
            - follows(target, PROMPT, tokens)
            * recorded(target, draft, tokens).reach(0, DEPTH, blocks=False)
        ).max()
        for tokens in texts
    ]
    assert max(errors) > 1e-3


class Always:
    """Draws the same token, whatever its probability."""

    def __init__(self, token: int) -> None:
        self.token = token

    def draw(self, distributions: torch.Tensor, keys: Any) -> torch.Tensor:
        return torch.full((len(keys),), min(self.token, distributions.shape[1] - 1))


def among(
    target: TabularModel, draft: TabularModel, path: tuple[int, ...], token: int
) -> list[float]:
    """What is recorded of a token, with up to three children."""
    decoder = SpeculativeDecoder(target, ModelDrafter(draft), chance=Always(token))
    asked = [SamplingParams(max_tokens=1)]
    ((text,),) = written(decoder, [Prompt(path, "a")], asked, children=3)
    assert text.token_ids == [token]
    return text.among[0]


def kept_in_tree(
    target: TabularModel, draft: TabularModel, tree: tuple[int, ...], more: int = 0
) -> float:
    """The largest error of what is predicted to be kept of a tree, by `more` children too many."""
    engine, errors = kept_by_engine(target, draft, "recursive", tree), []
    for tokens in product(range(V), repeat=len(tree)):
        kept = follows(target, PROMPT, tokens)
        for place, children in enumerate(tree):
            found = among(target, draft, (*PROMPT, *tokens[:place]), tokens[place])
            kept *= found[children - 1 + more]
            errors.append(abs(engine[(place, *tokens)] - kept))
    return max(errors)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("tree", [(1, 2), (2, 1), (3, 1)], ids=str)
def test_children_are_kept_as_often_as_recorded(tree: tuple[int, ...], seed: int) -> None:
    assert kept_in_tree(table(seed), table(seed + 100), tree) < 1e-12


def test_that_notices_another_number_of_children() -> None:
    assert kept_in_tree(table(0), table(100), (2, 1), more=1) > 1e-3
