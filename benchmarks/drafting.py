"""A drafted token: the drafting loop beside the draft's bare forward and its matrix products."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch.nn.functional import linear
from transformers import StaticCache

import outrider
import outrider_demo as demo
from outrider import (
    ModelDrafter,
    SamplingParams,
    SpeculativeConfig,
    SpeculativeDecoder,
    TransformersModel,
)

from .report import Report, Spread, add_row, columns

DEPTH, PROMPT_TOKENS, _SKIPPED, _PASS_ROUNDS = 4, 150, 3, 50
_TEMPERATURES = (0.0, 0.8)
_ROW = "drafting"
_OWN = "drafting, forwards answered"
_STATIC = "bare forward, StaticCache"
_PRODUCTS = "its matrix products alone"


def run(rounds: int) -> Report:
    """Time the parts of about `rounds` rounds in turn."""
    pair = outrider.load("demo", device="cpu", dtype="float32", max_sequences=1)
    assert isinstance(pair.model_drafter, ModelDrafter)
    draft = pair.model_drafter.model
    assert isinstance(draft, TransformersModel)
    prompt = pair.tokenizer.encode("\n\n".join(demo.PROMPTS))[:PROMPT_TOKENS]
    static = _static_forward(draft.hf_model, prompt)
    products = _matrix_products(draft.hf_model)
    samples: dict[tuple[str, float], list[float]] = {}
    for _ in range(-(-rounds // _PASS_ROUNDS)):
        for temperature in _TEMPERATURES:
            found = _drafting(pair, prompt, temperature, min(rounds, _PASS_ROUNDS))
            for seconds in found:
                samples.setdefault((_ROW, temperature), []).append(seconds)
                samples.setdefault((_STATIC, temperature), []).append(static())
                samples.setdefault((_PRODUCTS, temperature), []).append(products())
            answer = torch.randn(1, 1, draft.vocab_size)
            with patch.object(
                draft.hf_model, "forward", lambda logits=answer, **_: SimpleNamespace(logits=logits)
            ):
                own = _drafting(pair, prompt, temperature, min(rounds, _PASS_ROUNDS))
                samples.setdefault((_OWN, temperature), []).extend(own)
    table = columns("a drafted token, milliseconds: median (and quartiles)", "", "time", "timings")
    rows = []
    for (name, temperature), seconds_each in samples.items():
        spread = Spread.of(seconds_each)
        add_row(table, f"{name}, T {temperature:g}", str(spread), str(len(seconds_each)))
        rows.append({"what": name, "temperature": temperature, **spread.figures()})
    regime = (
        f"demo draft (1 layer, hidden 384, vocabulary 4096), batch 1, float32, CPU, eager, "
        f"k = {DEPTH}, prompt of {PROMPT_TOKENS} tokens; a round's draft time over its {DEPTH} "
        "tokens, then as many bare forwards of one token, then their products, in turn; "
        "'answered': with each forward's output given, what drafting costs beside its forwards"
    )
    return Report("drafting", regime, table, {"regime": regime, "k": DEPTH, "rows": rows})


def _drafting(pair: Any, prompt: list[int], temperature: float, rounds: int) -> Iterator[float]:
    """Seconds of each drafted token, round by round."""
    config = SpeculativeConfig(num_speculative_tokens=DEPTH, depth="fixed")
    decoder = SpeculativeDecoder(pair.target, pair.model_drafter, config=config)
    params = SamplingParams(
        max_tokens=(DEPTH + 1) * (_SKIPPED + rounds + 1),
        temperature=temperature,
        ignore_eos=True,
        seed=1,
    )
    batch = decoder.pack(decoder.start(prompt, params))
    for count in range(_SKIPPED + rounds):
        step = decoder.step(batch)
        batch = step.batch
        if count >= _SKIPPED:
            yield step.record.draft_s / DEPTH
    decoder.release(batch.states, discard=True)


def _static_forward(hf_model: Any, prompt: list[int]) -> Callable[[], float]:
    """Times forwards of one token on transformers' StaticCache."""
    cache = StaticCache(config=hf_model.config, max_cache_len=256)
    token = torch.tensor([[prompt[0]]])
    with torch.inference_mode():
        hf_model(input_ids=torch.tensor([prompt]), past_key_values=cache, use_cache=True)

    @torch.inference_mode()
    def timed() -> float:
        cache.layers[0].cumulative_length.fill_(len(prompt))
        start = perf_counter()
        for _ in range(DEPTH):
            hf_model(input_ids=token, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return (perf_counter() - start) / DEPTH

    return timed


def _matrix_products(hf_model: Any) -> Callable[[], float]:
    """Times the products with the model's matrices, without which there is no forward."""
    layers = [module for module in hf_model.modules() if isinstance(module, torch.nn.Linear)]
    given = {layer.in_features: torch.randn(1, layer.in_features) for layer in layers}

    @torch.inference_mode()
    def timed() -> float:
        start = perf_counter()
        for _ in range(DEPTH):
            for layer in layers:
                linear(given[layer.in_features], layer.weight)
        return (perf_counter() - start) / DEPTH

    return timed
