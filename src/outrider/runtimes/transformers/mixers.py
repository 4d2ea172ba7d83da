"""The recurrent layers of transformers' hybrid models, made to compute drafts exactly.

Their forwards call a few functions of their modules: a causal convolution, and a chunked
recurrence. In a twin each such layer runs the code of its own forward with these functions
exchanged for ones that know ancestors, where its cache is a `HybridCache`. Nothing else is
touched: not the user's model, not its modules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import silu, softplus
from transformers.activations import ACT2FN

from .recurrences import linear, linear_folded, selective, selective_folded
from .states import HybridCache, LayerStates

Function = Callable[..., Any]


class Site(NamedTuple):
    """Where a function is exchanged: the function, the cache, and what the layer keeps there."""

    original: Function
    cache: HybridCache
    layer: LayerStates


def mixers(model: Module) -> list[Any]:
    """Find the recurrent layers that can be made to: those whose forward calls these functions."""
    return [each for each in model.modules() if called(each)]


def made_exact(twin: Any) -> Any:
    """Let the recurrent layers of a twin compute by a `HybridCache`, where they are given one."""
    for module in mixers(twin):
        vars(module)["forward"] = partial(_forward, module)
    return twin


def by_functions(module: Any, own: Mapping[str, Function], *args: Any, **kwargs: Any) -> Any:
    """Run a layer's own code, with functions in the place of those that its module has so named."""
    code = _code(type(module))
    inner = FunctionType(
        code.__code__,
        {**code.__globals__, **own},
        code.__name__,
        code.__defaults__,
        code.__closure__,
    )
    inner.__kwdefaults__ = code.__kwdefaults__
    return inner(module, *args, **kwargs)


def called(module: Module) -> set[str]:
    """Name the functions that a layer's forward calls and that are exchanged."""
    code = getattr(_code(type(module)), "__code__", None)
    return set() if code is None else _EXCHANGED.keys() & set(code.co_names)


def _forward(module: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a layer's own code, with functions exchanged where its cache is a `HybridCache`."""
    cache = next((each for each in kwargs.values() if isinstance(each, HybridCache)), None)
    if cache is None:
        return type(module).forward(module, *args, **kwargs)
    layer, known = cache.layers_of[module.layer_idx], _code(type(module)).__globals__
    own = {
        name: partial(_EXCHANGED[name], Site(known[name], cache, layer)) for name in called(module)
    }
    return by_functions(module, own, *args, **kwargs)


def _code(kind: type[Module]) -> Any:
    """Return the function that a class's forward is, under what decorates it."""
    function: Any = kind.forward
    while "__wrapped__" in vars(function):
        function = function.__wrapped__
    return function


def _convolution(
    site: Site,
    hidden_states: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    **more: Any,
) -> Tensor:
    """Convolve each token's last inputs along its path; see `HybridCache.update_conv_state`."""
    if site.cache.nodes is None:
        made: Tensor = site.original(hidden_states, weight, bias, activation=activation, **more)
        return made
    taps = site.cache.nodes.taps(weight.shape[-1])
    flat = taps.flatten(1)[:, None].expand(-1, hidden_states.shape[1], -1)
    taken = hidden_states.to(weight.dtype).gather(2, flat).unflatten(2, taps.shape[1:])
    found = torch.einsum("bcqk,ck->bcq", taken, weight)
    if bias is not None:
        found = found + bias[:, None]
    found = found if activation is None else ACT2FN[activation](found)
    return found.to(hidden_states.dtype)


def _delta(
    root: bool,
    site: Site,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    g: Tensor,
    beta: Tensor,
    use_qk_l2norm_in_kernel: bool = False,
    **more: Any,
) -> tuple[Tensor, Tensor]:
    """Compute the gated delta rule, per head or, as Kimi's, per channel (`root`)."""
    shape = value.shape[2], key.shape[3], value.shape[3]
    state = site.cache.state(site.layer, shape, _wide(value))
    if site.cache.nodes is None:
        more |= {"initial_state": state, "output_final_state": True}
        more["use_qk_l2norm_in_kernel"] = use_qk_l2norm_in_kernel
        made, last = site.original(query, key, value, g=g, beta=beta, **more)
        return made, _kept(site, last)
    kind = query.dtype
    query, key, value, g, beta = map(_wide, (query, key, value, g, beta))
    if use_qk_l2norm_in_kernel:
        query, key = normed(query, root=root), normed(key, root=root)
    heads = value.shape[2] // key.shape[2]
    query, key = (each.repeat_interleave(heads, 2) for each in (query, key))
    step = g if g.ndim == 4 else g[..., None]
    made = _linear(site, state, query * query.shape[-1] ** -0.5, key, value, step, beta)
    return made.to(kind), state


def _mamba2(
    site: Site,
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_final_states: bool = False,
    **more: Any,
) -> Any:
    """Compute Mamba 2's scan."""
    heads, x = hidden_states.shape[2], _wide(hidden_states)
    state = site.cache.state(site.layer, (heads, B.shape[3], x.shape[3]), x)
    if site.cache.nodes is None:
        settings = {"D": D, "dt_bias": dt_bias, "dt_softplus": dt_softplus, "dt_limit": dt_limit}
        more |= settings | {"initial_states": state.transpose(2, 3), "return_final_states": True}
        made, last = site.original(hidden_states, dt, A, B, C, **more)
        last = _kept(site, last.transpose(2, 3))
        return (made, last) if return_final_states else made
    dt = dt if dt_bias is None else dt + dt_bias.to(dt.dtype)
    size = _wide((softplus(dt) if dt_softplus else dt).clamp(*dt_limit))
    key, query = (_wide(each).repeat_interleave(heads // B.shape[2], 2) for each in (B, C))
    made = _linear(site, state, query, key, x * size[..., None], (A * size)[..., None])
    made = made if D is None else made + D[..., None] * x
    return (made.contiguous(), state) if return_final_states else made.contiguous()


def _mamba1(
    site: Site,
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    **more: Any,
) -> Any:
    """Compute Mamba 1's selective scan of inputs [B, D, q]."""
    steps = dt if delta_bias is None else dt + delta_bias.to(dt.dtype)[..., None]
    size = _wide(softplus(steps) if delta_softplus else steps).transpose(1, 2)
    value, key, query = (_wide(each).transpose(1, 2) for each in (hidden_states, B, C))
    decay = A.to(size.dtype)
    state = site.cache.state(site.layer, (value.shape[2], decay.shape[1]), value)
    site.layer.folded = partial(selective_folded, decay=decay)
    if site.cache.nodes is None:
        more |= {"delta_bias": delta_bias, "delta_softplus": delta_softplus}
        made, last = site.original(hidden_states, dt, A, B, C, return_last_state=True, **more)
        # It begins without a state. What one adds is added: the scan is linear in it.
        left = torch.exp(decay * size.cumsum(1)[..., None])
        made = made + torch.einsum("bqn,bqdn->bdq", query, left * state[:, None])
        state = _kept(site, last.to(left.dtype) + left[:, -1] * state)
    else:
        record = partial(site.cache.recorded, site.layer.records)
        made = selective(state, record, site.cache.nodes, value, size, decay, key, query)
        made = made.transpose(1, 2)
    made = made if D is None else made + hidden_states * D[None, :, None]
    made = (made if z is None else made * silu(z)).to(hidden_states.dtype)
    return (made, state) if return_last_state else made


def _linear(
    site: Site,
    state: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    step: Tensor,
    beta: Tensor | None = None,
) -> Tensor:
    """Compute a linear recurrence of new tokens, and keep their records."""
    assert site.cache.nodes is not None
    site.layer.folded = linear_folded
    query, key, value, step = (each.to(state.dtype) for each in (query, key, value, step))
    beta = beta if beta is None else beta.to(state.dtype)
    record = partial(site.cache.recorded, site.layer.records)
    return linear(state, record, site.cache.nodes, query, key, value, step, beta)


def _kept(site: Site, last: Tensor) -> Tensor:
    """Keep the states after a part of a prompt."""
    assert site.layer.state is not None
    site.layer.state[site.cache.rows] = last.to(site.layer.state.dtype)
    return last


def _wide(states: Tensor) -> Tensor:
    """Return states in float32 at least, in which transformers computes recurrences."""
    return states.to(torch.promote_types(states.dtype, torch.float32))


def normed(states: Tensor, *, root: bool = False) -> Tensor:
    """Divide vectors by their length, in one of the two ways that round alike."""
    squares = (states * states).sum(-1, keepdim=True) + 1e-6
    return states / squares.sqrt() if root else states * torch.rsqrt(squares)


_EXCHANGED: dict[str, Function] = {
    "causal_conv1d_fn": _convolution,
    "torch_chunk_gated_delta_rule": partial(_delta, False),
    "chunk_kimi_delta_attention": partial(_delta, True),
    "mamba2_chunk_scan": _mamba2,
    "mamba_selective_scan": _mamba1,
}
"""By the name of what is exchanged."""
