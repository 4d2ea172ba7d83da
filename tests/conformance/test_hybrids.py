"""Models with recurrent layers pass the kit, and planted mistakes of their states are seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf

from outrider import TransformersModel
from outrider.certify.kits.references import TransformersReference
from outrider.certify.kits.runtime import check_runtime
from outrider.certify.kits.runtime_case import Row, proposal
from outrider.errors import ModelError
from outrider.runtimes.transformers.early_exit import truncated
from outrider.runtimes.transformers.recurrences import Nodes, linear_folded
from outrider.runtimes.transformers.states import HybridCache
from outrider.types.finding import Finding
from outrider.types.records import Prefix
from tests.support.families import CONTEXT, VOCAB
from tests.support.hybrids import FAMILIES, exact, random_hybrid

QUICK = ("qwen3_5", "bamba")
"""One of each linear recurrence."""

ROUNDED = {"nemotron_h": 1e-6, "kimi_linear": 1e-6}
"""Other parts of these compute in float32 whatever the model's dtype."""


@pytest.fixture(autouse=True)
def exactly() -> Iterator[pytest.MonkeyPatch]:
    for family in FAMILIES:
        random_hybrid(family)  # its module is there to be patched
    with pytest.MonkeyPatch.context() as patch:
        exact(patch)
        yield patch


def findings(model: Any, tolerance: float = 1e-10, **settings: Any) -> tuple[Finding, ...]:
    given = {"max_sequences": 3, "max_length": 120} | settings
    reference = TransformersReference(model)
    return check_runtime(lambda: TransformersModel(model, **given), reference, tolerance=tolerance)


def failed(model: Any, **settings: Any) -> list[str]:
    return [each.name for each in findings(model, **settings) if not each.passed]


@pytest.mark.parametrize(
    "family",
    [pytest.param(each, marks=() if each in QUICK else pytest.mark.slow) for each in FAMILIES],
)
def test_a_hybrid_model_passes(family: str) -> None:
    assert not failed(random_hybrid(family), tolerance=ROUNDED.get(family, 1e-10))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3_5", "zamba2", "lfm2", "jamba"])
@pytest.mark.parametrize("chunk", [3, 20])
def test_small_chunks_and_other_numbers_of_slots_pass(family: str, chunk: int) -> None:
    slots = {"max_sequences": 1 + chunk % 4, "prefill_chunk": chunk}
    assert not failed(random_hybrid(family), **slots)


def noticed(model: Any) -> bool:
    """Whether the kit fails, or the model is refused where it is made."""
    try:
        return bool(failed(model))
    except ModelError:
        return True


def never_folded(cache: HybridCache, names: Any, starts: Any) -> None:
    for name, start in zip(names, starts, strict=True):
        cache._base[name] = max(cache._base[name], start)


def context_kept(cache: HybridCache, names: Any, starts: Any) -> None:
    kept = [{key: each.clone() for key, each in of.contexts.items()} for of in cache.layers_of]
    FOLD(cache, names, starts)
    for layer, contexts in zip(cache.layers_of, kept, strict=True):
        layer.contexts.update(contexts)


def slightly_off(state: Any, records: Any, counts: Any) -> Any:
    found = FOLDED(state, records, counts)
    return state + 0.999 * (found - state)


def chains_only(nodes: Nodes, kernel: int) -> Any:
    steps = torch.arange(nodes.seen.shape[2])
    chain = (steps <= nodes.own[..., None]) & nodes.real[..., None]
    return TAPS(Nodes(nodes.rows, nodes.columns, nodes.steps, chain), kernel)


def anywhere(cache: HybridCache, name: int, shared: int) -> int:
    del cache, name
    return shared


def unsaved(cache: HybridCache, name: int, base: int = 0, kept: Any = None) -> None:
    del kept
    START(cache, name, base)


FOLD, START, TAPS, FOLDED = (
    HybridCache.fold,
    HybridCache._start,
    Nodes.taps,
    linear_folded,
)
MISTAKES: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "states are never folded": (HybridCache, "fold", never_folded),
    "inputs of convolutions are not folded": (HybridCache, "fold", context_kept),
    "trees are convolved as chains": (Nodes, "taps", chains_only),
    "states are cut back to any token": (HybridCache, "cut", anywhere),
    "checkpoints are not restored": (HybridCache, "_start", unsaved),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize(
    "family",
    ["qwen3_5", *(pytest.param(each, marks=pytest.mark.slow) for each in ("bamba", "lfm2"))],
)
def test_a_planted_mistake_is_seen(
    family: str, mistake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*MISTAKES[mistake])
    assert noticed(random_hybrid(family))


def test_a_fold_that_is_slightly_off_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.runtimes.transformers.mixers.linear_folded", slightly_off)
    assert noticed(random_hybrid("qwen3_5"))


def verified(target: TransformersModel, name: int, text: list[int], drafts: list[int]) -> None:
    """Verify a chain, and compare all logits with a full forward's."""
    scores = target.verify([Prefix(name, text)], proposal([(drafts, range(len(drafts)))]))
    expected = target.uncached([text + drafts])[0, len(text) - 1 :]
    torch.testing.assert_close(scores.logits[0], expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("family", QUICK)
def test_states_are_those_of_what_is_known(family: str) -> None:
    """A text is cut back with nothing computed after it, or prefilled with nothing missing."""
    target = TransformersModel(random_hybrid(family), max_sequences=3, max_length=120)
    text = [number * 7 % VOCAB for number in range(1, 41)]
    verified(target, 0, text[:20], text[20:24])
    target.prefill(Prefix(0, text[:4]), 0)
    verified(target, 0, text[:21], text[21:23])
    verified(target, 1, text[:9], text[9:12])
    target.prefill(Prefix(1, text[:12]), 9)
    target.release([1])
    verified(target, 2, text[:14], text[14:16])
    cursor = target.open([Prefix(2, text[:18])], 2)
    target.prefill(Prefix(2, text[:18]), 9)
    with suppress(ModelError):  # it may be of use no longer
        cursor.step(torch.tensor([text[18]]))
    verified(target, 2, text[:20], text[20:22])


@pytest.mark.parametrize("family", ["qwen3_5", "bamba", "jamba"])
def test_drafts_of_which_the_model_makes_nan_spoil_nothing_else(family: str) -> None:
    model = random_hybrid(family)
    with torch.no_grad():
        model.get_input_embeddings().weight[-1] = torch.nan
    target = TransformersModel(model, max_sequences=2, max_length=120)
    texts = [[number * step % (VOCAB - 1) for number in range(1, 31)] for step in (7, 11)]
    spoiled: Row = ([texts[0][9], VOCAB - 1, 3], range(3))
    rows = [spoiled, (texts[1][9:14], range(5))]
    target.verify([Prefix(row, text[:9]) for row, text in enumerate(texts)], proposal(rows))
    # Of one row no draft is kept, of the other all: they are folded together.
    parts = [[*texts[0][:9], 5, 6], texts[1][:16]]
    scores = target.verify([Prefix(*each) for each in enumerate(parts)], proposal([([], ())] * 2))
    target.release([0])
    verified(target, 2, texts[1][:8], texts[1][8:12])
    for logits, part in zip(scores.logits[:, 0], parts, strict=True):
        expected = target.uncached([part])[0, -1]
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-8)


def test_a_stale_record_of_nan_spoils_no_later_draft() -> None:
    model = random_hybrid("qwen3_5")
    with torch.no_grad():
        model.get_input_embeddings().weight[-1] = torch.nan
    target = TransformersModel(model, max_sequences=2, max_length=120)
    prefixes = [Prefix(0, [1, 2, 3]), Prefix(1, [4, 5, 6, 7, 8, 9])]
    cursor = target.open(prefixes, 4)
    for _ in range(3):
        cursor.step(torch.tensor([VOCAB - 1, VOCAB - 1]))
    target.release([1, 0])  # the last slot that is given back is the first to be used
    logits = target.open([Prefix(2, [2, 3]), Prefix(3, [5, 6, 7, 8, 9, 1])], 2).logits
    for found, text in zip(logits, ([2, 3], [5, 6, 7, 8, 9, 1]), strict=True):
        expected = target.uncached([text])[0, -1]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("family", ["qwen3_5", "falcon_h1"])
def test_first_layers_go_on_from_the_states_of_a_prefix(family: str) -> None:
    model, text = random_hybrid(family), [number * 7 % VOCAB for number in range(1, 24)]
    target = TransformersModel(model, max_sequences=2, max_length=120)
    cursor = target.open([Prefix(0, text)], 3, target.first_layers(2))
    first = truncated(model, 2)
    for token in (5, 9, 3):
        with torch.inference_mode():
            expected = first(torch.tensor([text]), use_cache=False).logits[0, -1]
        torch.testing.assert_close(cursor.logits[0], expected, rtol=0, atol=1e-8)
        text.append(token)
        cursor.step(torch.tensor([token]))


def test_a_checkpoint_beyond_what_blocks_hold_is_not_taken() -> None:
    target = TransformersModel(random_hybrid("qwen3_5"), max_sequences=2, max_length=120)
    text = [number * 7 % VOCAB for number in range(1, 43)]
    verified(target, 0, text, [1, 2])
    known = np.array(text)
    assert target.states.admit(7, known[:32]) == 0
    target.states.release([7])
    assert target.states.admit(7, known[:41]) == 41


def test_a_shared_prompt_is_kept_as_long_as_it_is_of_use() -> None:
    target = TransformersModel(random_hybrid("qwen3_5"), max_sequences=2, max_length=120)
    prompt = [number * 7 % VOCAB for number in range(1, 43)]
    verified(target, 0, [*prompt, 0], [1])
    target.release([0])
    for name in range(1, 6):
        text = [*prompt, *(number * name % VOCAB for number in range(name, name + 20))]
        assert target.lookup(Prefix(name, text)).tokens == 42
        verified(target, name, text, [1])
        target.release([name])


@torch.no_grad()
def own_way(model: Any, ids: Any, *, step: int, padding: int) -> Any:
    """The last logits by transformers' own cache: 20 tokens, then so many at once, padded left."""
    cache = tf.DynamicCache(config=model.config)
    model(ids[:, :20], past_key_values=cache, use_cache=True)
    mask = torch.ones(1, ids.shape[1] + padding, dtype=torch.int64)
    mask[:, 20 : 20 + padding] = 0
    for start in range(20, ids.shape[1], step):
        end = start + step
        new = torch.cat([ids.new_zeros(1, padding), ids[:, start:end]], 1)
        places = torch.cat([ids.new_zeros(1, padding), torch.arange(start, end)[None]], 1)
        seen = {"attention_mask": mask[:, : end + padding], "position_ids": places}
        logits = model(new, past_key_values=cache, use_cache=True, **seen).logits
    return logits[0, -1]


def state_bytes(config: Any, width: int) -> int:
    """Of the states of a sequence in a model with the gated delta rule, by its shapes.

    The state is in float32, a convolution's inputs of `width` bytes each.
    """
    keys = config.linear_num_key_heads * config.linear_key_head_dim
    values = config.linear_num_value_heads * config.linear_value_head_dim
    inputs = (2 * keys + values) * config.linear_conv_kernel_dim * width
    layers = config.layer_types.count("linear_attention")
    return int(layers * (values * config.linear_key_head_dim * 4 + inputs))


def test_the_memory_of_states_is_what_shapes_say(exactly: pytest.MonkeyPatch) -> None:
    """Beside it stand records of the few tokens since, and keys and values in blocks."""
    exactly.undo()
    model = random_hybrid("qwen3_5", dtype=torch.float32)
    target = TransformersModel(model, max_sequences=3, max_length=120)
    expected = state_bytes(model.config, 4)
    assert target._architecture.state_bytes == expected
    cache = target.states
    assert isinstance(cache, HybridCache)
    verified_once = proposal([([1, 2, 3], range(3))])
    target.verify([Prefix(0, [1, 2, 3, 4])], verified_once)
    kept = sum(each.nbytes for layer in cache.layers_of for each in layer.lasting())
    # One input less is kept of each convolution: the newest stands among the records.
    assert 0.8 * 3 * expected < kept <= 3 * expected
    records = [(*of.records.values(), *of.inputs.values()) for of in cache.layers_of]
    assert {each.shape[:2] for of in records for each in of} == {(3, 8)}


def test_a_sequence_of_a_model_of_4_billion_weights_takes_50_mib() -> None:
    """As docs/guides/runtimes.md says of the shapes of Qwen 3.5 4B."""
    kinds = ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 8
    shapes = {"linear_num_key_heads": 16, "linear_num_value_heads": 32}
    shapes |= {"linear_key_head_dim": 128, "linear_value_head_dim": 128}
    config = tf.Qwen3_5TextConfig(num_hidden_layers=32, layer_types=kinds, **shapes)
    assert round(state_bytes(config, 2) / 2**20, 1) == 49.5


TRAPS: dict[str, tuple[str, dict[str, int], float]] = {
    "a forward of one token takes steps below their limit": ("nemotron_h", {"step": 1}, -9.0),
    "the same": ("zamba2", {"step": 1}, -9.0),
    "several tokens begin without the state before them": ("jamba", {"step": 10}, -1.0),
    "padding decays a state": ("qwen3_5", {"step": 10, "padding": 5}, -1.0),
    "padding moves a convolution's inputs": ("lfm2", {"step": 10, "padding": 5}, -1.0),
}
"""Where transformers' cached forwards are no function of the text: how, and of which time steps."""


@pytest.mark.parametrize("trap", TRAPS)
def test_what_transformers_computes_otherwise_with_a_cache_is_computed_right(trap: str) -> None:
    """One row beside a longer one, in tokens one by one and in drafts that are refused."""
    family, way, times = TRAPS[trap]
    model = random_hybrid(family)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("dt_bias"):
                parameter.normal_(times, 1.0)
            elif name.endswith("A_log") and times < -1:
                parameter.fill_(3.0)
            elif name.endswith(".D") and times < -1:
                parameter.zero_()
    texts = [[number * step % VOCAB for number in range(1, 31)] for step in (7, 11)]
    ids = torch.tensor(texts[:1])
    target = TransformersModel(model, max_sequences=2, max_length=120)
    expected = target.uncached([texts[0]])[0, -1].detach()
    theirs = own_way(model, ids, step=way["step"], padding=way.get("padding", 0))
    assert float((theirs - expected).abs().max() / expected.abs().max()) > 0.1
    rows: list[Row] = [(texts[0][20:24], range(4)), ([5], range(1))]
    for lengths, drafts in (((20, 9), rows), ((22, 23), rows), ((23, 25), rows), ((30, 26), rows)):
        prefixes = [Prefix(row, texts[row][:length]) for row, length in enumerate(lengths)]
        found = target.verify(prefixes, proposal(drafts)).logits[:, 0]
        for logits, prefix in zip(found, prefixes, strict=True):
            own = target.uncached([prefix.tokens.tolist()])[0, -1]
            # Parts of some models compute in float32 whatever their dtype.
            torch.testing.assert_close(logits, own, rtol=0, atol=1e-5)


REFUSED: dict[str, Callable[[], Any]] = {
    "RecurrentGemma": lambda: tf.RecurrentGemmaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        num_attention_heads=4,
        num_hidden_layers=3,
        intermediate_size=48,
        lru_width=32,
        attention_window_size=16,
    ),
    "Rwkv": lambda: tf.RwkvConfig(
        vocab_size=VOCAB, hidden_size=32, num_hidden_layers=3, attention_hidden_size=32
    ),
    "xLSTM": lambda: tf.xLSTMConfig(
        vocab_size=VOCAB, hidden_size=32, embedding_dim=32, num_hidden_layers=2, num_heads=2
    ),
    "recurrence in several parts": lambda: tf.ZambaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        num_attention_heads=4,
        num_key_value_heads=4,
        num_hidden_layers=4,
        intermediate_size=48,
        layers_block_type=["mamba", "hybrid", "mamba", "hybrid"],
        max_position_embeddings=CONTEXT,
        mamba_d_state=8,
        n_mamba_heads=2,
        mamba_dt_rank=4,
        pad_token_id=None,
    ),
    "Zaya": lambda: tf.ZayaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_hidden_layers=4,
    ),
    "sliding windows": lambda: tf.Lfm3Config(
        vocab_size=VOCAB,
        hidden_size=32,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_hidden_layers=3,
        intermediate_size=48,
        max_position_embeddings=CONTEXT,
        pad_token_id=None,
        sliding_window=4,
        layer_types=["conv", "sliding_attention", "full_attention"],
    ),
    "MiniMax": lambda: tf.MiniMaxConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_hidden_layers=2,
        intermediate_size=48,
        num_local_experts=2,
        num_experts_per_tok=1,
        max_position_embeddings=CONTEXT,
        layer_types=["linear_attention", "full_attention"],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_recurrences_are_refused_by_name(name: str) -> None:
    model = tf.AutoModelForCausalLM.from_config(REFUSED[name]())
    with pytest.raises(ModelError, match=name) as refused:
        TransformersModel(model)
    assert "\n" not in str(refused.value)


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_hybrid_is_refused_by_that_reason() -> None:
    with pytest.raises(ModelError, match="recurrent layers and was compiled; give the model"):
        TransformersModel(torch.compile(random_hybrid("bamba")))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        ("jamba", torch.float32),  # in bfloat16 rounding decides between its experts
        *product(("qwen3_5", "bamba"), (torch.float32, torch.bfloat16)),
    ],
)
def test_models_as_they_come_pass_within_their_own_rounding(
    family: str, dtype: torch.dtype, exactly: pytest.MonkeyPatch
) -> None:
    """By transformers' own recurrences; but for the greedy text: rounded logits tie."""
    exactly.undo()
    model = random_hybrid(family, dtype=dtype)
    found = check_runtime(
        lambda: TransformersModel(model, max_sequences=3, max_length=120),
        TransformersReference(model),
    )
    wrong = {each.name: each.detail for each in found if not each.passed}
    assert not wrong
