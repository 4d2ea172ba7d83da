"""Train an EAGLE-3 head for the target on its own hidden states, and save it as speculators does.

Each step drafts three tokens from every place of a window, fed the window's true tokens and its own
states (training-time test, Li et al. 2025, "EAGLE-3", arXiv 2503.01840). The loss turns from the
divergence, which a new head learns from faster, to the mass that its distribution and the target's
do not share: the probability that a drafted token is refused. A quarter of the windows were written
by the target itself, a quarter are of its training files, half of files that it has not seen.
"""

import argparse
import json
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from outrider.drafters.heads.checkpoint import read_config
from outrider.drafters.heads.nets import HeadNet
from training.checkpoint import load_checkpoint
from training.files import claim_directory, replacing
from training.lessons import load_lessons, unseen_tokens
from training.muon import Muon
from training.objective import EVALUATION_SEED, imitation
from training.schedule import learning_rate_factor
from training.train import BATCH_SEED, MODEL_SEED, STEPS_PER_REPORT, STEPS_PER_SAVE
from training.windows import load_corpus, require_length, sample_windows

DEPTH = 3
"""Tokens drafted from each place."""


def build_parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    parser = argparse.ArgumentParser(prog="python -m training.head", description=__doc__)
    add = parser.add_argument
    add("--data", type=Path, required=True, help="directory written by training.corpus")
    add("--target", type=Path, required=True, help="directory of the target model")
    add("--out", type=Path, required=True, help="directory for the head; must be new or empty")
    add("--source", type=Path, default=Path(sysconfig.get_paths()["stdlib"]), help="of other files")
    add("--seconds", type=float, default=7000, help="time to train")
    add("--lr", type=float, default=0.004, help="peak learning rate")
    add("--inter", type=int, default=768, help="width of the feed-forward network")
    add("--window", type=int, default=256, help="tokens of a window")
    add("--batch", type=int, default=16, help="windows of a step")
    add("--lessons", type=Path, required=True, help="what training.lessons wrote, of the target")
    return parser


def configured(target: LlamaForCausalLM, inter: int) -> dict[str, Any]:
    """Return the head's configuration, as speculators writes it."""
    own = target.config
    count = own.num_hidden_layers
    decoder = LlamaConfig(
        vocab_size=own.vocab_size,
        hidden_size=own.hidden_size,
        intermediate_size=inter,
        num_hidden_layers=1,
        num_attention_heads=own.num_attention_heads,
        num_key_value_heads=own.num_key_value_heads,
        max_position_embeddings=own.max_position_embeddings,
        rms_norm_eps=own.rms_norm_eps,
        bos_token_id=own.bos_token_id,
        eos_token_id=own.eos_token_id,
    )
    return {
        "speculators_model_type": "eagle3",
        "architectures": ["Eagle3DraftModel"],
        "draft_vocab_size": own.vocab_size,
        "eagle_aux_hidden_state_layer_ids": [2, count // 2, count - 3],
        "fc_norm": True,
        "norm_before_residual": True,
        "norm_output": True,
        "speculators_config": {
            "algorithm": "eagle3",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": DEPTH}],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": None, "architectures": own.architectures},
        },
        "transformer_layer_config": decoder.to_dict(),
    }


def new_head(target: LlamaForCausalLM, folder: Path) -> HeadNet:
    """Make a head with random layers, and the target's embedding and output layer (seed 0)."""
    torch.manual_seed(MODEL_SEED)
    net = HeadNet(read_config(folder))
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.02)
        net.embed_tokens.weight.copy_(target.get_input_embeddings().weight)
        net.lm_head.weight.copy_(target.get_output_embeddings().weight)
    net.embed_tokens.weight.requires_grad_(False)
    return net


def drafted(
    net: HeadNet, target: LlamaForCausalLM, windows: Tensor
) -> tuple[list[Tensor], list[Tensor]]:
    """Draft from every place of windows.

    Args:
        net: the head.
        target: whose states it reads.
        windows: int64 [B, T].

    Returns:
        For each depth the head's logits, and the target's for the same tokens, [B, n, V].
    """
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        known = target(windows, output_hidden_states=True, use_cache=False)
    layers = [known.hidden_states[layer] for layer in net.config.target_layers]
    count = windows.shape[1] - 1
    own, taught, cache = [], [], DynamicCache()
    places, diagonal = torch.arange(count), torch.eye(count, dtype=torch.bool)
    with torch.autocast("cpu", torch.bfloat16):
        states = net.fused(torch.stack(layers, 2).flatten(0, 1))
        states = states.view(len(windows), count + 1, -1)[:, :-1]
        for depth in range(DEPTH):
            tokens = torch.nn.functional.pad(windows[:, 1 + depth :], (0, depth))
            # What a place drafts follows its text, and what it drafted before.
            seen = torch.cat([places <= places[:, None], *[diagonal] * depth], 1)
            mask = torch.where(seen, 0.0, -torch.inf)[None, None]
            masks = {"full_attention": mask}
            states = net(tokens, states, (places + depth)[None], masks, cache)
            logits, states = net.finished(states)
            own.append(logits[:, : count - depth])
            taught.append(known.logits[:, 1 + depth :])
    return own, taught


@torch.no_grad()
def shared(net: HeadNet, target: LlamaForCausalLM, tokens: Tensor, window: int) -> list[float]:
    """Return the mass that both distributions share at each depth, on held-out windows."""
    generator = torch.Generator().manual_seed(EVALUATION_SEED)
    windows = sample_windows(tokens, window, 24, generator)
    pairs = zip(*drafted(net, target, windows), strict=True)
    return [imitation(own.float(), taught.float(), 1.0).overlap for own, taught in pairs]


def save(net: HeadNet, config: dict[str, Any], directory: Path) -> None:
    """Write a head in bfloat16, replacing what `directory` held, whole or not at all."""
    kept = {
        name: tensor.detach().bfloat16().contiguous()
        for name, tensor in net.state_dict().items()
        if name != "embed_tokens.weight"
    }
    with replacing(directory) as staged:
        (staged / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        save_file(kept, staged / "model.safetensors", {"format": "pt"})


def train(
    net: HeadNet,
    target: LlamaForCausalLM,
    corpus: tuple[Tensor, Tensor, Tensor, Tensor],
    config: dict[str, Any],
    args: argparse.Namespace,
) -> None:
    """Train `net` until the budget is spent, saving it into ``args.out``.

    Args:
        corpus: windows that the target wrote, and tokens of files that it was trained on, a quarter
            of each batch each; tokens of other files; held-out tokens.
    """
    own_words, seen, unseen, held = corpus
    named = [each for each in net.named_parameters() if each[1].requires_grad]
    inner = [p for name, p in named if p.ndim == 2 and "lm_head" not in name]
    others = [p for name, p in named if p.ndim != 2 or "lm_head" in name]
    optimizers = [
        Muon(inner, args.lr),
        torch.optim.AdamW(others, lr=args.lr / 4, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    peaks = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    generator = torch.Generator().manual_seed(BATCH_SEED)
    start, step = time.monotonic(), 0
    while (elapsed := (time.monotonic() - start) / args.seconds) < 1:
        for optimizer, peak in zip(optimizers, peaks, strict=True):
            optimizer.param_groups[0]["lr"] = peak * learning_rate_factor(step, elapsed)
        quarter = args.batch // 4
        rows = torch.randint(0, len(own_words), (quarter,), generator=generator)
        files = [
            sample_windows(seen, args.window, quarter, generator),
            sample_windows(unseen, args.window, args.batch - 2 * quarter, generator),
        ]
        pairs = drafted(net, target, torch.cat([own_words[rows], *files]))
        weight = min(1.0, 2 * elapsed)
        found = [
            imitation(own.detach().float(), taught.float(), weight)
            for own, taught in zip(*pairs, strict=True)
        ]
        torch.autograd.backward(
            pairs[0], [x.gradient.to(own.dtype) for x, own in zip(found, pairs[0], strict=True)]
        )
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        step += 1
        if step % STEPS_PER_REPORT == 0:
            kept = ", ".join(f"{each.overlap:.3f}" for each in found)
            left = max(0.0, args.seconds - (time.monotonic() - start))
            print(f"step {step}: {kept} kept, {left:.0f} s left", flush=True)
        if step % STEPS_PER_SAVE == 0:
            print(f"step {step}: held out {shared(net, target, held, args.window)}", flush=True)
            save(net, config, args.out)
    save(net, config, args.out)
    print(f"{step} steps, held out {shared(net, target, held, args.window)}, in {args.out}")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = build_parser()
    args = parser.parse_args(argv)
    try:
        corpus = load_corpus(args.data)
        for tokens in (corpus.train, corpus.held):
            require_length(tokens, args.window)
        target = load_checkpoint(args.target, corpus).eval()
        words = load_lessons([args.lessons], args.window).windows.long()
        claim_directory(args.out)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    config = configured(target, args.inter)
    (args.out / "config.json").write_text(json.dumps(config))
    net = new_head(target, args.out)
    unseen = unseen_tokens(args.source, corpus)
    trained = sum(each.numel() for each in net.parameters() if each.requires_grad)
    print(f"{trained / 1e6:.2f}M parameters, {args.seconds:.0f} s to train", flush=True)
    train(net, target.bfloat16(), (words, corpus.train, unseen, corpus.held), config, args)


if __name__ == "__main__":
    main()
