"""All calls to a drafter: guarded, checked, and what follows where one fails."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch

from ..config.params import SpeculativeConfig
from ..drafters.base import Drafter, nothing_drafted
from ..drafters.context import DraftContext
from ..errors import CacheFullError, DraftError, KeyReuseError, OutriderError
from ..sampling.batch import Batch
from ..types.records import DraftPlan, DraftProposal, HiddenStates, Prefix
from .validation import check_proposal, wanted

_LOG = logging.getLogger(__name__)


class Drafting:
    """A decoder's drafter, and those behind it. Whatever one raises is a `DraftError`.

    Args:
        drafter: proposes tokens; None for nothing.
        behind: it and the drafters behind it.
        config: whether proposals are checked, and what follows where the drafter fails.
        vocab_size: the target's.
        device: where proposals are expected.

    Attributes:
        hidden_layers: of the target, whose hidden states any of them needs, in order.
        follows: whether one drafts from what the target has computed.
    """

    def __init__(
        self,
        drafter: Drafter | None,
        behind: Sequence[Drafter],
        config: SpeculativeConfig,
        vocab_size: int,
        device: torch.device,
    ) -> None:
        self._drafter = drafter
        self._behind = behind
        self._checked = wanted(config.validate, behind)
        self._raises = config.on_draft_error == "raise"
        self._logged = False
        self._vocab_size = vocab_size
        self._device = device
        wanted_layers = {layer for each in behind for layer in each.hidden_layers}
        self.hidden_layers = tuple(sorted(wanted_layers))
        self.follows = any(each.follows for each in behind) or bool(wanted_layers)

    def known(self, prefix: Prefix) -> int:
        """Return of how many first tokens of a new sequence all drafters know the states."""
        known = len(prefix)
        for drafter in self._behind:
            if drafter.hidden_layers:
                try:
                    with _guarded(drafter):
                        known = min(known, drafter.known(prefix))
                except DraftError as error:
                    error.sequence_id = prefix.sequence_id
                    self._pass_over(error)
        return known

    def observe_round(self, hidden: Sequence[HiddenStates]) -> None:
        """Give drafters the hidden states of their layers, of those of `hidden_layers`.

        Raises:
            DraftError: one raised, unless `on_draft_error` is "disable".
        """
        for drafter in self._behind if hidden else ():
            places = [self.hidden_layers.index(layer) for layer in drafter.hidden_layers]
            if places:
                own = [replace(each, states=each.states[:, places]) for each in hidden]
                try:
                    with _guarded(drafter):
                        drafter.observe_round(own)
                except DraftError as error:
                    self._pass_over(error)

    def prefill(self, prefix: Prefix, most: int) -> int:
        """Have the drafters prefill a part of a prompt, and return how many tokens are left.

        Raises:
            DraftError: the first that one raised, unless `on_draft_error` is "disable".
            CacheFullError: a drafter's model has no room for it.
        """
        left = 0
        for drafter in self._behind:
            try:
                with _guarded(drafter):
                    left = max(left, drafter.prefill(prefix, most))
            except DraftError as error:
                if isinstance(error.__cause__, CacheFullError):
                    raise error.__cause__ from None  # others may give way
                error.sequence_id = prefix.sequence_id
                self._pass_over(error)
        return left

    def propose(self, batch: Batch, plan: DraftPlan, context: DraftContext) -> DraftProposal:
        """Propose tokens for a round, none where none are planned.

        Raises:
            DraftError: the drafter raised, or broke its contract.
        """
        if self._drafter is None or not plan.width:
            return nothing_drafted(len(batch.states), self._device)
        prefixes = [state.prefix for state in batch.states]
        with _guarded(self._drafter):
            proposal = self._drafter.propose(prefixes, plan, context)
            if self._checked:
                check_proposal(proposal, prefixes, plan, self._vocab_size, self._device)
        return proposal

    def release(
        self, sequence_ids: Sequence[int], ended: Sequence[Prefix], *, discard: bool
    ) -> None:
        """Have drafters learn from texts that ended, and forget sequences: each of them, always.

        Raises:
            DraftError: the first that one raised, unless `on_draft_error` is "disable".
        """
        first: DraftError | None = None
        for drafter in self._behind:
            learn = [partial(drafter.observe_output, ended)] if ended else []
            for call in (*learn, partial(drafter.release, sequence_ids, discard=discard)):
                try:
                    with _guarded(drafter):
                        call()
                except DraftError as error:
                    first = first or error
        if first is not None:
            self._pass_over(first)

    def without_failed(self, batch: Batch, error: DraftError) -> Batch:
        """Return a batch in which what failed is drafted no more.

        That is the row that the error names, or else every row.

        Raises:
            DraftError: the error, unless `on_draft_error` is "disable".
        """
        drafting = [state.prefix.sequence_id for state in batch.states if state.drafting]
        self._pass_over(error)
        if not drafting:
            raise error
        failed = {error.sequence_id}.intersection(drafting) or drafting
        states = (
            replace(state, drafting=state.drafting and state.prefix.sequence_id not in failed)
            for state in batch.states
        )
        return replace(batch, states=tuple(states))

    def _pass_over(self, error: DraftError) -> None:
        """Log the first error, or raise it."""
        if self._raises:
            raise error
        if not self._logged:
            _LOG.warning("the drafter failed; its requests go on without drafts: %s", error)
            self._logged = True


@contextmanager
def _guarded(drafter: Drafter) -> Iterator[None]:
    """Raise a DraftError where a drafter raises anything."""
    try:
        yield
    except KeyReuseError:
        raise
    except Exception as error:
        raise DraftError(
            f"{type(drafter).__name__} failed: {type(error).__name__}: {error}; "
            'SpeculativeConfig(on_draft_error="disable") decodes plainly from there',
            sequence_id=error.sequence_id if isinstance(error, OutriderError) else None,
        ) from error
