"""How large the sizes of a configuration may be.

Beyond these a mistyped or hostile one fills the memory before anything is compared with the weights.
"""

from __future__ import annotations

from typing import Any

from dflash_compile.runtime.errors import CheckpointError

JSON_BYTES = 256 << 20
"""of a JSON file; indexes of the largest models have a few MB"""
LIMITS = {
    "num_hidden_layers": 1024,
    "num_attention_heads": 1 << 14,
    "num_key_value_heads": 1 << 14,
    "head_dim": 1 << 14,
    "hidden_size": 1 << 18,
    "intermediate_size": 1 << 22,
    "vocab_size": 1 << 24,
    "num_experts": 1 << 14,
    "num_local_experts": 1 << 14,
}
_OTHERS = ("_size", "_dim", "_layers", "_heads", "_window", "_embeddings", "_positions")
_ANY = (1 << 31) - 1
_DEEPEST = 100


def check_bounds(value: Any, where: str, depth: int = 0) -> None:
    """Raises `CheckpointError` for a size in the JSON `value` that no model has, and for one nested without end."""
    if depth > _DEEPEST:
        raise CheckpointError(
            f"the configuration is nested more than {_DEEPEST} deep",
            where=where,
            why="no model's is",
            fix="copy or download the file again",
        )
    if isinstance(value, list):
        for entry in value:
            check_bounds(entry, where, depth + 1)
    if not isinstance(value, dict):
        return
    for key, entry in value.items():
        if isinstance(entry, int) and entry > (most := LIMITS.get(key, _ANY if key.endswith(_OTHERS) else entry)):
            raise CheckpointError(
                f"{key} cannot be {entry}",
                where=f"{where}: {key}",
                why=f"sizes up to {most} are taken",
                fix="check the number, or copy or download the file again",
            )
        check_bounds(entry, where, depth + 1)
