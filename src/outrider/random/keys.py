"""Keys: which draw of which sequence a random number belongs to.

A key is five unsigned integers (stream key, choice, round, purpose, slot). The stream key, 64 bits,
is a hash of the request's seed and its prompt, so that one seed on many prompts gives independent
noise. The other four, 32 bits each, are the generator's counter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..types.records import SequenceState

DRAFT, STOP, TOKEN, POSITION = range(4)
"""The purposes of a draw: a drafted token, the node a round stops at, the token that follows it; in
coupled mode, the target's token at a position, whose keys count positions in the place of rounds.
"""


def stream_key(seed: int, prompt: Sequence[int] | NDArray[np.int64]) -> int:
    """The 64-bit key of a request's randomness, from its seed and its prompt's token ids."""
    digest = hashlib.blake2b(digest_size=8)
    digest.update(int(seed).to_bytes(8, "little"))
    digest.update(np.asarray(prompt, dtype="<i8").tobytes())
    return int.from_bytes(digest.digest(), "little")


def round_keys(states: Sequence[SequenceState], width: int) -> NDArray[np.uint64]:
    """Return the keys [B, 2 + width, 5] of the states' next round: stop, token, drafts."""
    keys = np.zeros((len(states), 2 + width, 5), dtype=np.uint64)
    for row, state in enumerate(states):
        keys[row, :, :3] = state.stream_key, state.choice, state.round
    keys[:, 0, 3] = STOP
    keys[:, 1, 3] = TOKEN
    keys[:, 2:, 4] = np.arange(width)
    return keys


def position_keys(states: Sequence[SequenceState]) -> NDArray[np.uint64]:
    """The keys [B, 5] of the states' next positions, in coupled mode."""
    rows = [
        (s.stream_key, s.choice, s.prefix.length - s.prompt_length, POSITION, 0) for s in states
    ]
    return np.array(rows, dtype=np.uint64)
