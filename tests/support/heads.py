"""Small random draft heads, written as checkpoints, and what they draft computed anew."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig, Qwen3Config

from outrider.drafters.heads.checkpoint import read_config
from outrider.drafters.heads.mtp import Layout, MtpNet, mtp_config
from outrider.drafters.heads.nets import HeadNet
from outrider.types.records import DraftProposal, HiddenStates, Prefix

LAYERS = (1, 2, 3)
MASK = 60
EAGLE = ("eagle3", "peagle")


class Seen:
    """Keeps the hidden states that a runtime gives."""

    def __init__(self) -> None:
        self._given: list[HiddenStates] = []

    def known(self, prefix: Prefix) -> int:
        """Ask for none but those that are computed anyway."""
        return len(prefix)

    def observe_round(self, hidden: Sequence[HiddenStates]) -> None:
        """Receive them."""
        self._given += hidden

    def states(self, sequence_id: int, start: int) -> Tensor:
        """Take those of a sequence, whose tokens are to begin at `start` and follow each other."""
        own = [each for each in self._given if each.prefix.sequence_id == sequence_id]
        self._given = [each for each in self._given if each.prefix.sequence_id != sequence_id]
        for each in own:
            assert each.start == start
            start += len(each.states)
            assert len(each.prefix) == start
        return torch.cat([each.states for each in own])


def head_checkpoint(
    folder: Path,
    model: Any,
    kind: str = "eagle3",
    *,
    reduced: int | None = None,
    layers: int = 1,
    window: int | None = None,
    head_dim: int = 8,
    seed: int = 0,
    **flags: Any,
) -> Path:
    """Write a random head for a model in speculators' layout.

    Args:
        folder: that it is written to.
        model: of transformers.
        kind: of head.
        reduced: the number of tokens that it drafts; None for all.
        layers: of the head.
        window: of all layers but the first; None for none.
        head_dim: width of a head of attention.
        seed: of its weights.
        flags: of its configuration.
    """
    inner = model.config
    shape: dict[str, Any] = {
        "vocab_size": inner.vocab_size,
        "hidden_size": inner.hidden_size,
        "intermediate_size": 48,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": inner.max_position_embeddings,
        "head_dim": head_dim,
    }
    if window is not None:
        kinds = ["full_attention"] + ["sliding_attention"] * (layers - 1)
        shape |= {"layer_types": kinds, "sliding_window": window, "use_sliding_window": True}
    normed = kind not in EAGLE or window is not None
    decoder = (Qwen3Config if normed else LlamaConfig)(**shape)
    eagle = {"eagle_aux_hidden_state_layer_ids": list(LAYERS)}
    block = {"aux_hidden_state_layer_ids": list(LAYERS), "block_size": 5}
    ranks = {"markov_rank": 4, "selector_rank": 4, "selector_top_k": 7, "xpress_rank": 4}
    given = {
        "speculators_model_type": kind,
        "transformer_layer_config": decoder.to_dict(),
        "draft_vocab_size": reduced or inner.vocab_size,
        "mask_token_id": MASK,
        "conv_group_size": 8,
        **(eagle if kind in EAGLE else block | ranks),
        **flags,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(given, default=str))
    torch.manual_seed(seed)
    config = read_config(folder)
    net: Any = HeadNet(config, normed=normed)
    net = net.double()
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(0, 0.35)
            else:
                parameter.uniform_(0.5, 1.5)
    found = {name: each for name, each in net.state_dict().items() if "embed_tokens" not in name}
    if reduced is not None:
        kept = torch.randperm(inner.vocab_size)[:reduced].sort().values
        found["d2t"] = kept - torch.arange(reduced)
        found["t2d"] = torch.zeros(inner.vocab_size, dtype=torch.bool).index_fill_(0, kept, True)
    whole = {name: each.contiguous() for name, each in found.items()}
    save_file(whole, folder / "model.safetensors")
    return folder


def mtp_checkpoint(folder: Path, model: Any, layout: Layout, seed: int = 0) -> Path:
    """Write a model with a random layer for multi-token prediction, as checkpoints have it.

    Args:
        folder: that it is written to.
        model: of transformers.
        layout: of the layer's tensors.
        seed: of its weights.
    """
    torch.manual_seed(seed)
    net = MtpNet(mtp_config(model), model, layout).to(model.dtype)
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(0, 0.35)
            else:
                parameter.uniform_(-0.5, 0.5)
    model.save_pretrained(folder)
    file = folder / "model.safetensors"
    written = {own: part for part, own in layout.parts.items()}
    begins, found = layout.begins.format(model.config.num_hidden_layers), load_file(file)
    for name, tensor in net.state_dict().items():
        own = next((each for each in written if name.startswith(each)), None)
        if own not in (None, "embed_tokens.", "lm_head."):  # usually the target's
            assert own is not None
            there = begins + written[own] + name.removeprefix(own)
            found |= {key: each.contiguous() for key, each in _by_expert(there, tensor)}
    save_file(found, file, {"format": "pt"})
    return folder


def _by_expert(name: str, tensor: Tensor) -> list[tuple[str, Tensor]]:
    """Write the weights of experts one by one."""
    if ".experts." not in name:
        return [(name, tensor)]
    begins, kind = name.rsplit(".", 1)
    parts = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}[kind]
    return [
        (f"{begins}.{expert}.{part}.weight", each.clone())
        for expert, own in enumerate(tensor)
        for part, each in zip(parts, own.chunk(len(parts)), strict=True)
    ]


def drafted_logits(net: Any, model: Any, text: list[int], path: list[int]) -> Tensor:
    """The head's logits after a text and drafted tokens, all computed from the beginning."""
    with torch.inference_mode():
        found = model(input_ids=torch.tensor([text]), output_hidden_states=True).hidden_states
        states = torch.stack([found[layer][0] for layer in net.config.target_layers], 1)[:-1]
        if net.config.eagle:
            return _of_eagle(net, net.fused(states)[None], text[1:], path)
        return _of_block(net, net.fused(states), text, path)


def compared(
    seen: Sequence[tuple[Sequence[Prefix], DraftProposal]],
    drafter: Any,
    model: Any,
    tolerance: float = 1e-6,
) -> int:
    """Compare what was proposed with what the network says; return how many tokens there were."""
    count = 0
    for prefixes, proposal in seen:
        for row, prefix in enumerate(prefixes):
            for place in range(int(proposal.lengths[row])):
                path = proposal.tokens[row, :place].tolist()
                logits = drafted_logits(drafter.model.net, model, prefix.tokens.tolist(), path)
                expected = drafter._aligned(logits).softmax(-1)
                assert proposal.distributions is not None
                assert proposal.distributions.probs is not None
                found = proposal.distributions.probs[row, place]
                torch.testing.assert_close(found.double(), expected, rtol=0, atol=tolerance)
                count += 1
    return count


def _of_eagle(net: Any, before: Tensor, tokens: list[int], path: list[int]) -> Tensor:
    masked = net.config.kind == "peagle"
    for token in [*path, None]:
        length = len(tokens)
        places = torch.arange(length)
        masks = {}
        for kind in net.config.decoder.layer_types:
            seen = places <= places[:, None]
            if "sliding" in kind:
                seen = seen & (places > places[:, None] - net.config.decoder.sliding_window)
            masks[kind] = torch.where(seen, 0.0, -torch.inf).to(before)[None, None]
        logits, recurring = net.finished(net(torch.tensor([tokens]), before, places[None], masks))
        if token is not None:
            tokens = [*tokens, MASK if masked else token]
            hidden = net.mask_hidden.view(1, len(LAYERS), -1) if masked else None
            new = recurring[:, -1:] if hidden is None else net.fused(hidden)[None]
            before = torch.cat([before, new], 1)
    found: Tensor = logits[0, -1]
    return found


class _After:
    """Puts keys and values after those of a context, [n, heads, D] of each layer."""

    def __init__(self, context: list[tuple[Tensor, Tensor]]) -> None:
        self._context = context

    def update(self, keys: Tensor, values: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        before, others = (part.transpose(0, 1)[None] for part in self._context[layer])
        return torch.cat([before, keys], 2), torch.cat([others, values], 2)


def _of_block(net: Any, states: Tensor, text: list[int], path: list[int]) -> Tensor:
    config, length = net.config, len(states)
    size = config.number("block_size", 0)
    context = net.context(states, torch.arange(length))
    places, masks = torch.arange(length + size), {}
    for kind in config.decoder.layer_types:
        seen = torch.ones(size, length + size, dtype=torch.bool)
        if "sliding" in kind:
            # The last token stands at `length`.
            seen[:, :length] = places[:length] >= length - config.decoder.sliding_window
            if not config.both_ways:
                seen[:, length:] = torch.ones(size, size).tril().bool()
        masks[kind] = torch.where(seen, 0.0, -torch.inf).to(states)[None, None]
    tokens = torch.tensor([[text[-1], *[MASK] * (size - 1)]])
    made = net(tokens, None, places[None, length:], masks, _After(context))
    logits, states = net.finished(made, torch.tensor([[text[-1], text[-2]]]))
    skipped, found, memory = [] if config.anchored else [text[-1]], logits, None
    for place, before in enumerate([*skipped, text[-1], *path]):
        known = torch.tensor([before])
        found, memory = net.draws(logits[:, place], states[:, place], known, memory)
    own: Tensor = found[0]
    return own


def trained(folder: Path, model: Any, steps: int = 150) -> list[list[int]]:
    """Train the EAGLE head of a checkpoint for a while, and return texts of the model.

    One token is drafted, from the true ones before it; the loss is total variation.
    """
    torch.manual_seed(5)
    ids = torch.randint(1, model.config.vocab_size - 1, (24, 1))
    with torch.no_grad():
        for _ in range(30):
            probs = model(input_ids=ids).logits[:, -1].softmax(-1)
            ids = torch.cat([ids, torch.multinomial(probs, 1)], 1)
        found = model(input_ids=ids, output_hidden_states=True)
    net = HeadNet(read_config(folder)).double()
    weights = load_file(folder / "model.safetensors")
    shared = {"embed_tokens.weight": model.get_input_embeddings().weight.detach()}
    net.load_state_dict(shared | weights)
    states = torch.stack([found.hidden_states[n] for n in net.config.target_layers], 2)
    probs = found.logits.softmax(-1)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    length = ids.shape[1]
    mask = torch.full((1, 1, length, length), -torch.inf, dtype=torch.float64).triu(1)
    for _ in range(steps):
        fused = net.fc(states.flatten(2))
        before = torch.cat([torch.zeros_like(fused[:, :1]), fused[:, :-1]], 1)
        places = torch.arange(length)[None]
        masks = {"full_attention": mask}
        states_of = net(ids, before, places, masks)
        logits, _ = net.finished(states_of)
        loss = (logits.softmax(-1) - probs)[:, 1:].abs().sum(-1).mean() / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    kept = {name: x.contiguous() for name, x in net.state_dict().items() if "embed" not in name}
    save_file(kept, folder / "model.safetensors")
    texts: list[list[int]] = ids.tolist()
    return texts
