"""Outrider's own contenders, made ready to race."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from ..config.params import SamplingParams
from ..drafters.early_exit import EarlyExitDrafter
from ..drafters.model import ModelDrafter
from ..drafters.vocabulary.drafter import VocabularyDrafter
from ..engine.decoder import SpeculativeDecoder
from ..engine.loading import Pair
from ..errors import InvalidConfigError
from ..runtimes.transformers.model import TransformersModel
from ..types.protocols import Drafter
from .contending import LOOKUPS, WITH_MODEL, config_of, drafter_of
from .race import Lane, Racer
from .records import Contender


class Entrant(Protocol):
    """A contender that can be sent through batches of prompts."""

    @property
    def contender(self) -> Contender:
        """Who it is."""
        ...

    @property
    def lossy(self) -> bool:
        """Whether its output may differ from the target's distribution."""
        ...

    def renew(self) -> None:
        """Forget what was learnt from earlier prompts."""
        ...

    def lane(
        self, batch: Sequence[Sequence[int]], params: Sequence[SamplingParams], seed: int
    ) -> Racer:
        """At the start of a batch; `seed` is of its random numbers, if it wants one."""
        ...


class OutriderEntrant:
    """A decoder with slots and a drafter of its own.

    Its models' weights are those of the other contenders, its caches are not: none finds a prompt
    that another has computed. (Only a draft of another vocabulary is shared.)

    Args:
        contender: what it is.
        target: with slots of its own.
        model: drafts, if the contender has one drafting.

    Raises:
        InvalidConfigError: the contender's settings contradict each other.
    """

    def __init__(
        self,
        contender: Contender,
        target: TransformersModel,
        model: ModelDrafter | VocabularyDrafter | None = None,
    ) -> None:
        self._contender = contender
        self._config = config_of(contender)
        self._target = target
        self._model = model
        self.decoder = SpeculativeDecoder(target, self._drafter(), config=self._config)

    @staticmethod
    def of(contender: Contender, pair: Pair, max_sequences: int) -> OutriderEntrant:
        """A contender over a pair, with room for this many sequences.

        Raises:
            InvalidConfigError: its settings contradict each other, or there is no draft model.
        """
        target = TransformersModel(pair.target.hf_model, max_sequences=max_sequences)
        model: ModelDrafter | VocabularyDrafter | None = None
        if contender.drafter == "early_exit":
            model = _first_layers(target, contender.exit_layers)
        elif contender.drafter in WITH_MODEL:
            model = _drafter_of_its_own(pair, max_sequences)
        return OutriderEntrant(contender, target, model)

    @property
    def contender(self) -> Contender:
        """Who it is."""
        return self._contender

    @property
    def lossy(self) -> bool:
        """Whether its output may differ from the target's distribution."""
        return self._config.lossy and not self._contender.plain

    @property
    def coupled(self) -> bool:
        """Whether a seed's text does not depend on drafts."""
        return self._config.verification == "coupled"

    def renew(self) -> None:
        """Forget what was learnt from earlier prompts; costs are measured anew."""
        self.decoder = SpeculativeDecoder(self._target, self._drafter(), config=self._config)

    def lane(
        self, batch: Sequence[Sequence[int]], params: Sequence[SamplingParams], seed: int
    ) -> Racer:
        """At the start of a batch. Coupled decoding alone is seeded: it may still be adaptive."""
        if self.coupled:
            params = [replace(asked, seed=seed) for asked in params]
        return Lane(self.decoder, batch, params)

    def undrafted(self) -> OutriderEntrant:
        """Its twin that decodes plainly, in the same slots."""
        verification = self._contender.verification
        return OutriderEntrant(Contender("outrider", "none", verification, 0), self._target)

    def _drafter(self) -> Drafter | None:
        return drafter_of(self._contender.drafter, self._model)


def _first_layers(target: TransformersModel, layers: int | None) -> EarlyExitDrafter:
    if layers is None:
        raise InvalidConfigError("exit_layers", None, "how many of the target's first layers draft")
    try:
        return EarlyExitDrafter(target, layers)
    except InvalidConfigError as error:
        raise InvalidConfigError("exit_layers", layers, error.expected) from None


def _drafter_of_its_own(pair: Pair, max_sequences: int) -> ModelDrafter | VocabularyDrafter:
    drafter = pair.model_drafter
    if drafter is None:
        raise InvalidConfigError(
            "drafters", "draft_model", f"{' or '.join(LOOKUPS)} where there is no draft"
        )
    if isinstance(drafter, VocabularyDrafter):
        return drafter
    assert isinstance(drafter.model, TransformersModel)
    model = TransformersModel(drafter.model.hf_model, max_sequences=max_sequences)
    return ModelDrafter(model, drafter.vocab_size)
