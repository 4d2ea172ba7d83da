"""Stop strings that are special tokens, and texts that end with what stopped them."""

from __future__ import annotations

from typing import Any

import pytest

from outrider import InvalidConfigError, SamplingParams, SpeculativeDecoder
from tests.support.alphabet import END, alphabet
from tests.support.scripted import scripted

TEXTS = ["a", "b", "c"]
LAST = len(TEXTS)
"""The id of the special token."""


def decoder(script: list[int]) -> SpeculativeDecoder:
    """A decoder whose model writes the script, whatever was drawn; no token ends it by itself."""
    return SpeculativeDecoder(scripted(script, LAST + 1), tokenizer=alphabet(TEXTS))


def output(script: list[int], **asked: Any) -> tuple[str | None, str, int]:
    """The text, why it ended, and after how many tokens."""
    params = SamplingParams(max_tokens=len(script), temperature=0, ignore_eos=True, **asked)
    made = decoder(script)
    found = made.generate([0], params)
    events = list(made.stream([0], params))
    assert "".join(event.text or "" for event in events) == found.text
    return found.text, found.finish_reason, len(found.token_ids)


@pytest.mark.parametrize("stop", [(END,), ("bc", END), (END, "xyz")])
def test_a_stop_string_that_is_a_special_token_ends_the_text(stop: tuple[str, ...]) -> None:
    assert output([0, 1, LAST, 2, 0], stop=stop) == ("ab", "stop", 3)
    assert output([0, 1, 1, 1, 0], stop=stop) == ("abbba", "length", 5)


def test_a_special_token_ends_nothing_without_being_asked() -> None:
    assert output([0, LAST, 2, 0], stop=("bc",)) == ("aca", "length", 4)


def test_a_special_token_that_is_a_stop_string_waits_for_min_tokens() -> None:
    found = decoder([LAST, LAST, LAST]).start([0], SamplingParams(stop=END, min_tokens=2))
    assert LAST in found[0].stop_ids


@pytest.mark.parametrize("stop", [f"b{END}", f"{END}\n", END + END])
def test_a_special_token_within_a_stop_string_is_refused(stop: str) -> None:
    with pytest.raises(InvalidConfigError, match=f"the special token '{END}' alone") as raised:
        output([0, 1], stop=("c", stop))
    assert raised.value.field == "stop"


@pytest.mark.parametrize(
    ("script", "stop", "text"),
    [
        ([0, 1, 2, 0], ("bc",), "abc"),
        ([0, 1, 2, 0], ("bcd", "b", "ab"), "ab"),
        ([0, 1, LAST, 2], (END,), f"ab{END}"),
        ([0, 1, LAST, 2], ("c", END), f"ab{END}"),
        ([0, 1, 0, 1], ("c",), "abab"),
    ],
)
def test_a_text_may_end_with_its_stop_string(
    script: list[int], stop: tuple[str, ...], text: str
) -> None:
    assert output(script, stop=stop, include_stop_str_in_output=True)[0] == text
