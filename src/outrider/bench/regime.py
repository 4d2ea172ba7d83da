"""One temperature measured once: all that the predictions about it rest on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
from numpy.typing import NDArray

from ..config import SamplingParams
from ..engine import SpeculativeDecoder
from ..errors import InvalidConfigError
from .measure import (
    Filler,
    RoundTime,
    Tokens,
    Watched,
    cycled,
    draft_ratios,
    looked_up_rounds,
    medians,
    watch,
)
from .predict import EXACT, Costs, Rounds, chain_rounds, expected_rounds, expected_seconds
from .records import Contender
from .search import LOOKUPS, PLAIN, WITH_MODEL, Models, Search, config_of

ON_CHAINS = {"traversal": "block", "recursive": "token"}
"""Methods that have another name on chains."""

Texts = list[tuple[Tokens, Tokens]]
"""Of a batch: prompts, each with what the target wrote."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a configuration will do.

    Attributes:
        contender: the configuration.
        temperature: of every request.
        tokens: of all texts.
        rounds: that sequences take part in, on average.
        seconds: that the texts take one after the other, batch by batch, without what the target
            needs to read prompts.
        exact: whether `rounds` follow from the target's texts; otherwise they are those of a short
            run of the configuration itself.
    """

    contender: Contender
    temperature: float
    tokens: int
    rounds: float
    seconds: float
    exact: bool

    @property
    def tokens_per_s(self) -> float:
        """Tokens emitted a second."""
        return self.tokens / self.seconds

    @property
    def tokens_per_round(self) -> float:
        """Tokens that a sequence emits in a round, rounds that draft nothing included."""
        return self.tokens / self.rounds


@dataclass(frozen=True, slots=True)
class Regime:
    """What was measured at one temperature.

    Attributes:
        temperature: of every request.
        batch: sequences decoded together.
        watched: what decoders did that represent kinds of configurations: of plain decoding, and
            of each drafter and method with depths of all sizes in turn, or with a tree.
        filler: likewise, for each method, of drafts that cost nothing.
        texts: what the target wrote, batch by batch.
        ratios: of each text, see `measure.draft_ratios`; None where the draft model's tokens are
            proposed outright, or there is none.
    """

    temperature: float
    batch: int
    watched: dict[Contender, Watched]
    filler: dict[str, Watched]
    texts: list[Texts]
    ratios: list[list[NDArray[np.float64]]] | None

    @property
    def rounds(self) -> list[RoundTime]:
        """Every round of chains in which no prompt was read."""
        chains = [seen for kind, seen in self.watched.items() if kind.tree_shape is None]
        seen = [*chains, *self.filler.values()]
        return [found for watched in seen for found in watched.usual]


def measure(
    models: Models,
    batches: Sequence[Sequence[Tokens]],
    search: Search,
    temperature: float,
    done: Callable[[], None] = lambda: None,
) -> Regime:
    """Measure all that predictions about a temperature need.

    Args:
        models: the pair.
        batches: the token ids of prompts, batch by batch.
        search: what is to be predicted.
        temperature: of every request.
        done: is called `steps` times.
    """
    params = search.sampling(temperature)
    kinds = _kinds(search)
    # Batches shrink as sequences end: rounds of one are measured as well.
    singles = [[prompt] for prompt in batches[0]] if search.batch > 1 else []
    plain: list[Watched] = []
    found: dict[Contender, Watched] = {}
    for group in _groups(models, search, kinds):
        racers = [(models.decoder(PLAIN), params)]
        racers += [(_decoder(models, kind), _scheduled(params, search, kind)) for kind in group]
        watched = watch(racers, [*batches, *singles], done)
        plain.append(watched[0])
        found |= dict(zip(group, watched[1:], strict=True))
    # Greedy texts are the same each time; drawn ones are more evidence.
    sources = plain[:1] if params.greedy else plain
    texts = [
        list(zip(map(tuple, batch), source.token_ids[index], strict=True))
        for source in sources
        for index, batch in enumerate(batches)
    ]
    ratios = None
    if models.drafter is not None and "draft_model" in search.drafters:
        ratios = _ratios(models, texts, params)
    done()
    everything = Watched(
        tuple(batch for source in plain for batch in source.rounds),
        tuple(batch for source in plain for batch in source.token_ids),
    )
    fillers = {str(kind.verification): seen for kind, seen in found.items() if _fills(kind)}
    real = {kind: seen for kind, seen in found.items() if not _fills(kind)}
    return Regime(temperature, search.batch, {PLAIN: everything} | real, fillers, texts, ratios)


def steps(models: Models, batches: Sequence[Sequence[Tokens]], search: Search) -> int:
    """How often `measure` calls `done`."""
    singles = len(batches[0]) if search.batch > 1 else 0
    return len(_groups(models, search, _kinds(search))) * (len(batches) + singles) + 1


def predict(models: Models, regime: Regime, contenders: Sequence[Contender]) -> list[Prediction]:
    """What each configuration will do; those of which no round was seen are left out."""
    looked_up: dict[tuple[str, int], list[list[Rounds]]] = {}
    predictions = []
    for contender in contenders:
        name, depth = contender.drafter, contender.num_speculative_tokens or 0
        method = _method(contender)
        rows: list[list[Rounds]] | None = None
        if contender.plain:
            rows = [
                [chain_rounds(np.zeros(len(text) - 1), 0, "block") for _, text in batch]
                for batch in regime.texts
            ]
        elif (
            name == "draft_model"
            and contender.tree_shape is None
            and method in EXACT
            and regime.ratios is not None
        ):
            rows = [
                [chain_rounds(ratios, depth, method) for ratios in batch] for batch in regime.ratios
            ]
        if rows is None and _proposes_outright(contender, regime):
            if (name, depth) not in looked_up:
                drafter = models.drafter_of(name)
                assert drafter is not None
                looked_up[name, depth] = looked_up_rounds(
                    drafter, models.target.vocab_size, regime.texts, depth
                )
            rows = looked_up[name, depth]
        found = (
            _from_run(regime, contender) if rows is None else _from_texts(regime, contender, rows)
        )
        if found is not None:
            predictions.append(found)
    return predictions


def _from_texts(regime: Regime, contender: Contender, rows: list[list[Rounds]]) -> Prediction:
    costs = _costs(regime, contender)
    seconds = 0.0
    for batch in rows:
        first = max(int(row[0].argmax()) - 1 for row in batch)
        seconds += expected_seconds(batch, costs) + _first(regime, contender, first)
    tokens = sum(len(text) for batch in regime.texts for _, text in batch)
    rounds = sum(expected_rounds(row) for batch in rows for row in batch)
    return Prediction(contender, regime.temperature, tokens, rounds, seconds, True)


def _from_run(regime: Regime, contender: Contender) -> Prediction | None:
    """By the rounds of its depth, or all of a tree, in the run that represents it."""
    depth = contender.num_speculative_tokens
    rounds = [
        seen
        for seen in regime.watched[_kind(contender)].usual
        if contender.tree_shape is not None or seen.planned == depth
    ]
    if not rounds:
        return None
    seconds = 0.0
    sizes = {(seen.rows, seen.width, seen.looked_up) for seen in rounds}
    for size in sizes:
        alike = [s.total_s for s in rounds if (s.rows, s.width, s.looked_up) == size]
        seconds += median(alike) * len(alike)
    emitted = sum(seen.emitted for seen in rounds)
    tokens = sum(len(text) for batch in regime.texts for _, text in batch)
    width = max(seen.width for seen in rounds)
    total = seconds * tokens / emitted
    total += len(regime.texts) * _first(regime, contender, width)
    taking_part = sum(seen.rows for seen in rounds)
    return Prediction(
        contender, regime.temperature, tokens, taking_part * tokens / emitted, total, False
    )


def _costs(regime: Regime, contender: Contender) -> Costs:
    """Seconds of the rounds of a configuration whose rounds follow from texts."""
    sizes = {1, regime.batch}
    plain = medians(regime.watched[PLAIN].usual, lambda seen: seen.total_s, sizes)
    if contender.plain:
        return Costs(plain)
    own = regime.watched[_kind(contender)]
    if contender.drafter not in LOOKUPS:
        drafted = medians(own.usual, lambda seen: seen.total_s, sizes)
        return Costs(drafted | plain)
    filled = medians(
        regime.filler[str(contender.verification)].usual,
        lambda seen: seen.total_s - seen.draft_s,
        sizes,
    )
    # Looking up takes about as long whatever it finds.
    looking = median(seen.draft_s for seen in own.usual if seen.planned)
    return Costs(filled | plain).shifted(looking)


def _first(regime: Regime, contender: Contender, width: int) -> float:
    """Seconds by which a batch's first round differs: the target's forward does not count there,
    and a draft model reads the prompts."""
    forwards = Costs(medians(regime.rounds, lambda seen: seen.target_s, {1, regime.batch}))
    reading = 0.0
    if contender.drafter in WITH_MODEL:
        # Of decoders that share a draft model the first reads, and the others copy.
        reading = max(
            _reading(watched, regime.batch)
            for kind, watched in regime.watched.items()
            if kind.drafter in WITH_MODEL
        )
    return reading - forwards(regime.batch, width)


def _reading(watched: Watched, rows: int) -> float:
    """How much longer than usual drafting takes in a batch's first round."""
    firsts = [seen for batch in watched.rounds for seen in batch if seen.first]
    firsts = [seen for seen in firsts if seen.rows == rows]
    if not firsts:
        return 0.0
    usual = [s.draft_s for s in watched.usual if s.rows == rows and s.planned == firsts[0].planned]
    first = median(seen.draft_s for seen in firsts)
    return max(0.0, first - (median(usual) if usual else 0.0))


def _ratios(
    models: Models, texts: list[Texts], params: SamplingParams
) -> list[list[NDArray[np.float64]]] | None:
    assert models.drafter is not None
    found = []
    for batch in texts:
        row = []
        for prompt, text in batch:
            ratios = draft_ratios(models.target, models.drafter, prompt, text, params)
            if ratios is None:
                return None
            row.append(ratios)
        found.append(row)
    return found


def _method(contender: Contender) -> str:
    name = str(contender.verification)
    return ON_CHAINS.get(name, name)


def _proposes_outright(contender: Contender, regime: Regime) -> bool:
    """Whether what is drafted follows from the text before it, and nothing is drawn."""
    if contender.tree_shape is not None or contender.plain:
        return False
    if contender.drafter in LOOKUPS:
        return True
    return contender.drafter == "draft_model" and regime.ratios is None


def _kind(contender: Contender) -> Contender:
    """What represents a configuration in a measurement: it drafts all depths in turn."""
    if contender.plain or contender.tree_shape is not None:
        return contender
    return replace(contender, num_speculative_tokens=None)


def _fills(kind: Contender) -> bool:
    return kind.system == "filler"


def _kinds(search: Search) -> list[Contender]:
    kinds = dict.fromkeys(map(_kind, search.contenders()[1:]))
    fillers = [
        Contender("filler", "none", method)
        for method in search.verifications
        if any(name in LOOKUPS for name in search.drafters)
    ]
    return [*kinds, *fillers]


def _decoder(models: Models, kind: Contender) -> SpeculativeDecoder:
    if kind.tree_shape is not None:
        return models.decoder(kind)
    drafter = Filler() if _fills(kind) else models.drafter_of(kind.drafter)
    config = config_of(replace(kind, num_speculative_tokens=1))
    return SpeculativeDecoder(models.target, drafter, config=config)


def _scheduled(params: SamplingParams, search: Search, kind: Contender) -> SamplingParams:
    if kind.tree_shape is not None:
        return params
    return replace(params, depths=cycled(search.depths, params.max_tokens))


def _groups(models: Models, search: Search, kinds: list[Contender]) -> list[list[Contender]]:
    """Kinds that are measured together: as many as the models have room for, beside plain.

    Raises:
        InvalidConfigError: there is no room for two batches.
    """
    decoders = [models.decoder(PLAIN)]
    if models.drafter is not None:
        decoders.append(
            SpeculativeDecoder(
                models.target,
                models.drafter,
                config=config_of(Contender("outrider", "draft_model", "block", 1)),
            )
        )
    room = min((d.max_sequences for d in decoders if d.max_sequences is not None), default=None)
    together = len(kinds) if room is None else room // search.batch - 1
    if together < 1:
        raise InvalidConfigError(
            "batch", search.batch, f"at most {(room or 0) // 2}, half the models' max_sequences"
        )
    return [kinds[i : i + together] for i in range(0, len(kinds), together)]
