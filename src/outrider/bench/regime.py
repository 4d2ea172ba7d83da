"""One temperature measured once: all that the predictions about it rest on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..config.params import SamplingParams
from ..engine.decoder import SpeculativeDecoder
from .contending import PLAIN, WITH_MODEL, config_of, drafter_of
from .measure import (
    Filler,
    RoundTime,
    Tokens,
    Watched,
    at_one_pace,
    cycled,
    reading_s,
    usual_times,
    watch,
)
from .progress import Report, Steps
from .records import Contender
from .replay import Ratios, Texts, draft_ratios
from .search import Models, Search

_WIDTHS = 16
"""Of how many sizes drafts are measured that cost nothing, or more if more are asked for."""


@dataclass(frozen=True, slots=True)
class Regime:
    """What was measured at one temperature.

    Attributes:
        temperature: of every request.
        batch: sequences decoded together.
        batches: how many of them each decoder was watched with, before it was given single
            sequences, whose rounds are there for their costs alone.
        watched: what decoders did that represent kinds of configurations: of plain decoding, and
            of each drafter and method with depths of all sizes in turn, or with a tree.
        filler: likewise, for each method, of drafts that cost nothing.
        reading_s: seconds in which the draft model reads the prompts of each batch; none if it is
            not asked.
        texts: what the target wrote, batch by batch.
        ratios: of each text, see `replay.draft_ratios`; None where the draft model's tokens are
            proposed outright, or there is none.
    """

    temperature: float
    batch: int
    batches: int
    watched: dict[Contender, Watched]
    filler: dict[str, Watched]
    reading_s: tuple[float, ...]
    texts: Sequence[Texts]
    ratios: list[list[Ratios]] | None

    @property
    def rounds(self) -> list[RoundTime]:
        """Every round of chains in which no prompt was read."""
        chains = [seen for kind, seen in self.watched.items() if kind.tree_shape is None]
        seen = [*chains, *self.filler.values()]
        return [found for watched in seen for found in watched.usual]

    @property
    def tokens(self) -> int:
        """Of all texts."""
        return sum(len(text) for batch in self.texts for _, text in batch)


def measure(
    models: Models,
    batches: Sequence[Sequence[Tokens]],
    search: Search,
    temperature: float,
    report: Report,
) -> Regime:
    """Measure all that predictions about a temperature need.

    Args:
        models: the pair.
        batches: the token ids of prompts, batch by batch.
        search: what is to be predicted.
        temperature: of every request.
        report: is told of the progress.
    """
    params = search.sampling(temperature)
    kinds = _kinds(search)
    # Batches shrink as sequences end: rounds of one are measured as well.
    singles = [[prompt] for prompt in batches[0]] if search.batch > 1 else []
    groups = models.groups(kinds, search.batch)
    steps = Steps(
        report,
        len(groups) * (len(batches) + len(singles)),
        f"measuring rounds at temperature {temperature:g}",
    )
    reading = []
    drafting = any(kind.drafter in WITH_MODEL for kind in kinds)
    if drafting and models.drafter is not None:
        # A model's first forward takes longer, whatever it reads.
        pair = models.target, models.drafter
        reading_s(*pair, [batches[0][0][-1:]], params, keep=False)
        reading = [reading_s(*pair, batch, params, keep=False) for batch in batches]
    plain: list[Watched] = []
    found: dict[Contender, Watched] = {}
    usual: dict[int, float] = {}
    for group in groups:
        racers = [(models.decoder(PLAIN), params)]
        racers += [(_decoder(models, kind), _scheduled(params, search, kind)) for kind in group]
        watched = watch(racers, [*batches, *singles], steps.done)
        if not usual:
            sizes = usual_times(watched[0].usual, lambda seen: seen.total_s, {1, search.batch})
            usual = {rows: seconds for (rows, _), seconds in sizes.items()}
        watched = at_one_pace(watched, usual)
        plain.append(watched[0])
        found |= dict(zip(group, watched[1:], strict=True))
    # Greedy texts are the same each time; drawn ones are more evidence.
    sources = plain[:1] if params.greedy else plain
    texts = [
        list(zip(map(tuple, batch), source.token_ids[index], strict=True))
        for source in sources
        for index, batch in enumerate(batches)
    ]
    ratios = _ratios(models, texts, params, report) if drafting else None
    everything = Watched(
        tuple(batch for source in plain for batch in source.rounds),
        tuple(batch for source in plain for batch in source.token_ids),
    )
    fillers = {str(kind.verification): seen for kind, seen in found.items() if _fills(kind)}
    real = {kind: seen for kind, seen in found.items() if not _fills(kind)}
    return Regime(
        temperature,
        search.batch,
        len(batches),
        {PLAIN: everything} | real,
        fillers,
        tuple(reading),
        texts,
        ratios,
    )


def _ratios(
    models: Models, texts: Sequence[Texts], params: SamplingParams, report: Report
) -> list[list[Ratios]] | None:
    assert models.drafter is not None
    at = f"at temperature {params.temperature:g}"
    steps = Steps(report, sum(map(len, texts)), f"asking the draft about texts {at}")
    found = []
    for batch in texts:
        row = []
        for prompt, text in batch:
            ratios = draft_ratios(models.target, models.drafter, prompt, text, params)
            if ratios is None:
                return None
            row.append(ratios)
            steps.done()
        found.append(row)
    return found


def kind_of(contender: Contender) -> Contender:
    """What represents a configuration in a measurement: it drafts all depths in turn."""
    if contender.plain or contender.tree_shape is not None:
        return contender
    return replace(contender, num_speculative_tokens=None)


def _fills(kind: Contender) -> bool:
    return kind.system == "filler"


def _kinds(search: Search) -> list[Contender]:
    kinds = dict.fromkeys(map(kind_of, search.contenders()[1:]))
    fillers = [
        Contender("filler", "none", method)
        for method in search.verifications
        if any(name != "draft_model" for name in search.drafters)
    ]
    return [*kinds, *fillers]


def _decoder(models: Models, kind: Contender) -> SpeculativeDecoder:
    if kind.tree_shape is not None:
        return models.decoder(kind)
    drafter = Filler() if _fills(kind) else drafter_of(kind.drafter, models.drafter)
    config = config_of(replace(kind, num_speculative_tokens=1))
    return SpeculativeDecoder(models.target, drafter, config=config)


def _scheduled(params: SamplingParams, search: Search, kind: Contender) -> SamplingParams:
    if kind.tree_shape is not None:
        return params
    # What is looked up may be of any width; times in between are no straight line.
    widths = range(1, max(search.depths) + 1, -(-max(search.depths) // _WIDTHS))
    depths = sorted({*search.depths, *widths}) if _fills(kind) else search.depths
    return replace(params, depths=cycled(depths, params.max_tokens))
