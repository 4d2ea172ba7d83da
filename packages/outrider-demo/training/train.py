"""Train a Llama model for a fixed wall-clock time; with --teacher, distil one into it.

Weight matrices inside the network are trained with Muon, the embedding and the norms with AdamW, in
bfloat16 autocast on the CPU. Every 300 steps, and at the end, the held-out loss is printed and the
model saved (float32).
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch.nn import Parameter
from transformers import LlamaConfig, LlamaForCausalLM

from training.checkpoint import load_checkpoint, save_checkpoint
from training.corpus import END_OF_TEXT_ID
from training.files import claim_directory
from training.muon import Muon
from training.objective import loss_on, sampled_loss
from training.schedule import learning_rate_factor
from training.windows import Corpus, load_corpus, require_length, sample_windows

MODEL_SEED = 0
BATCH_SEED = 1
MAX_POSITIONS = 1024
STEPS_PER_REPORT = 20
STEPS_PER_SAVE = 300


def build_parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    parser = argparse.ArgumentParser(
        prog="python -m training.train",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--data", type=Path, required=True, help="directory written by training.corpus")
    add("--out", type=Path, required=True, help="directory for the model; must be new or empty")
    add("--seconds", type=float, required=True, help="wall-clock budget of the training loop")
    add("--teacher", type=Path, help="distil the model in this directory instead of learning text")
    add("--init", type=Path, help="continue from the model in this directory; its sizes are kept")
    add("--hidden", type=int, default=288, help="width (default: %(default)s)")
    add("--layers", type=int, default=16, help="number of layers (default: %(default)s)")
    add("--inter", type=int, default=768, help="width inside the MLPs (default: %(default)s)")
    add("--heads", type=int, default=6, help="attention heads (default: %(default)s)")
    add("--window", type=int, default=512, help="tokens in a sequence (default: %(default)s)")
    add("--batch", type=int, default=12, help="sequences in a step (default: %(default)s)")
    add("--lr", type=float, default=4e-3, help="peak learning rate (default: %(default)s)")
    add("--compile", action="store_true", help="compile the model; counts against the budget")
    return parser


def check_arguments(args: argparse.Namespace) -> None:
    """Check the sizes and rates.

    Raises:
        ValueError: With the argument and what is allowed.
    """
    for name in ("seconds", "lr", "hidden", "layers", "inter", "heads", "window", "batch"):
        value = getattr(args, name)
        if not value > 0:
            raise ValueError(f"--{name} {value}: expected more than 0")
    if args.window > MAX_POSITIONS:
        raise ValueError(f"--window {args.window}: expected at most {MAX_POSITIONS}")
    if args.hidden % (2 * args.heads):
        raise ValueError(
            f"--hidden {args.hidden}: expected a multiple of twice --heads {args.heads}, since "
            "rotary embeddings need heads of an even width"
        )


def new_model(args: argparse.Namespace, vocab_size: int) -> LlamaForCausalLM:
    """Return a randomly initialised Llama with tied embeddings (seed 0)."""
    torch.manual_seed(MODEL_SEED)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocab_size,
            hidden_size=args.hidden,
            num_hidden_layers=args.layers,
            intermediate_size=args.inter,
            num_attention_heads=args.heads,
            num_key_value_heads=args.heads,
            max_position_embeddings=MAX_POSITIONS,
            tie_word_embeddings=True,
            bos_token_id=END_OF_TEXT_ID,
            eos_token_id=END_OF_TEXT_ID,
        )
    )


def build_optimizers(model: LlamaForCausalLM, lr: float) -> list[torch.optim.Optimizer]:
    """Return Muon over the matrices inside the network and AdamW over all else."""
    matrices: list[Parameter] = []
    others: list[Parameter] = []
    for name, param in model.named_parameters():
        is_inner_matrix = param.ndim == 2 and "embed" not in name
        (matrices if is_inner_matrix else others).append(param)
    return [
        Muon(matrices, lr),
        torch.optim.AdamW(others, lr=lr, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def train(
    model: LlamaForCausalLM,
    teacher: LlamaForCausalLM | None,
    corpus: Corpus,
    args: argparse.Namespace,
) -> None:
    """Train `model` in place until the budget is spent, saving it into ``args.out``.

    A step that has begun is finished, and the last evaluation and save come after it, so a run
    takes a little longer than its budget.
    """
    optimizers = build_optimizers(model, args.lr)
    generator = torch.Generator().manual_seed(BATCH_SEED)
    model.train()
    start = time.monotonic()
    network = torch.compile(model) if args.compile else model

    def evaluate() -> float:
        model.eval()
        loss = sampled_loss(network, teacher, corpus.held, args.window)
        model.train()
        return loss

    step = 0
    while (elapsed := (time.monotonic() - start) / args.seconds) < 1:
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = args.lr * learning_rate_factor(step, elapsed)
        windows = sample_windows(corpus.train, args.window, args.batch, generator)
        loss = loss_on(network, teacher, windows)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        step += 1
        if step % STEPS_PER_REPORT == 0:
            seconds = time.monotonic() - start
            tokens_per_second = step * args.batch * args.window / seconds
            print(
                f"step {step}: loss {loss.item():.3f}, {tokens_per_second:,.0f} tokens/s, "
                f"{seconds:.0f} s spent, {max(0.0, args.seconds - seconds):.0f} s left",
                flush=True,
            )
        if step % STEPS_PER_SAVE == 0:
            print(f"step {step}: held-out loss {evaluate():.3f}", flush=True)
            save_checkpoint(model, args.out, corpus.tokenizer_path)
    save_checkpoint(model, args.out, corpus.tokenizer_path)
    print(f"{step} steps, held-out loss {evaluate():.4f}, saved in {args.out}", flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = build_parser()
    args = parser.parse_args(argv)
    try:
        check_arguments(args)
        corpus = load_corpus(args.data)
        for tokens in (corpus.train, corpus.held):
            require_length(tokens, args.window)
        teacher = load_checkpoint(args.teacher, corpus).bfloat16().eval() if args.teacher else None
        model = (
            load_checkpoint(args.init, corpus) if args.init else new_model(args, corpus.vocab_size)
        )
        claim_directory(args.out)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    parameters = sum(param.numel() for param in model.parameters())
    print(f"{parameters / 1e6:.2f}M parameters, {args.seconds:.0f} s to train", flush=True)
    train(model, teacher, corpus, args)


if __name__ == "__main__":
    main()
