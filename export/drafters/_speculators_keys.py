"""Keys of the speculators layout, and the settings that are refused because the draft module computes something
else.
"""

from __future__ import annotations

from typing import Any

from ..checkpoints.drafter_folder import TRAINED_WITH
from ..checkpoints.files import section
from ..checkpoints.quantization_config import KEY
from ._reader import Reader

VERSION = "0.9.0"
"""the package whose reading and writing this follows"""
LAYERS = "transformer_layer_config"
TARGET_HEAD = "lm_head_from_target"
"""our key: no `lm_head.weight` is stored, because it is the rows of the target's head that `d2t` names"""
TARGET_LAYERS = "num_target_layers"
"""our key, named as in the z-lab layout"""
KNOWN = {
    *(
        "speculators_model_type",
        "speculators_version",
        "speculators_config",
        LAYERS,
        "draft_vocab_size",
        "block_size",
        "target_hidden_size",
    ),
    *("aux_hidden_state_layer_ids", "mask_token_id", "sliding_window_non_causal", "sample_from_anchor"),
    *("auto_map", "torch_dtype", "model_type", KEY, TRAINED_WITH, TARGET_HEAD, TARGET_LAYERS),
}
"""keys of the top level, besides those of every transformers configuration"""


def check_keys(reader: Reader) -> None:
    """Raise `CheckpointError` for keys of the top level that nobody knows and that are set."""
    reader.refuse_unknown(KNOWN, f"the layout of speculators {VERSION}")


def check_kind(reader: Reader, layers: Any) -> None:
    """Raise `CheckpointError` for a drafter that computes anything but what the draft module does.

    `layers` is its transformers configuration.
    """
    algorithm = section(reader.raw.get("speculators_config")).get("algorithm", "dflash")
    if algorithm != "dflash":
        raise reader.fault(
            "speculators_config.algorithm",
            f"the algorithm {algorithm!r} is not DFlash",
            "speculators_model_type says dflash",
            "use a DFlash drafter",
        )
    if layers.hidden_act != "silu":
        raise reader.fault(
            f"{LAYERS}.hidden_act",
            f"hidden_act = {layers.hidden_act!r} is not supported",
            "its MLP is not SwiGLU",
            "use a drafter with silu",
        )
    width = reader.raw.get("target_hidden_size")
    if width not in (None, layers.hidden_size):
        raise reader.fault(
            "target_hidden_size",
            f"the target is {width} wide, the drafter {layers.hidden_size}",
            "they share embedding and head",
            "use a drafter as wide as its target",
        )
