"""Outrider's own contenders, made ready to race."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from ..config import SamplingParams, SpeculativeConfig
from ..drafters.hybrid import HybridDrafter
from ..drafters.model import ModelDrafter
from ..drafters.ngram import NgramDrafter
from ..drafters.suffix import SuffixDrafter
from ..drafters.vocabulary import VocabularyDrafter
from ..engine import SpeculativeDecoder
from ..errors import InvalidConfigError
from ..loading import Pair
from ..models.transformers import TransformersModel
from ..protocols import DraftModel
from .race import Lane, Racer
from .records import Contender

DRAFTERS = ("model", "hybrid", "suffix", "ngram")
"""What may draft: the draft model, the model and suffix lookup, suffix lookup, prompt lookup."""

PLAIN = Contender("outrider", "none")
"""The baseline: the same engine at depth 0."""


class Entrant(Protocol):
    """A contender that can be sent through batches of prompts."""

    @property
    def contender(self) -> Contender:
        """Who it is."""
        ...

    @property
    def lossy(self) -> bool:
        """Whether its output may differ from the target's law."""
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
    that another has computed. (Only a draft of another vocabulary is shared.) The pool in which
    suffix lookup remembers earlier outputs is off, since a prompt that comes again would be
    answered from it.

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
        drafts = contender.drafter in ("model", "hybrid")
        model = _drafter_of_its_own(pair, max_sequences) if drafts else None
        return OutriderEntrant(contender, target, model)

    @property
    def contender(self) -> Contender:
        """Who it is."""
        return self._contender

    @property
    def lossy(self) -> bool:
        """Whether its output may differ from the target's law."""
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
        plain = replace(self._contender, drafter="none", num_speculative_tokens=0, tree_shape=None)
        return OutriderEntrant(plain, self._target)

    def _drafter(self) -> DraftModel | None:
        name = self._contender.drafter
        if name == "model":
            return self._model
        if name == "hybrid":
            assert self._model is not None
            return HybridDrafter(self._model, SuffixDrafter(max_pool_tokens=0))
        if name == "suffix":
            return SuffixDrafter(max_pool_tokens=0)
        return NgramDrafter() if name == "ngram" else None


def config_of(contender: Contender) -> SpeculativeConfig:
    """How a contender of Outrider speculates: to a fixed depth, or an adaptive one if it has none.

    Raises:
        InvalidConfigError: it is not known, or its settings contradict each other.
    """
    if contender.drafter not in (*DRAFTERS, "none"):
        raise InvalidConfigError("drafters", contender.drafter, f"some of {', '.join(DRAFTERS)}")
    depth = contender.num_speculative_tokens
    # The record checks what the command line was given.
    verification: Any = contender.verification or "block"
    return SpeculativeConfig(
        num_speculative_tokens=depth,
        depth="adaptive" if depth is None else "fixed",
        verification=verification,
        tree_shape=contender.tree_shape,
    )


def _drafter_of_its_own(pair: Pair, max_sequences: int) -> ModelDrafter | VocabularyDrafter:
    drafter = pair.model_drafter
    if drafter is None:
        raise InvalidConfigError("drafters", "model", "suffix or ngram where there is no draft")
    if isinstance(drafter, VocabularyDrafter):
        return drafter
    assert isinstance(drafter.model, TransformersModel)
    model = TransformersModel(drafter.model.hf_model, max_sequences=max_sequences)
    return ModelDrafter(model, drafter.vocab_size)
