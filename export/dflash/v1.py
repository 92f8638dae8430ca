"""The DFlash v1 drafter as a torch module: z-lab layout, one definition for training, tracing and tests.

Knows nothing of caches, masks or positions: those belong to the `Attend` it is given, so that the same layers serve a
cached graph (`CachedAttend`) and training on many blocks at once (`train/draft_forward.py`). Parameter names equal the
checkpoint's tensor names.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import torch
from torch import nn
from torch.nn import functional as F

from ..ops import ring as ring_ops  # noqa: F401  (registers its operators)
from ..ops.semantic import NO_WINDOW
from ..spec import DrafterSpec


class Attend(Protocol):
    """Rotates, places and attends: q [N, heads, S, hd]; k, v [N, kv, S, hd], all before rotary; returns [N, heads, S,
    hd].
    """

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor: ...


class DraftAttention(nn.Module):
    """Grouped attention with per-head query and key norms; the block attends to the context and to itself."""

    def __init__(self, spec: DrafterSpec, layer: int) -> None:
        super().__init__()
        self.layer, self.head_dim = layer, spec.head_dim
        bias = spec.attention_bias
        self.q_proj = nn.Linear(spec.hidden, spec.heads * spec.head_dim, bias=bias)
        self.k_proj = nn.Linear(spec.hidden, spec.kv_heads * spec.head_dim, bias=bias)
        self.v_proj = nn.Linear(spec.hidden, spec.kv_heads * spec.head_dim, bias=bias)
        self.o_proj = nn.Linear(spec.heads * spec.head_dim, spec.hidden, bias=bias)
        self.q_norm = nn.RMSNorm(spec.head_dim, eps=spec.rms_eps)
        self.k_norm = nn.RMSNorm(spec.head_dim, eps=spec.rms_eps)

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(*x.shape[:2], -1, self.head_dim)

    def keys_values(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """K (normed, not rotated) and V of `x` [N, S, H], both [N, kv, S, hd].

        Context and block share these weights.
        """
        k = self.k_norm(self._heads(self.k_proj(x)))
        return k.transpose(1, 2), self._heads(self.v_proj(x)).transpose(1, 2)

    def forward(self, x: torch.Tensor, attend: Attend) -> torch.Tensor:
        q = self.q_norm(self._heads(self.q_proj(x))).transpose(1, 2)
        out = attend(self.layer, q, *self.keys_values(x))
        return self.o_proj(out.transpose(1, 2).reshape(*x.shape[:2], -1))  # type: ignore[no-any-return]


class DraftMLP(nn.Module):
    """SwiGLU."""

    def __init__(self, spec: DrafterSpec) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(spec.hidden, spec.intermediate, bias=False)
        self.up_proj = nn.Linear(spec.hidden, spec.intermediate, bias=False)
        self.down_proj = nn.Linear(spec.intermediate, spec.hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


class DraftLayer(nn.Module):
    """Pre-norm attention and MLP, each with a residual."""

    def __init__(self, spec: DrafterSpec, layer: int) -> None:
        super().__init__()
        self.self_attn = DraftAttention(spec, layer)
        self.mlp = DraftMLP(spec)
        self.input_layernorm = nn.RMSNorm(spec.hidden, eps=spec.rms_eps)
        self.post_attention_layernorm = nn.RMSNorm(spec.hidden, eps=spec.rms_eps)

    def forward(self, x: torch.Tensor, attend: Attend) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), attend)
        return x + self.mlp(self.post_attention_layernorm(x))  # type: ignore[no-any-return]


class DflashV1(nn.Module):
    """Context feature from the taps, and the block's hidden states given an `Attend` over that context."""

    def __init__(self, spec: DrafterSpec, taps_width: int) -> None:
        """`taps_width` is the number of taps times the target's hidden width."""
        super().__init__()
        self.spec = spec
        self.fc = nn.Linear(taps_width, spec.hidden, bias=False)
        self.hidden_norm = nn.RMSNorm(spec.hidden, eps=spec.rms_eps)
        self.layers = nn.ModuleList(DraftLayer(spec, layer) for layer in range(spec.layers))
        self.norm = nn.RMSNorm(spec.hidden, eps=spec.rms_eps)

    @property
    def draft_layers(self) -> list[DraftLayer]:
        """`layers` under their own type."""
        return [layer for layer in self.layers if isinstance(layer, DraftLayer)]

    def context_feature(self, taps: torch.Tensor) -> torch.Tensor:
        """hidden_norm(fc(taps)): [N, S, taps_width] to [N, S, H]. It does not pass `input_layernorm`."""
        return self.hidden_norm(self.fc(taps))  # type: ignore[no-any-return]

    def scores(self, logits: torch.Tensor, hidden: torch.Tensor, anchor: torch.Tensor) -> torch.Tensor:
        """What is compared: logits [1, P, V] of `hidden` [1, P, H] after an `anchor` [1, 1], scaled and capped where
        the drafter says so.
        """
        if self.spec.output_multiplier != 1:
            logits = logits * self.spec.output_multiplier
        cap = self.spec.logit_softcap
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def forward(self, embeddings: torch.Tensor, attend: Attend) -> torch.Tensor:
        """Embedded blocks [N, B, H] (anchor, then masks) to hidden states of the same shape, ready for the target's
        head.
        """
        x = embeddings * self.spec.embedding_scale if self.spec.embedding_scale != 1 else embeddings
        for layer in self.layers:
            x = layer(x, attend)
        return self.norm(x)  # type: ignore[no-any-return]


class CachedAttend:
    """Attention through the draft cache by the semantic operators; `caches` is K, V of each layer and is replaced as it
    grows.

    The block is written at `position` like the context and simply overwritten by the next inject.
    """

    def __init__(
        self,
        spec: DrafterSpec,
        cos: torch.Tensor,
        sin: torch.Tensor,
        position: torch.Tensor,
        caches: list[torch.Tensor],
        rings: Collection[int] = (),
    ) -> None:
        """`rings` are the layers whose caches are rings."""
        self.rings = rings
        self.spec, self.cos, self.sin, self.position, self.caches = spec, cos, sin, position, list(caches)

    def _rotate(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.dflash.rotary(x, self.cos, self.sin, self.position)  # type: ignore[no-any-return]

    def inject(self, model: DflashV1, taps: torch.Tensor) -> list[torch.Tensor]:
        """Write the context K/V of `taps` [1, S, taps_width] at `position`; returns the new caches."""
        context = model.context_feature(taps)
        for i, layer in enumerate(model.draft_layers):
            k, v = layer.self_attn.keys_values(context)
            self._write(i, self._rotate(k), v)
        return self.caches

    def _write(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        write = torch.ops.dflash.kv_ring_write if layer in self.rings else torch.ops.dflash.kv_write
        self.caches[2 * layer] = write(k, self.caches[2 * layer], self.position)
        self.caches[2 * layer + 1] = write(v, self.caches[2 * layer + 1], self.position)

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        window = self.spec.windows[layer] if self.spec.windows else None
        causal = self.spec.causal[layer] if self.spec.causal else False
        caches = self.caches[2 * layer : 2 * layer + 2]
        anchored = {"anchored": True} if window is not None and self.spec.windows_from_anchor else {}
        attention = torch.ops.dflash.kv_ring_attention if layer in self.rings else torch.ops.dflash.kv_attention
        out, *caches = attention(
            self._rotate(q),
            self._rotate(k),
            v,
            *caches,
            self.position,
            self.spec.head_dim**-0.5,
            window or NO_WINDOW,
            causal,
            **anchored,
        )
        self.caches[2 * layer : 2 * layer + 2] = caches
        return out  # type: ignore[no-any-return]
