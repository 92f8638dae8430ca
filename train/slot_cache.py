"""K/V of many sequences of different lengths at once, and the attention function that reads them."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

ATTENTION = "slot_cache"  # a name with "flash" in it makes transformers look for a kernel


class SlotCache:
    """K/V of every slot, written at each row's own position.

    Per layer [slots, kv_heads, length, head_dim]. Duck-types the part of transformers' `Cache` a decoder calls.
    """

    is_compileable = False

    def __init__(self, config: Any, slots: int, length: int, dtype: torch.dtype, device: torch.device) -> None:
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (config.num_hidden_layers, slots, config.num_key_value_heads, length, head_dim)
        self.k = torch.zeros(shape, dtype=dtype, device=device)
        self.v = torch.zeros(shape, dtype=dtype, device=device)
        self.rows = torch.arange(slots, device=device)
        self.positions = torch.zeros(slots, 1, dtype=torch.long, device=device)
        self.mask: torch.Tensor | None = None
        self.window = length

    def aim(self, rows: torch.Tensor, positions: torch.Tensor) -> None:
        """Choose which slots (`rows` [n]) the next forward feeds, and at which `positions` [n, S]."""
        self.rows, self.positions = rows, positions
        self.window = min(self.k.shape[3], -(-(int(positions.max()) + 1) // 64) * 64)
        columns = torch.arange(self.window, device=positions.device)
        self.mask = columns[None, None, None, :] <= positions[:, None, :, None]

    def update(
        self, k: torch.Tensor, v: torch.Tensor, layer: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        where = (self.rows[:, None], slice(None), self.positions)
        self.k[layer][where] = k.transpose(1, 2)
        self.v[layer][where] = v.transpose(1, 2)
        if len(self.rows) == self.k.shape[1]:
            return self.k[layer][:, :, : self.window], self.v[layer][:, :, : self.window]
        return self.k[layer][self.rows, :, : self.window], self.v[layer][self.rows, :, : self.window]

    def get_seq_length(self, *_: Any, **__: Any) -> int:
        return 0

    def get_query_offset(self, *_: Any, **__: Any) -> int:
        return 0

    def get_mask_sizes(self, length: int, *_: Any, **__: Any) -> tuple[int, int]:
        return length, 0


def _attention(
    module: Any,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    _: Any,
    *,
    scaling: float,
    slot_cache: SlotCache,
    **__: Any,
) -> Any:
    """Grouped attention over the slots. q [n, heads, S, d]; k, v [n, kv_heads, window, d]."""
    n, heads, rows, width = q.shape
    kv = k.shape[1]
    mask = slot_cache.mask
    assert mask is not None
    if rows == 1:  # fold the query group into the rows: no copy of K and V
        out = F.scaled_dot_product_attention(q.reshape(n, kv, heads // kv, width), k, v, attn_mask=mask, scale=scaling)
        return out.reshape(n, heads, 1, width).transpose(1, 2), None
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scaling, enable_gqa=True)
    return out.transpose(1, 2), None


ALL_ATTENTION_FUNCTIONS.register(ATTENTION, _attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(ATTENTION, lambda *a, **k: None)
