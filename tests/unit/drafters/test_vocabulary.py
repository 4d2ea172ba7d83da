"""A draft of another vocabulary: how tokens meet, how prefixes are written, what is drawn from."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import transformers as tf
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from outrider import VocabularyDrafter
from outrider.certify.kits import check_drafter
from outrider.certify.kits.drafter_round import outcomes
from outrider.drafters.vocabulary.respelling import Respeller, Writer
from outrider.drafters.vocabulary.spelling import Spelling, counterparts
from outrider.errors import InvalidConfigError, VocabMismatchError
from outrider.runtimes.base import Capabilities
from outrider.runtimes.tabular import TabularModel, mock_pair
from outrider.types.records import Prefix

from ...support.draft_context import plan_of, proposed, rows_of

TEXT = '''def area(width, height):
    """The area of a rectangle: naïve, in m² — größer als 0 €."""
    if width < 0 or height < 0:
        raise ValueError("a side is negative")
    return width * height


def volume(width, height, depth):
    """The volume of a box; 体积 is width × height × depth."""
    return area(width, height) * depth


for number in range(10):
    print(number, area(number, 2 * number), volume(number, number, number))
'''


def fast(tokenizer: Tokenizer, **marks: str) -> Any:
    return tf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **marks)


def toy(words: list[str], merges: list[tuple[str, str]], end: str | None = None) -> Any:
    """A byte-level tokenizer of a few tokens, numbered as they are listed."""
    made = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, merges))
    made.decoder = decoders.ByteLevel()
    if end is None:
        return fast(made)
    made.add_special_tokens([end])
    return fast(made, eos_token=end)


def byte_level(size: int, text: str, end: str = "<|end|>") -> Any:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[end],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([text], trainer)
    return fast(made, eos_token=end)


def metaspace(size: int, text: str) -> Any:
    """As Llama's: a space before every text, and bytes for characters it does not have."""
    made = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    lone = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<unk>", "<s>", "</s>", *lone], show_progress=False
    )
    made.train_from_iterator([text.replace("体积", "")], trainer)
    state = json.loads(made.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["id"] < 3]
    return fast(Tokenizer.from_str(json.dumps(state)), bos_token="<s>", eos_token="</s>")


TARGET = toy(["a", "b", "ab", "c"], [("a", "b")])
DRAFTS = {
    "smaller": toy(["b", "a"], []),
    "larger": toy(["c", "bb", "a", "b", "ab", "ca"], [("b", "b"), ("a", "b"), ("c", "a")]),
    "one_common": toy(["cc", "c"], [("c", "c")]),
}


def drafter(name: str, match: Literal["auto", "tokens", "text"] = "tokens") -> VocabularyDrafter:
    tokenizer = DRAFTS[name]
    return VocabularyDrafter(mock_pair(len(tokenizer), 40)[0], tokenizer, TARGET, match=match)


@pytest.mark.parametrize("name", DRAFTS)
@pytest.mark.parametrize("match", ["tokens", "text"])
@pytest.mark.slow
def test_drafts_keep_the_contract(name: str, match: Any) -> None:
    findings = check_drafter(lambda: drafter(name, match), 4, depth=2)
    assert [finding for finding in findings if not finding.passed] == []


def test_the_distribution_drawn_from_is_the_drafts_cut_to_the_common_tokens() -> None:
    """P(t) / P(common), Timor et al. 2025; the tokens 1 "b" and 0 "a" are the draft's 0 and 1."""
    model = mock_pair(2, 3)[0]
    made = VocabularyDrafter(model, DRAFTS["smaller"], TARGET)
    for outcome in outcomes(made, [0, 2, 1], plan_of(2)):
        probs = outcome.proposal.distributions.probs[0]
        path = (1, 1, 0, 0)  # "a" "ab" "b" in the draft's tokens
        for row, token in zip(probs, outcome.tokens, strict=True):
            np.testing.assert_allclose(row[[1, 0]], model.probabilities(path), atol=1e-15)
            assert row[[2, 3]].tolist() == [0, 0]
            path = (*path, 1 - token)


LARGE = byte_level(420, TEXT)
SMALL = byte_level(330, TEXT[::-1] + TEXT[:200])
SPACED = metaspace(420, TEXT)


def respeller(target: Any, draft: Any) -> tuple[Respeller, Spelling]:
    spelt, own = Spelling.of(target), Spelling.of(draft)
    return Respeller(spelt, Writer(draft, own), counterparts(spelt, own)), own


def test_tokens_meet_by_their_bytes() -> None:
    spelt, own = Spelling.of(LARGE), Spelling.of(SPACED)
    common = counterparts(spelt, own)
    assert len(common) > 50
    for index, other in common.items():
        if index not in spelt.specials:
            assert LARGE.decode([index]) == "�" or spelt.words[index] == own.words[other]
    assert own.words[own.ids[b" width"]] == b" width"
    assert SPACED.convert_ids_to_tokens(common[spelt.ids[b" width"]]) == "▁width"
    assert common[LARGE.eos_token_id] == SPACED.eos_token_id
    assert spelt.ids[b"\n"] in common  # "Ċ" here, "<0x0A>" or a character there


@pytest.mark.parametrize("draft", [SMALL, SPACED], ids=["byte_level", "metaspace"])
def test_a_growing_prefix_is_written_as_its_text(draft: Any) -> None:
    """Token by token, characters cut in two included; as the draft's tokenizer writes it."""
    ids = LARGE.encode(TEXT)
    spelt = Spelling.of(LARGE)
    writes, own = respeller(LARGE, draft)
    prefix = Prefix(7, ids[:1])
    for token in ids[1:]:
        prefix = prefix.extended([token])
        written = writes.written(prefix).tokens.tolist()
        text = b"".join(spelt.words[i] for i in prefix.tokens.tolist())
        assert b"".join(own.words[i] for i in written).removeprefix(b" ") == text
    whole = writes.written(Prefix(8, ids)).tokens.tolist()
    if draft is SMALL:  # the other one has tokens across words
        assert whole == written == draft.encode(TEXT)


def test_what_lies_back_is_not_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = LARGE.encode(TEXT * 12)
    writes, _ = respeller(LARGE, SMALL)
    prefix = Prefix(1, ids[:600])
    writes.written(prefix)
    sizes = []
    text = Writer._text
    monkeypatch.setattr(
        Writer, "_text", lambda s, t, *, opens: sizes.append(len(t)) or text(s, t, opens=opens)
    )
    for token in ids[600:900]:
        prefix = prefix.extended([token])
        writes.written(prefix)
    assert max(sizes) < 300


@pytest.mark.parametrize("draft", [SMALL, SPACED], ids=["byte_level", "metaspace"])
@pytest.mark.slow
def test_how_a_prefix_is_written_depends_on_nothing_else(draft: Any) -> None:
    """Not on how it grew, nor on what it was before: distributions of a draft are to repeat."""
    ids = LARGE.encode(TEXT + TEXT[::-1])
    writes, _ = respeller(LARGE, draft)
    rng = np.random.default_rng(0)
    for length in rng.integers(1, len(ids), 150).tolist():
        other = [*ids[: length // 2], *ids[: length // 3]]
        for tokens in (ids[:length], other):
            found = writes.written(Prefix(1, tokens)).tokens
            fresh = respeller(LARGE, draft)[0].written(Prefix(2, tokens)).tokens
            assert found.tolist() == fresh.tolist()


def test_a_sequence_that_went_another_way_is_written_anew() -> None:
    ids = LARGE.encode(TEXT)
    writes, _ = respeller(LARGE, SMALL)
    writes.written(Prefix(1, ids))
    other = LARGE.encode(TEXT.replace("width", "breadth"))
    assert writes.written(Prefix(1, other)).tokens.tolist() == SMALL.encode(
        TEXT.replace("width", "breadth")
    )
    assert writes.written(Prefix(1, ids[:9])).tokens.tolist() == SMALL.encode(LARGE.decode(ids[:9]))


def test_special_tokens_and_bytes_that_make_no_character() -> None:
    end = LARGE.eos_token_id
    writes, own = respeller(LARGE, SPACED)
    spelt = Spelling.of(LARGE)
    lone = [spelt.ids[bytes([0xFF])], spelt.ids[bytes([0xE2])]]
    ids = [*LARGE.encode("one"), end, *lone, *LARGE.encode("two"), 419 + 5]
    written = writes.written(Prefix(3, ids)).tokens.tolist()
    assert written.count(SPACED.eos_token_id) == 1
    assert b"".join(own.words.get(i, b"|") for i in written) == b" one|\xff\xe2two"
    only = Respeller(spelt, Writer(DRAFTS["smaller"], Spelling.of(DRAFTS["smaller"])), {})
    assert only.written(Prefix(4, [end])).tokens.tolist() == [0]


class _Short(TabularModel):
    """A draft model with a short context."""

    def __init__(self, max_length: int, vocab_size: int = 258) -> None:
        super().__init__(lambda _: np.full(vocab_size, 1 / vocab_size), vocab_size)
        self._longest = max_length
        self.shown: list[list[int]] = []

    def open(self, prefixes: Any, depth: int) -> Any:
        self.shown += [prefix.tokens.tolist() for prefix in prefixes]
        return super().open(prefixes, depth)

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, max_length=self._longest)


@pytest.mark.parametrize("match", ["tokens", "text"])
def test_drafting_stops_where_the_drafts_context_ends(match: Any) -> None:
    """By the draft's own tokens, which may be more than the target's."""
    letters = byte_level(258, "a b")
    made = VocabularyDrafter(_Short(96), letters, LARGE, match=match)
    prompt = LARGE.encode(TEXT)[:60]
    assert len(letters.encode(LARGE.decode(prompt))) > 96
    assert proposed(made, [prompt], plan_of(3)).lengths[0] == 0
    assert proposed(made, [prompt, prompt[:20]], plan_of(3, 3)).lengths.tolist()[0] == 0
    assert proposed(made, [prompt[:20]], plan_of(3)).lengths[0] > 0


def test_padding_and_truncation_of_a_tokenizer_change_nothing() -> None:
    marked = byte_level(330, TEXT)
    expected = Writer(marked, Spelling.of(marked)).written(b"def area", opens=True)
    marked.add_special_tokens({"pad_token": "[PAD]"})
    assert len(expected) > 1
    for longest in (1, 64):
        marked(["a"], padding="max_length", max_length=longest, truncation=True)
        assert Writer(marked, Spelling.of(marked)).written(b"def area", opens=True) == expected


def test_tokens_that_the_draft_has_no_embedding_for_are_read_as_another() -> None:
    marked = byte_level(330, TEXT)
    known = len(marked)
    marked.add_tokens(["zzz"])
    model = _Short(64, known)
    proposed(
        VocabularyDrafter(model, marked, marked), [[*marked.encode("def area"), known]], plan_of(2)
    )
    assert max(model.shown[0]) == known - 1


ALTERNATING = TabularModel(lambda prefix: [0, 1] if prefix[-1] == 0 else [1, 0], 2)
"""Writes "a", "b", "a", "b"."""


def test_text_is_proposed_as_the_target_writes_it() -> None:
    """The target has a token for "ab". A row is written alike whatever its mates draft."""
    made = VocabularyDrafter(ALTERNATING, DRAFTS["smaller"], TARGET, match="text")
    for others in ([], [4], [1, 4]):
        texts = [[3, 2]] * (1 + len(others))
        rows = rows_of(proposed(made, texts, plan_of(1, *others)))
        assert rows == [[0], *([2] * (depth // 2) or [0] for depth in others)]


@pytest.mark.parametrize("match", ["tokens", "text"])
def test_a_text_that_the_draft_ends_ends_for_the_target(match: Any) -> None:
    def ending(tokenizer: Any, end: str) -> Any:
        state = tokenizer.backend_tokenizer.to_str()
        return fast(Tokenizer.from_str(state), eos_token=end)

    stops = TabularModel(lambda prefix: [0, 0, 1] if prefix[-1] == 0 else [1, 0, 0], 3)
    target = ending(TARGET, "<end>")
    made = VocabularyDrafter(stops, ending(DRAFTS["smaller"], "</s>"), target, match=match)
    assert rows_of(proposed(made, [[0]], plan_of(2))) == [[1, 4]]


def test_few_common_tokens_go_by_text() -> None:
    words = [chr(65 + i) + chr(65 + j) for i in range(4) for j in range(4)]
    many = toy(["a", *words], [])
    assert VocabularyDrafter(mock_pair(17)[0], many, TARGET).match == "text"
    assert drafter("larger", "auto").match == "tokens"


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(VocabMismatchError, match="no token of the draft's tokenizer"):
        VocabularyDrafter(mock_pair(2)[0], toy(["x", "y"], []), TARGET)
    words = fast(Tokenizer(models.WordLevel({"a": 0}, unk_token="a")))
    with pytest.raises(VocabMismatchError, match="does not say what bytes a token spells"):
        VocabularyDrafter(mock_pair(1)[0], words, TARGET)
    with pytest.raises(InvalidConfigError, match="match='bytes'"):
        drafter("smaller", "bytes")  # type: ignore[arg-type]  # what is refused
    with pytest.raises(InvalidConfigError, match="a fast tokenizer"):
        VocabularyDrafter(mock_pair(2)[0], object(), TARGET)
