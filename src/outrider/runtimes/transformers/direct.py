"""Forwards of models shaped like Llama with fewer calls, and the same numbers but for rounding.

Of a forward of one token through a model of some ten million parameters most is not the products of
matrices. Here its layers are run in one loop: the model's own embedding, projections, activation
and head, called as modules, attention straight into the slot cache, a norm in one call, and a
rotation without halves being put together again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm
from torch.nn.modules import module as every_module
from transformers import DynamicCache
from transformers.activations import SiLUActivation

from . import attention, team
from .products import apart, loops_are_faster, together
from .ragged import Ragged
from .rotary import turning_for

if team.AVAILABLE:
    from . import host_attention, host_rows

_SHAPED = ("Llama", "Mistral")
"""What transformers calls the models whose layers are as `_run` has them."""

_PASSED_OVER = ("ForCausalLM", "Model", "DecoderLayer", "Attention", "MLP", "RMSNorm")
"""And their modules that are not called here."""

_SAME = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")
"""And of those that are, the ones that are given the same input."""

_SILU = {kind: kind.forward for kind in (nn.SiLU, SiLUActivation)}
"""Classes of the activation that loops are made for, and their forwards."""

_ROUNDING = 8
"""By how many units in the last place of the largest logit those in float32 may be off."""

_UNREAD = 16
"""From how many columns without logits on it is worth leaving out what nobody reads of them."""

_PROBE = 5
"""How many tokens both ways are compared on."""


def forward_of(hf_model: Any) -> DirectForward | ModuleForward:
    """What computes a model's logits over a cache: directly where that gives the same.

    Args:
        hf_model: a causal language model in evaluation mode, whose attention is Outrider's or not.

    Returns:
        A function of `input_ids` [B, q], `attention_mask`, `position_ids` [B or 1, q],
        `past_key_values` and `logits_to_keep`, all by name, for logits [B, keep, V]; and of
        `ragged`, which columns have to be computed: logits of others mean nothing.
    """
    stock = _stock(hf_model)
    direct = DirectForward(hf_model, stock) if stock else None
    return direct if direct is not None and direct.agrees() else ModuleForward(hf_model)


def same_inputs(hf_model: Any) -> list[list[nn.Module]]:
    """The layers of a model that are given the same input where it is run directly."""
    modules = hf_model.modules() if _stock(hf_model) else ()
    found = ([module._modules.get(name) for name in names] for module in modules for names in _SAME)
    return [layers for layers in found if all(layers) and len(set(layers)) == len(layers)]


class ModuleForward:
    """The model's own forward.

    Args:
        hf_model: the model.
    """

    reads_apart = False

    def __init__(self, hf_model: Any) -> None:
        self.hf_model = hf_model

    def __call__(self, *, ragged: Ragged | None = None, **inputs: Any) -> Tensor:
        """Logits [B, keep, V] of all columns; see `forward_of`."""
        logits: Tensor = self.hf_model(use_cache=True, **inputs).logits
        return logits


class DirectForward:
    """The forward of a model shaped like Llama, run here; what it cannot see is left to the model.

    That is: a module which is passed over and has a hook, a patch or a class of its own, now or
    later; hooks on all modules; attention other than Outrider's; masks by kind of layer; and
    training. Hooks that transformers puts into a model once hidden states are asked of it stay
    there, and so does the model's own forward.

    Args:
        hf_model: the model.
        stock: the classes of modules that may be passed over, each with its forward.
    """

    def __init__(self, hf_model: Any, stock: dict[type, Callable[..., Any]]) -> None:
        self.hf_model = hf_model
        self._own = ModuleForward(hf_model)
        self._stock = stock

    def __call__(self, *, attention_mask: Any, **inputs: Any) -> Tensor:
        """Logits [B, keep, V]; see `forward_of`."""
        forward = self._own if isinstance(attention_mask, dict) or not self._applies else self._run
        return forward(attention_mask=attention_mask, **inputs)

    @property
    def reads_apart(self) -> bool:
        """Whether slots are read where they lie, and few forwards copy those that are no run."""
        if not self._applies or not self._by_loops:
            return False
        return host_attention.width_fits(self.hf_model.model.layers[0].self_attn.head_dim)

    @property
    def _by_loops(self) -> bool:
        """Whether compiled loops can be run and are faster on this machine."""
        return team.AVAILABLE and loops_are_faster(self.hf_model.model.layers[0].self_attn.q_proj)

    @property
    def _applies(self) -> bool:
        """Whether the model is as transformers made it, but for modules that are called here."""
        model = self.hf_model
        base = model._modules["model"]
        return (
            not model.training
            and model.config._attn_implementation == attention.NAME
            and not every_module._global_forward_hooks
            and not every_module._global_forward_pre_hooks
            and all(_as_made(each, self._stock) for each in (model, base, base.norm, *base.layers))
            and len(base.layers) <= base.config.num_hidden_layers
            and all(
                _as_made(each, self._stock)
                for layer in base.layers
                for each in layer._modules.values()
            )
        )

    @torch.inference_mode()
    def agrees(self) -> bool:
        """Whether a few tokens get the logits that the model gives them.

        To the bit, but in float32, whose norms some devices round otherwise in one call.
        """
        model = self.hf_model
        if not self._applies:
            return False
        ids = torch.arange(1, _PROBE + 1, device=model.device)[None] % model.vocab_size
        future = torch.ones(_PROBE, _PROBE, dtype=torch.bool, device=ids.device).triu(1)
        mask = torch.zeros(future.shape, dtype=model.dtype, device=ids.device)
        asked = {
            "input_ids": ids,
            "attention_mask": mask.masked_fill(future, -torch.inf)[None, None],
            "position_ids": torch.arange(_PROBE, device=ids.device)[None],
            "logits_to_keep": _PROBE,
        }
        found = self._run(past_key_values=DynamicCache(), alike=True, **asked).double()
        expected = self._own(past_key_values=DynamicCache(), **asked).double()
        eps = torch.finfo(torch.float32).eps if model.dtype == torch.float32 else 0.0
        allowed = _ROUNDING * eps * expected.abs().max()
        return bool((found - expected).abs().max() <= allowed)

    def _run(
        self,
        *,
        input_ids: Tensor,
        attention_mask: Tensor,
        position_ids: Tensor,
        past_key_values: Any,
        logits_to_keep: int,
        ragged: Ragged | None = None,
        alike: bool = False,
    ) -> Tensor:
        """See `forward_of`; `alike`: with nothing that is rounded otherwise than by the model."""
        if ragged is not None:
            input_ids, position_ids = ragged.packed(input_ids), ragged.packed(position_ids)
        base = self.hf_model.model
        hidden = base.embed_tokens(input_ids)
        cos, sin = base.rotary_emb(hidden, position_ids=position_ids)
        turn = turning_for(cos, sin, past_key_values, ragged)
        products = apart if alike else together
        loops = (
            not alike
            and self._by_loops
            and torch.is_inference_mode_enabled()
            and not torch.is_autocast_enabled("cpu")
        )
        norm, gated = (_loop_norm, _loop_gated) if loops else (_norm, _gated)
        # Of columns without logits the last layer's keys and values are all that is read later.
        ends = ragged is None and input_ids.shape[1] >= logits_to_keep + _UNREAD
        for layer in base.layers:
            heads, mlp = layer.self_attn, layer.mlp
            shape = *input_ids.shape, -1, heads.head_dim
            inner = norm(layer.input_layernorm, hidden)
            states = products(inner, heads.q_proj, heads.k_proj, heads.v_proj)
            query, span = turn(heads.layer_idx, *(each.view(shape) for each in states))
            if layer is base.layers[-1] and ends:
                query, hidden = query[:, :, -logits_to_keep:], hidden[:, -logits_to_keep:]
                attention_mask = attention_mask[:, :, -logits_to_keep:]
            mixed = attention.of_any_rows(
                heads, query, span, attention_mask, heads.scaling, ragged, loops=loops
            )
            hidden = hidden + heads.o_proj(mixed.view(*hidden.shape[:-1], -1))
            inner = norm(layer.post_attention_layernorm, hidden)
            gate, up = products(inner, mlp.gate_proj, mlp.up_proj)
            hidden = hidden + mlp.down_proj(gated(mlp.act_fn, gate, up))
        hidden = norm(base.norm, hidden)
        if ragged is not None:
            return ragged.laid_out(self.hf_model.lm_head(hidden.index_select(1, ragged.kept)))
        logits: Tensor = self.hf_model.lm_head(hidden[:, -logits_to_keep:])
        return logits


def _as_made(module: nn.Module, stock: Mapping[type, Callable[..., Any]]) -> bool:
    """Whether a module does nothing but its class's forward, and that is one of these."""
    own, kind = vars(module), type(module)
    return (
        kind in stock
        and kind.forward is stock[kind]
        and "forward" not in own
        and not own["_forward_hooks"]
        and not own["_forward_pre_hooks"]
        and not own.get("_compiled_call_impl")
    )


def _norm(module: Any, hidden: Tensor) -> Tensor:
    """Root mean square layer norm (Zhang and Sennrich 2019); the module's own if not float32.

    Narrower dtypes are widened for it, and rounded before the weight: another result in one go.
    """
    if hidden.dtype != torch.float32:
        own: Tensor = module(hidden)
        return own
    return rms_norm(hidden, hidden.shape[-1:], module.weight, module.variance_epsilon)


def _loop_norm(module: Any, hidden: Tensor) -> Tensor:
    """The same by a compiled loop, where it is made for what it is given."""
    if not host_rows.norm_fits(hidden, module.weight):
        return _norm(module, hidden)
    return host_rows.norm(hidden, module.weight, module.variance_epsilon)


def _gated(activation: nn.Module, gate: Tensor, up: Tensor) -> Tensor:
    """What a gate lets through: its activation times what it gates."""
    gated: Tensor = activation(gate) * up
    return gated


def _loop_gated(activation: nn.Module, gate: Tensor, up: Tensor) -> Tensor:
    """The same by a compiled loop, where it is made for what it is given."""
    if _as_made(activation, _SILU) and host_rows.gate_fits(gate, up):
        return host_rows.gated(gate, up)
    return _gated(activation, gate, up)


def _stock(hf_model: Any) -> dict[type, Callable[..., Any]]:
    """The classes of transformers that a model's modules are of, and their forwards; or none.

    None for a model of another kind, and where a class has been given another forward.
    """
    kind = type(hf_model)
    name = kind.__name__.removesuffix(_PASSED_OVER[0])
    home = f"transformers.models.{name.lower()}.modeling_{name.lower()}"
    if name not in _SHAPED or kind.__module__ != home:
        return {}
    classes = [getattr(sys.modules[home], name + each) for each in _PASSED_OVER]
    stock = {each: each.forward for each in classes}
    return stock if all(each.__module__ == home for each in stock.values()) else {}
