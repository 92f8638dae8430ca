"""What a target and a drafter are, whatever layout they came in.

A spec is read once by a dialect file and never changes. Taps are stored one way only: tap `L` is the OUTPUT of the
0-based decoder layer `L`, which transformers calls `hidden_states[L + 1]`; of the last layer that is the output behind
the final norm.
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
    experts: int = 0
    """in each of its mixtures; 0 where it has none"""
    experts_used: int = 0
    """of them, chosen for each token"""
    bos_id: int | None = None
    pad_id: int | None = None
    eos_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Convolution:
    """The dynamic convolutions of DFlash2's layers."""

    kernel: int
    """taps: rows of the block that a row sees, itself included"""
    group: int
    """columns that share the part of a tap made of the input"""


@dataclass(frozen=True)
class Selector:
    """DFlash2's choice among candidates."""

    rank: int
    top_k: int
    """candidates of each row"""


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
    vocab: int | None
    """the target's, as the drafter says it; None where it does not"""
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
    windows_from_anchor: bool = False
    """a window of W is the W tokens before the anchor, for every row alike, and the whole block; else each row counts
    its own, itself included"""
    causal: tuple[bool, ...] = ()
    """per draft layer: rows of a block see only rows before them"""
    sample_from_anchor: bool = False
    """the anchor's row proposes the first token: a draft is then one row shorter than the block that is verified, its
    last mask left out"""
    draft_vocab: int | None = None
    """rows of a draft head over some of the target's tokens; None for the target's whole head"""
    own_embedding: bool = False
    """it embeds with a table and proposes with a whole head of its own, not the target's"""
    embedding_scale: float = 1.0
    """factor on the embedding rows of the block"""
    output_multiplier: float = 1.0
    """factor on the logits, before they are capped"""
    logit_softcap: float | None = None
    """c, where logits x become c * tanh(x / c)"""
    convolution: Convolution | None = None
    """None but in DFlash2"""
    selector: Selector | None = None
    """None but in DFlash2"""
    evidence: Mapping[str, str] = field(default_factory=dict)
    """for every field, the key (or rule) it was read from"""
