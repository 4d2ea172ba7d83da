"""All randomness: keyed categorical draws, by a counter-based generator or by enumeration.

Keys say what is drawn and never what came out, so that all of a round's uniforms are made in one
call before anything is drawn.
"""

from .categorical import BLOCK, inverse_cdf, noise_size, race_index, row_totals
from .draws import Race, RoundDraws
from .enumerator import Enumerator
from .keys import DRAFT, POSITION, STOP, TOKEN, position_keys, round_keys, stream_key
from .philox import Philox4x32, philox4x32

__all__ = [
    "BLOCK",
    "DRAFT",
    "POSITION",
    "STOP",
    "TOKEN",
    "Enumerator",
    "Philox4x32",
    "Race",
    "RoundDraws",
    "inverse_cdf",
    "noise_size",
    "philox4x32",
    "position_keys",
    "race_index",
    "round_keys",
    "row_totals",
    "stream_key",
]
