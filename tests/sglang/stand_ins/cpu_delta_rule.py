"""The gated delta rule on a CPU engine, in torch, with the states that SGLang caches on a GPU.

A plugin of SGLang's. Its kernels for a CPU are in a package that no index has, and it refuses to
cache states of a CPU in pages of more than one token. The functions here have the arguments of
those kernels and of SGLang's for a GPU. The plugin acts only if ``KVSTORE_TEST_CPU_DELTA_RULE`` is
set. SGLang's own files stay as they are.
"""

import os
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # its usual name

VARIABLE = "KVSTORE_TEST_CPU_DELTA_RULE"
# SGLang keeps the states between chunks of this size.
CHUNK = 64
NORM_EPSILON = 1e-6


def install() -> None:
    """Puts the functions where SGLang imports them from, and allows pages of states."""
    if not os.environ.get(VARIABLE):
        return
    # The stand-in of the package, in which any name can be set.
    import sgl_kernel.mamba as kernels  # noqa: PLC0415  # only where it is used

    kernels.causal_conv1d_fn_cpu = convolve_prefill
    kernels.causal_conv1d_update_cpu = convolve_decode
    kernels.chunk_gated_delta_rule_cpu = delta_rule_prefill
    operators: Any = torch.ops.sgl_kernel
    operators.fused_gdn_gating_cpu = gates
    operators.fused_sigmoid_gating_delta_rule_update_cpu = delta_rule_decode

    from sglang.kernels.ops.attention.fla import fused_norm_gate  # noqa: PLC0415
    from sglang.kernels.ops.elementwise import elementwise  # noqa: PLC0415
    from sglang.srt.arg_groups import mamba_hook  # noqa: PLC0415
    from sglang.srt.layers.attention import hybrid_linear_attn_backend as backend  # noqa: PLC0415

    mamba_hook._platform_supports_mamba_cache_extra_buffer = lambda: True
    fused_norm_gate.FusedRMSNormGated.forward = gated_norm
    elementwise._launch_fused_gate_sigmoid_mul = gated
    backend.track_mamba_states_if_needed = track_layer
    backend.track_mamba_states_all_layers = track_layers


def convolve_prefill(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    activation: str | None,
    conv_states: torch.Tensor,
    has_initial_state: torch.Tensor,
    cache_indices: torch.Tensor,
    query_start_loc: torch.Tensor,
    **_: object,
) -> torch.Tensor:
    """Convolves sequences ``[channels, tokens]``; the last tokens of each are its state then."""
    found = []
    for number, (start, end) in enumerate(_sequences(query_start_loc)):
        slot = int(cache_indices[number])
        before = conv_states[slot].to(x.dtype)
        if not has_initial_state[number]:
            before = torch.zeros_like(before)
        tokens = torch.cat([before, x[:, start:end]], dim=1)
        convolved = F.conv1d(tokens[None], weight[:, None], bias, groups=len(weight))[0]
        found.append(_activated(convolved, activation))
        conv_states[slot] = tokens[:, -before.shape[1] :].to(conv_states.dtype)
    return torch.cat(found, dim=1)


def convolve_decode(
    x: torch.Tensor,
    conv_states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str | None,
    *,
    conv_state_indices: torch.Tensor,
    **_: object,
) -> torch.Tensor:
    """Convolves one token ``[channels]`` of each request, and moves its state on."""
    slots = conv_state_indices.long()
    tokens = torch.cat([conv_states[slots].to(x.dtype), x[:, :, None]], dim=2)
    convolved = (tokens * weight).sum(dim=2)
    conv_states[slots] = tokens[:, :, 1:].to(conv_states.dtype)
    return _activated(convolved if bias is None else convolved + bias, activation)


def gates(
    a_log: torch.Tensor, a: torch.Tensor, b: torch.Tensor, dt_bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns ``[1, tokens, heads]``: logarithms of the decays, and strengths of the updates."""
    decays = -a_log.float().exp() * F.softplus(a.float() + dt_bias.float())
    return decays[None], b.float().sigmoid()[None]


def delta_rule_prefill(
    *,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    initial_state: torch.Tensor,
    initial_state_indices: torch.Tensor,
    cu_seqlens: torch.Tensor,
    **_: object,
) -> tuple[torch.Tensor, None, torch.Tensor]:
    """Returns the outputs, and the state before each chunk; the last states go to their slots."""
    outputs, states = [], []
    for number, (start, end) in enumerate(_sequences(cu_seqlens)):
        slot = int(initial_state_indices[number])
        state = initial_state[slot].float()
        for token in range(start, end):
            if (token - start) % CHUNK == 0:
                states.append(state.clone())
            one = slice(token, token + 1)
            output, [state] = _updated(
                state[None], q[0, one], k[0, one], v[0, one], g[0, one], beta[0, one]
            )
            outputs.append(output)
        initial_state[slot] = state.to(initial_state.dtype)
    return torch.cat(outputs).to(v.dtype)[None], None, torch.stack(states)[None]


def delta_rule_decode(
    *,
    A_log: torch.Tensor,  # noqa: N803  # the kernel's argument
    dt_bias: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    initial_state_source: torch.Tensor,
    initial_state_indices: torch.Tensor,
    **_: object,
) -> torch.Tensor:
    """Returns the outputs of one token of each request, and moves their states on."""
    slots = initial_state_indices.long()
    g, beta = gates(A_log, a, b, dt_bias)
    states = initial_state_source[slots].float()
    outputs, states = _updated(states, q[0], k[0], v[0], g[0], beta[0])
    initial_state_source[slots] = states.to(initial_state_source.dtype)
    return outputs.to(v.dtype)[None]


def gated_norm(self: Any, x: torch.Tensor, g: torch.Tensor, **_: object) -> torch.Tensor:  # noqa: ANN401
    """Returns ``x`` over its root mean square, times the weights and the gate."""
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)
    gate = g.float().sigmoid() if self.activation == "sigmoid" else F.silu(g.float())
    return (normed * self.weight.float() * gate).to(x.dtype)


def gated(
    x: torch.Tensor,
    weight: torch.Tensor,
    expert: torch.Tensor,
    output: torch.Tensor,
    *,
    do_add: bool,
) -> None:
    """Writes the output of a shared expert times its gate, or adds it to what is there."""
    found = expert * (x * weight).sum(dim=-1, keepdim=True).sigmoid()
    output.copy_(output + found if do_add else found)


def track_layer(
    conv_states: torch.Tensor,
    ssm_states: torch.Tensor,
    cache_indices: torch.Tensor,
    mask: torch.Tensor,
    targets: torch.Tensor,
    batch_size: int,
    **_: object,
) -> None:
    """Copies the states of some requests of one layer to the slots that SGLang caches."""
    track_layers(conv_states[None], ssm_states[None], cache_indices, mask, targets, batch_size)


def track_layers(
    conv_states: torch.Tensor,
    ssm_states: torch.Tensor,
    cache_indices: torch.Tensor,
    mask: torch.Tensor,
    targets: torch.Tensor,
    batch_size: int,
    **_: object,
) -> None:
    """Copies the states of some requests of all layers to the slots that SGLang caches."""
    for row in range(batch_size):
        if mask[row]:
            for states in (conv_states, ssm_states):
                states[:, int(targets[row])] = states[:, int(cache_indices[row])]


def _sequences(starts: torch.Tensor) -> Iterator[tuple[int, int]]:
    return pairwise(starts.tolist())


def _activated(x: torch.Tensor, activation: str | None) -> torch.Tensor:
    return F.silu(x) if activation in ("silu", "swish") else x


def _updated(
    states: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns outputs and new states ``[requests, heads, values, keys]`` after one token each."""
    q, k, v = q.float(), k.float(), v.float()
    heads = v.shape[1] // q.shape[1]
    q, k = (_normed(each).repeat_interleave(heads, dim=1) for each in (q, k))
    states = states * g.exp()[:, :, None, None]
    known = torch.einsum("nhvk,nhk->nhv", states, k)
    change = (v - known) * beta[:, :, None]
    states = states + change[:, :, :, None] * k[:, :, None, :]
    return torch.einsum("nhvk,nhk->nhv", states, q * q.shape[-1] ** -0.5), states


def _normed(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().sum(dim=-1, keepdim=True) + NORM_EPSILON)
