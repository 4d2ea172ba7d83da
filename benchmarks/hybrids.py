"""Rounds of hybrid models beside transformers' own step, with random weights."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
import transformers as tf

from outrider import TransformersModel
from outrider.types.records import Distributions, DraftProposal, Prefix

from .report import Report, Say, Scope

DEPTH, KEPT = 4, 0.7
"""Drafts of a round, and how likely each is kept if those before it are."""

_PROMPT = 60
_WARM = 2
_COMMON: dict[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 768,
    "intermediate_size": 2304,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 2,
}


def _delta() -> Any:
    return tf.Qwen3_5TextConfig(
        **_COMMON,
        head_dim=128,
        linear_num_key_heads=8,
        linear_num_value_heads=16,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.25,
            "mrope_section": [8, 4, 4],
        },
    )


def _mamba() -> Any:
    return tf.GraniteMoeHybridConfig(
        **_COMMON,
        shared_intermediate_size=2304,
        num_local_experts=0,
        mamba_n_heads=24,
        mamba_d_head=64,
        mamba_n_groups=1,
        mamba_d_state=128,
        mamba_expand=2,
    )


MODELS = {"gated delta rule (Qwen 3.5)": _delta, "Mamba 2 (Granite 4)": _mamba}


class _Own:
    """transformers' own decoding, a token a forward."""

    depth = 0

    def __init__(self, model: Any, texts: Sequence[Sequence[int]]) -> None:
        self._model, self._cache = model, tf.DynamicCache(config=model.config)
        self._compute(torch.tensor(texts))

    def verify(self, texts: Sequence[Sequence[int]], drafts: Sequence[Sequence[int]]) -> None:
        """Compute the last token of texts."""
        del drafts
        self._compute(torch.tensor([text[-1:] for text in texts]))

    @torch.inference_mode()
    def _compute(self, ids: torch.Tensor) -> None:
        self._model(ids, past_key_values=self._cache, use_cache=True, logits_to_keep=1)


class _Ours:
    """Outrider's rounds of so many drafts."""

    def __init__(self, model: Any, depth: int, texts: Sequence[Sequence[int]]) -> None:
        self.depth = depth
        self.target = TransformersModel(model, max_sequences=len(texts), max_length=1024)
        self.verify(texts, [[0] * depth] * len(texts))

    def verify(self, texts: Sequence[Sequence[int]], drafts: Sequence[Sequence[int]]) -> None:
        """Verify a chain after each text."""
        ids = torch.tensor(drafts, dtype=torch.int64).view(len(texts), self.depth)
        made = Distributions(point_masses=ids)
        proposal = DraftProposal(ids, np.full(len(texts), self.depth), made)
        self.target.verify([Prefix(row, text) for row, text in enumerate(texts)], proposal)


class _Player:
    """Decodes texts of random tokens, of which some drafts are kept."""

    def __init__(self, made: _Own | _Ours, texts: Sequence[Sequence[int]], vocab: int) -> None:
        self.made, self._vocab = made, vocab
        self._texts = [list(text) for text in texts]
        self._rng = np.random.default_rng(3)
        self.spent: list[float] = []
        self.emitted: list[float] = []

    def turn(self) -> None:
        """Decode a round, and keep how long it took."""
        depth, rng = self.made.depth, self._rng
        drafts = [rng.integers(self._vocab, size=depth).tolist() for _ in self._texts]
        start = perf_counter()
        self.made.verify(self._texts, drafts)
        self.spent.append(perf_counter() - start)
        kept = [int((rng.random(depth) < KEPT).cumprod().sum()) for _ in drafts]
        for text, draft, count in zip(self._texts, drafts, kept, strict=True):
            text.extend([*draft[:count], int(rng.integers(self._vocab))])
        self.emitted.append(float(np.mean(kept)) + 1)

    @property
    def token_ms(self) -> float:
        """Milliseconds a token of one row."""
        return 1e3 * median(self.spent[_WARM:]) / float(np.mean(self.emitted[_WARM:]))


def run(scope: Scope, say: Say) -> Report:
    """Let all take turns, round by round."""
    rows = []
    for name, config in MODELS.items():
        torch.manual_seed(0)
        model: Any = tf.AutoModelForCausalLM.from_config(config()).eval()
        for batch in scope.batches or (1, 4):
            say(f"{name}, {batch} rows")
            size = model.config.vocab_size
            texts = np.random.default_rng(0).integers(size, size=(batch, _PROMPT)).tolist()
            ours = [_Ours(model, depth, texts) for depth in (0, DEPTH)]
            field: list[_Own | _Ours] = [_Own(model, texts), *ours]
            players = [_Player(each, texts, size) for each in field]
            for _ in range((scope.rounds or 30) + _WARM):
                for player in players:
                    player.turn()
            own, plain, drafted = (player.token_ms for player in players)
            state = ours[0].target._architecture.state_bytes / 2**20
            rows.append(
                {
                    "model": name,
                    "batch": batch,
                    "own_ms": own,
                    "plain_ms": plain,
                    "drafted_ms": drafted,
                    "speedup": own / drafted,
                    "state_mib": state,
                }
            )
    parameters = sum(each.numel() for each in model.parameters()) / 1e6
    note = (
        f"Random weights, {parameters:.0f}M parameters and thereabouts, float32, prompts of "
        f"{_PROMPT} tokens; {DEPTH} drafts a round, of which each is kept at {KEPT:.0%} if those "
        "before it are; what drafts is not timed. Milliseconds a token of one row, medians of "
        "rounds in turn; transformers' own is one token a forward over its cache."
    )
    return Report(note, rows)
