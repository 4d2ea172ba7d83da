"""Write what speculators' own modules make of small random heads: references for a test.

Runs where speculators is installed, which wants an older transformers than this project:

    python -m venv oracle && oracle/bin/pip install speculators==0.9.0
    oracle/bin/python scripts/head_oracle.py tests/data/heads

A file for each head: its tensors, the target's states of a text, tokens, and the logits that
follow; its configuration, seed and versions are in the metadata.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from speculators import SpeculatorsConfig, VerifierConfig
from speculators.models.dflash import DFlashDraftModel, DFlashSpeculatorConfig
from speculators.models.dflash2 import DFlash2DraftModel, DFlash2SpeculatorConfig
from speculators.models.dspark import DSparkDraftModel, DSparkSpeculatorConfig
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
from speculators.models.peagle import PEagleDraftModel, PEagleSpeculatorConfig
from speculators.models.xpress import XPressDraftModel, XPressSpeculatorConfig
from speculators.proposals.greedy import GreedyTokenProposalConfig
from transformers import LlamaConfig, Qwen3Config

VOCAB, WIDTH, TEXT, DRAFTED = 40, 16, 9, 3
LAYERS = [1, 2, 3]

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "eagle3": ("eagle3", {}),
    "eagle3-flags": ("eagle3", {"norm_before_residual": True, "norm_before_fc": True}),
    "eagle3-1": ("eagle3", {"fc_norm": True, "norm_output": True, "layers": 2, "reduced": 17}),
    "eagle3-qwen3": ("eagle3", {"qwen3": True}),
    "peagle": ("peagle", {}),
    "dflash": ("dflash", {}),
    "dflash-sliding": ("dflash", {"layers": 2, "window": 4}),
    "dspark": ("dspark", {}),
    "dspark-gated": ("dspark", {"markov_head_type": "gated", "reduced": 17}),
    "dspark-rnn": ("dspark", {"markov_head_type": "rnn"}),
    "dflash2": ("dflash2", {}),
    "xpress": ("xpress", {}),
    "xpress-anchor": ("xpress", {"sample_from_anchor": True}),
}

KINDS = {
    "eagle3": (Eagle3SpeculatorConfig, Eagle3DraftModel),
    "peagle": (PEagleSpeculatorConfig, PEagleDraftModel),
    "dflash": (DFlashSpeculatorConfig, DFlashDraftModel),
    "dspark": (DSparkSpeculatorConfig, DSparkDraftModel),
    "dflash2": (DFlash2SpeculatorConfig, DFlash2DraftModel),
    "xpress": (XPressSpeculatorConfig, XPressDraftModel),
}


def made(
    kind: str, seed: int, layers: int = 1, window: int = 0, reduced: int = 0, **flags: Any
) -> Any:
    """Make a random head."""
    shape: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": WIDTH,
        "intermediate_size": 24,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "max_position_embeddings": 64,
    }
    if window:
        kinds = ["full_attention"] + ["sliding_attention"] * (layers - 1)
        shape |= {"layer_types": kinds, "sliding_window": window, "use_sliding_window": True}
    eagle = kind in ("eagle3", "peagle")
    qwen3 = flags.pop("qwen3", False) or not eagle
    decoder = (Qwen3Config if qwen3 else LlamaConfig)(**shape)
    decoder._attn_implementation = "eager"
    ids = "eagle_aux_hidden_state_layer_ids" if eagle else "aux_hidden_state_layer_ids"
    given: dict[str, Any] = {ids: LAYERS, "draft_vocab_size": reduced or VOCAB, **flags}
    if kind != "eagle3":
        given["mask_token_id"] = VOCAB - 1
    if not eagle:
        given["block_size"] = 1 + DRAFTED
    ranks = {"dspark": "markov_rank", "dflash2": "selector_rank", "xpress": "xpress_rank"}
    given |= {ranks[kind]: 4} if kind in ranks else {}
    given |= {"conv_group_size": 4, "selector_top_k": 6} if kind == "dflash2" else {}
    settings, model = KINDS[kind]
    config = settings(
        transformer_layer_config=decoder,
        speculators_config=SpeculatorsConfig(
            algorithm=kind,
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=DRAFTED)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
        ),
        **given,
    )
    torch.manual_seed(seed)
    head = model(config).float().eval()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(
                torch.randn_like(parameter) * 0.35
                if parameter.ndim > 1
                else torch.rand_like(parameter) + 0.5
            )
        if reduced:
            kept = torch.randperm(VOCAB)[:reduced].sort().values
            head.d2t.copy_(kept - torch.arange(reduced))
            head.t2d.zero_()[kept] = True
    return head


def causal(length: int, window: int | None = None) -> torch.Tensor:
    """Make an additive causal mask."""
    places = torch.arange(length)
    seen = places <= places[:, None]
    if window is not None:
        seen = seen & (places > places[:, None] - window)
    return torch.where(seen, 0.0, -torch.inf)[None, None]


def target_ids(head: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Bring the head's own tokens to the target's."""
    return tokens if head.d2t is None else tokens + head.d2t[tokens]


def of_eagle(head: Any, states: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return the logits of drafted tokens [DRAFTED, n], each given those before it."""
    parallel = isinstance(head, PEagleDraftModel)
    raw = states.flatten(1)[None]
    ids = tokens[:, 1:]
    if parallel:
        raw = torch.cat([raw, head.mask_hidden.expand(1, DRAFTED - 1, -1)], 1)
        ids = torch.cat([ids, ids.new_full((1, DRAFTED - 1), head.mask_token_id)], 1)
    if head.input_norm is not None:
        raw = head.input_norm(raw)
    if head.fc_norm is not None:
        parts = raw.chunk(len(head.fc_norm), -1)
        raw = torch.cat([norm(part) for norm, part in zip(head.fc_norm, parts, strict=True)], -1)
    before, found = head.fc(raw), []
    for _ in range(1 if parallel else DRAFTED):
        places = 1 + torch.arange(ids.shape[1])[None]
        hidden = torch.cat([head.embed_tokens(ids), before], -1)
        turn = head.rotary_emb(hidden, places)
        for layer in head.layers:
            hidden = layer(
                hidden,
                attention_mask=causal(ids.shape[1]),
                position_ids=places,
                position_embeddings=turn,
            )
            hidden = hidden[0] if isinstance(hidden, tuple) else hidden
        normed = head.norm(hidden)
        logits = head.lm_head(normed)
        found.append(logits[0, -1])
        new = target_ids(head, logits[:, -1:].argmax(-1))
        before = torch.cat([before, (normed if head.config.norm_output else hidden)[:, -1:]], 1)
        ids = torch.cat([ids, new], 1)
    return logits[0, -DRAFTED:] if parallel else torch.stack(found)


def of_block(head: Any, states: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return the logits of drafted tokens, each given the likeliest before it."""
    config, size = head.config, head.block_size
    context = head.hidden_norm(head.fc(states.flatten(1)[None]))
    length = context.shape[1]
    block = torch.cat([tokens[:, -1:], tokens.new_full((1, size - 1), head.mask_token_id)], 1)
    hidden = head.embed_tokens(block)
    turn = head.rotary_emb(hidden, torch.arange(length + size)[None])
    for place, layer in enumerate(head.layers):
        mask = torch.zeros(1, 1, size, length + size)
        if place in head.sliding_window_indices:
            mask[..., : max(0, length - head.sliding_window)] = -torch.inf
            if not config.sliding_window_non_causal:
                mask[..., length:] = causal(size)
        found = layer(
            target_hidden=context,
            hidden_states=hidden,
            attention_mask=mask,
            position_embeddings=turn,
        )
        hidden = found[0] if isinstance(found, tuple) else found
    hidden = head.norm(hidden)
    logits = head.lm_head(hidden)
    first = 0 if config.sample_from_anchor else 1
    if isinstance(head, XPressDraftModel):
        return refined(head, hidden, logits, tokens)[0, first:][:DRAFTED]
    made, before = [], tokens[:, -1:].expand(1, size).clone()
    for place in range(first, first + DRAFTED):
        if isinstance(head, DSparkDraftModel):
            bias = head.markov_head.block_bias(prev_token_ids=before, hidden_states=hidden)
            made.append((logits + bias)[0, place])
        elif isinstance(head, DFlash2DraftModel):
            ids, scores = head.candidate_selector.select(logits, hidden, before)
            whole = torch.full_like(logits, -torch.inf).scatter(-1, ids, scores)
            made.append(whole[0, place])
        else:
            made.append(logits[0, place])
        if place + 1 < size:
            before[0, place + 1] = target_ids(head, made[-1].argmax())
    return torch.stack(made)


def refined(
    head: Any, hidden: torch.Tensor, logits: torch.Tensor, tokens: torch.Tensor
) -> torch.Tensor:
    """Resolve a block by passes, as XPress's configuration describes."""
    cache = head.refiner_head.hidden_cache(hidden)
    found = logits
    for _ in range(head.config.num_jacobi_passes):
        guess = target_ids(head, found.argmax(-1))
        if head.config.sample_from_anchor:
            before = torch.cat([tokens[:, -1:], guess[:, :-1]], 1)
        else:
            guess[:, :1] = tokens[:, -1:]
            before = torch.cat([tokens[:, -2:-1], guess[:, :-1]], 1)
        found = logits + head.refiner_head.block_bias(before, hcache=cache)
    return found


@torch.no_grad()
def main() -> None:
    """Write all cases."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (name, (kind, flags)) in enumerate(CASES.items()):
        head = made(kind, seed, **flags)
        tokens = torch.randint(VOCAB - 1, (1, TEXT))
        states = torch.randn(TEXT - 1, len(LAYERS), WIDTH)
        logits = (of_eagle if kind in ("eagle3", "peagle") else of_block)(head, states, tokens)
        kept = {
            each: x for each, x in head.state_dict().items() if not each.startswith("verifier_")
        }
        config = head.config.to_dict() | {
            "transformer_layer_config": head.config.transformer_layer_config.to_dict()
        }
        facts = {
            "config": json.dumps(config, default=str),
            "seed": str(seed),
            **{each: version(each) for each in ("speculators", "transformers", "torch")},
        }
        known = {"text.tokens": tokens, "text.states": states, "text.logits": logits}
        whole = {
            each: x.contiguous().clone() for each, x in (kept | known).items() if x is not None
        }
        save_file(whole, folder / f"{name}.safetensors", facts)
        print(name, tuple(logits.shape))


if __name__ == "__main__":
    main()
