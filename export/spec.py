"""What a target and a drafter are, whatever layout they came in.

A spec is read once by a dialect file and never changes. Taps are stored one way only: tap `L` is the OUTPUT of the
0-based decoder layer `L`, which transformers calls `hidden_states[L + 1]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class TargetSpec:
    """Shape and identity of a target language model."""

    family: str
    """transformers `model_type`, which names the file in `export/families/`"""
    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    max_positions: int
    tied: bool
    """the output head is the embedding"""
    dtype: str
    """of the stored weights, as the checkpoint names it"""
    rms_eps: float
    rope_theta: float
    bos_id: int | None = None
    pad_id: int | None = None
    eos_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class DrafterSpec:
    """Shape and contract of a DFlash drafter."""

    dialect: str
    """names the file in `export/drafters/` that read it"""
    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    max_positions: int
    block: int
    """rows of a block to verify: the anchor and `block - 1` proposals"""
    mask_id: int
    taps: tuple[int, ...]
    """0-based target layers whose output is concatenated, in this order"""
    rms_eps: float
    rope_theta: float
    dtype: str
    target_layers: int | None = None
    """the number of target layers the drafter says it was trained for"""
    rope_scaling: Mapping[str, object] | None = None
    attention_bias: bool = False
    windows: tuple[int | None, ...] = ()
    """per draft layer: sliding window in tokens, or None for full attention"""
    causal: tuple[bool, ...] = ()
    """per draft layer: rows of a block see only rows before them"""
    sample_from_anchor: bool = False
    """the anchor's row proposes the first token: a draft is then one row shorter than the block that is verified, its last mask left out"""
    draft_vocab: int | None = None
    """rows of a draft head over some of the target's tokens; None for the target's whole head"""
    evidence: Mapping[str, str] = field(default_factory=dict)
    """for every field, the key (or rule) it was read from"""
