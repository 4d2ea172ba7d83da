"""An interrupt at any line of a generation leaves no slot taken, no lock held, no wrong text."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Sequence

import pytest

from outrider import SamplingParams, SpeculativeConfig, SpeculativeDecoder
from outrider.engine import decoder as decoder_module
from outrider.engine import scheduler as scheduler_module
from outrider.errors import ModelError
from outrider.runtimes.base import Capabilities
from outrider.runtimes.tabular import TabularModel, mock_pair
from outrider.types.records import DraftProposal, Prefix, TargetScores
from tests.support.interrupts import interrupted_at

PAIR = mock_pair(4, 1)
FILES = {decoder_module.__file__, scheduler_module.__file__}


class TwoSlots(TabularModel):
    """A model with two slots, which refuses a third sequence."""

    def __init__(self) -> None:
        super().__init__(lambda prefix: PAIR[0].probabilities(prefix), 4)
        self.live: set[int] = set()

    @property
    def capabilities(self) -> Capabilities:
        own = super().capabilities
        return Capabilities(own.vocab_size, own.device, max_sequences=2)

    def verify(self, prefixes: Sequence[Prefix], proposal: DraftProposal) -> TargetScores:
        self.live |= {prefix.sequence_id for prefix in prefixes}
        if len(self.live) > 2:
            raise ModelError(f"{len(self.live)} sequences are live")
        return super().verify(prefixes, proposal)

    def release(self, sequence_ids: Iterable[int], *, discard: bool = False) -> None:
        self.live.difference_update(sequence_ids)


def interrupted(decoder: SpeculativeDecoder, params: SamplingParams, line: int) -> bool:
    """Generate up to a line; whether it was reached."""
    with interrupted_at(line, FILES) as trace:
        decoder.generate([[0], [1]], params)
    return trace.left <= 0


@pytest.mark.slow
def test_an_interrupt_at_any_line_leaves_slots_free_and_later_texts_right() -> None:
    target, draft = TwoSlots(), PAIR[1]
    config = SpeculativeConfig(depth="fixed", num_speculative_tokens=2)
    params = SamplingParams(max_tokens=3, seed=1, n=2)
    expected = SpeculativeDecoder(target, draft, config=config).generate([0], params)
    decoder = SpeculativeDecoder(target, draft, config=config)
    line = 0
    while interrupted(decoder, params, line := line + 1):
        gc.collect(0)
        assert decoder.slots.free == 2, line
        found = decoder.generate([0], params)
        assert [c.token_ids for c in found.choices] == [c.token_ids for c in expected.choices], line
        assert not target.live, line
    assert line > 200
