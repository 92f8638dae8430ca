"""Hooks that make a transformers decoder call the semantic operators. All are undone when their context ends.

Knows how transformers dispatches attention; knows no model family.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.nn import functional as F
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ..families import Family, Norm
from ..ops.ring import kv_ring_attention
from ..ops.semantic import NO_WINDOW, kv_attention, rms_norm, rotary
from .experts import dense_experts, has_sparse_form, sparse_experts

# transformers looks for a kernel package when the name contains "flash", and makes no mask for a name it has no mask
# function for.
ATTENTION = "kv_semantic"
EXPERTS = "semantic"


@dataclass
class Pass:
    """One forward pass: what the patched functions read and what they leave behind."""

    position: torch.Tensor
    pick: torch.Tensor
    caches: list[torch.Tensor]
    rings: Collection[int] = ()
    """layers whose caches are rings"""
    embeds: torch.Tensor | None = None
    """[1, S, H]: rows in place of embedded tokens, where `given`, [1, S], is not 0"""
    given: torch.Tensor | None = None
    rows: torch.Tensor | None = None
    """[1, S, H]: rows of the embedding table, in place of looking tokens up"""
    hidden: torch.Tensor | None = None
    """[1, R, H]: what the head reads, left behind"""
    taps: dict[int, torch.Tensor] = field(default_factory=dict)

    def attend(
        self,
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        scale: float,
        window: int,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attention of `layer`, whose entries in `caches` are replaced. Shapes as in `ops.kv_attention`."""
        k_cache, v_cache = self.caches[2 * layer : 2 * layer + 2]
        attention = kv_ring_attention if layer in self.rings else kv_attention
        out, *updated = attention(
            q, k, v, k_cache, v_cache, self.position, scale, window, True, **({} if sinks is None else {"sinks": sinks})
        )
        self.caches[2 * layer : 2 * layer + 2] = updated
        return out  # type: ignore[no-any-return]

    def embedded(self, tokens: torch.Tensor) -> torch.Tensor | None:
        """What the first layer starts from, where that is not the embedded `tokens` [1, S, H] alone."""
        if self.embeds is None or self.given is None:
            return None
        return torch.where(self.given[..., None] != 0, self.embeds, tokens)


@dataclass
class Hooks:
    """Where the patched functions of one model find the pass that is running."""

    running: Pass | None = None

    def now(self) -> Pass:
        """The pass that is running."""
        if self.running is None:
            raise RuntimeError("a hooked model was called outside its VerificationTarget")
        return self.running


def _normed(norm: Norm) -> Callable[[Any, torch.Tensor], torch.Tensor]:
    """What stands in for the `forward` of `norm`'s class."""

    def forward(module: Any, x: torch.Tensor) -> torch.Tensor:
        weight = getattr(module, "weight", None)
        if weight is None:
            weight = torch.ones(x.shape[-1])
        elif norm.offset:
            weight = weight + norm.offset
        if norm.before:
            x, weight = x * weight, torch.ones(x.shape[-1])
        return rms_norm(x, weight, float(getattr(module, norm.eps)))  # type: ignore[no-any-return]

    return forward


@contextmanager
def hooked(model: Any, family: Family, taps: Sequence[int], sparse: bool = False) -> Iterator[Hooks]:
    """Patch `family`'s functions and hook the embedding, the decoder layers named by `taps` and the head, until the
    context ends.

    Set `Hooks.running` before calling `model`, without a cache and with `position_embeddings` tables in place of the
    rotary module's output. The head then sees only the rows listed in `Pass.pick`. `sparse` experts run in the sparse
    form, where they have one.
    """
    hooks, layers, table = Hooks(), model.get_decoder().layers, model.get_input_embeddings()
    last = len(layers) - 1

    def attention(
        module: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, _mask: None, **kwargs: Any
    ) -> tuple[torch.Tensor, None]:
        window = int(kwargs.get("sliding_window") or NO_WINDOW)
        return hooks.now().attend(
            module.layer_idx, q, k, v, float(kwargs["scaling"]), window, kwargs.get("s_aux")
        ).transpose(1, 2), None

    def rotate(
        q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        position = hooks.now().position
        return rotary(q, cos, sin, position), rotary(k, cos, sin, position)

    def keep(layer: int, _module: nn.Module, _args: Any, output: Any) -> None:
        hooks.now().taps[layer] = output[0] if isinstance(output, tuple) else output

    def keep_last(_module: nn.Module, _args: Any, output: Any) -> None:
        hooks.now().taps[last] = output.last_hidden_state

    def embed(_module: nn.Module, _args: Any, tokens: torch.Tensor) -> torch.Tensor | None:
        return hooks.now().embedded(tokens)

    def look_up(module: nn.Embedding, ids: torch.Tensor) -> torch.Tensor:
        rows = hooks.now().rows
        return F.embedding(ids, module.weight) if rows is None or module is not table else rows

    def pick(_module: nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        run = hooks.now()
        run.hidden = args[0].index_select(1, run.pick)
        return (run.hidden,)

    def experts(module: Any, hidden: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        form = sparse_experts if sparse and has_sparse_form(module) else dense_experts
        return form(module, hidden, chosen, weights)

    with ExitStack() as stack:
        ALL_ATTENTION_FUNCTIONS[ATTENTION] = attention
        stack.callback(ALL_ATTENTION_FUNCTIONS.pop, ATTENTION)
        ALL_EXPERTS_FUNCTIONS[EXPERTS] = experts
        stack.callback(ALL_EXPERTS_FUNCTIONS.pop, EXPERTS)
        for key, ours in (("_attn_implementation", ATTENTION), ("_experts_implementation", EXPERTS)):
            stack.callback(setattr, model.config, key, getattr(model.config, key))
            setattr(model.config, key, ours)
        stack.enter_context(patch.object(family.modeling, "apply_rotary_pos_emb", rotate))
        for norm in family.norms:
            stack.enter_context(patch.object(norm.cls, "forward", _normed(norm)))
        # What a family's own class does to the rows it looks up stays.
        stack.enter_context(patch.object(nn.Embedding, "forward", look_up))
        # Behind the whole module: what transformers calls `inputs_embeds` has the family's scale or norm of embeddings
        # in it already.
        stack.callback(model.get_input_embeddings().register_forward_hook(embed).remove)
        # Of the last layer transformers' `hidden_states` have what is behind the final norm.
        if last in taps:
            stack.callback(model.get_decoder().register_forward_hook(keep_last).remove)
        for layer in sorted(set(taps) - {last}):
            stack.callback(layers[layer].register_forward_hook(lambda *call, layer=layer: keep(layer, *call)).remove)
        stack.callback(model.get_output_embeddings().register_forward_pre_hook(pick).remove)
        yield hooks
