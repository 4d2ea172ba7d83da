"""All randomness: keyed categorical draws, by a counter-based generator or by enumeration.

Keys say what is drawn and never what came out, so that all of a round's uniforms are made in one
call before anything is drawn.
"""

from .categorical import inverse_cdf as inverse_cdf
from .categorical import row_totals as row_totals
from .draws import Race as Race
from .draws import RoundDraws as RoundDraws
from .enumerator import Enumerator as Enumerator
from .keys import DRAFT as DRAFT
from .keys import POSITION as POSITION
from .keys import STOP as STOP
from .keys import TOKEN as TOKEN
from .keys import position_keys as position_keys
from .keys import round_keys as round_keys
from .keys import stream_key as stream_key
from .philox import Philox4x32 as Philox4x32
from .philox import philox4x32 as philox4x32
