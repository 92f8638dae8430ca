"""The drafter over many blocks of many sequences in one pass.

Block-sparse attention: a row sees the context strictly before its block's anchor and every row of its own block (or,
in causal layers, those up to itself); blocks never see each other. The context part and the block part are scored
apart and share one softmax, so the mask never costs a blocks x blocks matrix.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch

from dflash_compile.export.dflash.v1 import DflashV1
from dflash_compile.export.tracing.rope import drafter_tables

from .blocks import BlockBatch


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Half-split rotary; x [N, heads, rows, hd], tables [N, 1, rows, hd / 2]."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


_TABLES: WeakKeyDictionary[DflashV1, tuple[torch.Tensor, torch.Tensor]] = WeakKeyDictionary()
"""rotary tables by drafter: made once, and again when a longer sequence comes"""


def _tables(model: DflashV1, positions: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin as the engines have them, scaling included, float32 [positions or more, hd / 2]."""
    known = _TABLES.get(model)
    if known is None or len(known[0]) < positions or known[0].device != device:
        cos, sin = drafter_tables(model.spec, positions)
        known = _TABLES[model] = (cos.to(device), sin.to(device))
    return known


class BlockAttend:
    """`Attend` for training: contexts [N, T], blocks [N, A, B] flattened to [N, A * B] rows."""

    def __init__(
        self,
        model: DflashV1,
        context: torch.Tensor,
        anchors: torch.Tensor,
        block: int,
        dtype: torch.dtype,
        used: torch.Tensor | None = None,
    ) -> None:
        """`context` [N, T, H] is the context feature; `anchors` [N, A] absolute positions; `used` [N, A] rows of each
        block, None for all `block`.
        """
        self.model, self.block = model, block
        self.shape = (*anchors.shape, block)
        device = context.device
        length = context.shape[1]
        cos, sin = _tables(model, max(length, int(anchors.max()) + block), device)
        rows = (anchors[:, :, None] + torch.arange(block, device=device)).flatten(1)
        self.row_tables = [t[rows][:, None].to(dtype) for t in (cos, sin)]
        context_tables = [t[None, None, :length].to(dtype) for t in (cos, sin)]
        self.keys_values = []
        for layer in model.draft_layers:
            k, v = layer.self_attn.keys_values(context)
            self.keys_values.append((_rotate(k.to(dtype), *context_tables), v.to(dtype)))
        self.context_bias = self._context_bias(rows, anchors, length, dtype)
        self.used = used

    def _context_bias(
        self, rows: torch.Tensor, anchors: torch.Tensor, length: int, dtype: torch.dtype
    ) -> list[torch.Tensor]:
        """Per layer, additive [N, 1, 1, A * B, T]: 0 where the context row is before the anchor and inside the
        window.
        """
        column = torch.arange(length, device=rows.device)
        before = column < anchors.repeat_interleave(self.block, dim=1)[:, :, None]
        windows = self.model.spec.windows or (None,) * self.model.spec.layers
        biases = {}
        for window in set(windows):
            origin = anchors.repeat_interleave(self.block, dim=1) - 1 if self.model.spec.windows_from_anchor else rows
            seen = before if window is None else before & (origin[:, :, None] - column < window)
            biases[window] = torch.zeros(seen.shape, dtype=dtype, device=rows.device).masked_fill_(
                ~seen, float("-inf")
            )[:, None, None]
        return [biases[window] for window in windows]

    def _block_bias(self, layer: int, like: torch.Tensor) -> torch.Tensor:
        """Additive, broadcast to [N, kv, groups, A, B, B]: `-inf` where a row may not see another row of its block, or
        that one is no part of it.
        """
        bias = torch.zeros(self.block, self.block, dtype=like.dtype, device=like.device)
        row = torch.arange(self.block, device=like.device)
        distance = row[:, None] - row[None, :]
        spec = self.model.spec
        if spec.causal and spec.causal[layer]:
            bias = bias.masked_fill(distance < 0, float("-inf"))
        window = spec.windows[layer] if spec.windows else None
        if window is not None and not spec.windows_from_anchor:
            bias = bias.masked_fill(distance.abs() >= window, float("-inf"))
        if self.used is None:
            return bias
        behind = row >= self.used[:, None, None, :, None, None]
        return torch.where(
            behind & (distance != 0), float("-inf"), bias
        )  # itself it sees always: a row that sees nothing is NaN

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        n, heads, rows, width = q.shape
        kv = k.shape[1]
        groups = heads // kv
        blocks, block = self.shape[1:]
        dtype = self.row_tables[0].dtype
        q = _rotate(q.to(dtype), *self.row_tables).view(n, kv, groups, rows, width) * width**-0.5
        k, v = _rotate(k.to(dtype), *self.row_tables), v.to(dtype)
        context_k, context_v = self.keys_values[layer]
        outer = (q.flatten(2, 3) @ context_k.transpose(-1, -2)).view(n, kv, groups, rows, -1) + self.context_bias[layer]
        blocked = q.view(n, kv, groups, blocks, block, width)
        inner = blocked @ k.view(n, kv, 1, blocks, block, width).transpose(-1, -2) + self._block_bias(layer, q)
        scores = torch.cat([outer, inner.flatten(3, 4)], dim=-1).float().softmax(-1).to(dtype)
        outer, inner = scores.split([outer.shape[-1], block], dim=-1)
        out = (outer.flatten(2, 3) @ context_v).view(n, kv, groups, rows, width)
        out = out + (inner.view(n, kv, groups, blocks, block, block) @ v.view(n, kv, 1, blocks, block, width)).flatten(
            3, 4
        )
        return out.reshape(n, heads, rows, width)  # type: ignore[no-any-return]


def draft_hidden(
    model: DflashV1, batch: BlockBatch, embedding: torch.Tensor, block: int, dtype: torch.dtype
) -> torch.Tensor:
    """Final hidden states of the rows that propose, [N, A, block - 1, H]: rows 1.. of every block, or all but its last,
    which then is not run.

    `embedding` [V, H] is the target's. `dtype` is float32, or bfloat16 under autocast: its range holds the features'
    spikes, float16's does not.
    """
    context = model.context_feature(batch.features.to(dtype))
    n, anchors = batch.anchors.shape
    rows = block - model.spec.sample_from_anchor
    ids = torch.full((n, anchors, rows), model.spec.mask_id, device=batch.anchors.device)
    ids[:, :, 0] = batch.anchor_tokens
    used = None if batch.widths is None else batch.widths - int(model.spec.sample_from_anchor)
    attend = BlockAttend(model, context, batch.anchors, rows, dtype, used)
    hidden: torch.Tensor = model(embedding[ids.flatten(1)].float(), attend)
    return hidden.view(n, anchors, rows, -1)[:, :, rows - block + 1 :]
