"""Rotary tables, computed by the model's own rotary module so that every scaling rule is the model's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from dflash_compile.runtime.errors import CheckpointError, IncompatibleError

from ..spec import DrafterSpec

# Their frequencies change with the length of the sequence, so no table is right for every length.
_LENGTH_DEPENDENT = ("dynamic", "longrope")


Tables = tuple[torch.Tensor, torch.Tensor]
"""cos and sin, float32 [context, head_dim / 2], row p for position p, attention scaling included"""


def rotary_tables(rotary: type[Any], config: Any, context: int) -> dict[str, torch.Tensor]:
    """`cos` and `sin` as in `Tables`; where kinds of layers turn differently `cos_KIND` and `sin_KIND` for each kind.

    `rotary` is a transformers rotary module class that takes `config`. Raises `IncompatibleError` for a scaling whose
    frequencies depend on the sequence length, where `context` reaches the lengths that change them, and
    `CheckpointError` for a scaling that transformers does not know or that lacks its factors.
    """
    with _checked_scaling():
        module = rotary(config)
    kinds: dict[str, str] = module.rope_type if isinstance(module.rope_type, dict) else {"": module.rope_type}
    tables: dict[str, torch.Tensor] = {}
    for kind, scaling in kinds.items():
        _check_length(scaling, module, context)
        where, suffix = ((kind,), f"_{kind}") if kind else ((), "")
        tables |= {
            f"{name}{suffix}": table
            for name, table in zip(("cos", "sin"), _tables(module, config, context, *where), strict=True)
        }
    return tables


def rotary_kinds(rotary: type[Any], config: Any) -> int:
    """How many pairs of tables `rotary_tables` gives. Raises `CheckpointError` for a scaling that cannot be used."""
    with _checked_scaling():
        kinds = rotary(config).rope_type
    return len(kinds) if isinstance(kinds, dict) else 1


def _tables(module: Any, config: Any, context: int, *kind: str) -> Tables:
    cos, sin = module(torch.zeros(1, 1, 1), torch.arange(context)[None], *kind)
    half = config.head_dim // 2 if getattr(config, "head_dim", None) else cos.shape[-1] // 2
    return cos[0, :, :half].contiguous(), sin[0, :, :half].contiguous()


def _check_length(scaling: str, module: Any, context: int) -> None:
    if scaling in _LENGTH_DEPENDENT and context > module.original_max_seq_len:
        raise IncompatibleError(
            f"rotary scaling {scaling!r} has no fixed table at {context} positions",
            where="config.json: rope_parameters",
            why=f"past {module.original_max_seq_len} positions its frequencies change with the length of the text",
            fix=f"build with --max-context {module.original_max_seq_len} or less",
        )


@contextmanager
def _checked_scaling() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # every scaling trips over bad parameters in its own way
        raise CheckpointError(
            "the rotary scaling cannot be used",
            where="config.json: rope_parameters, or rope_scaling",
            why=f"{type(error).__name__}: {error}",
            fix="take the configuration from the model's original repository",
        ) from error


def drafter_tables(spec: DrafterSpec, context: int) -> Tables:
    """The tables of a drafter, by the rotary module of Qwen3, whose layout every drafter of version 1 has."""
    from transformers import Qwen3Config
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

    parameters = {"rope_type": "default", **(spec.rope_scaling or {}), "rope_theta": spec.rope_theta}
    with _checked_scaling():
        config = Qwen3Config(
            head_dim=spec.head_dim, max_position_embeddings=spec.max_positions, rope_parameters=parameters
        )
    tables = rotary_tables(Qwen3RotaryEmbedding, config, context)
    return tables["cos"], tables["sin"]


class RotaryTables(nn.Module):
    """Stands in for a decoder's rotary module: hands out the whole tables, of which `ops.rotary` reads the rows it
    needs.
    """

    def __init__(self, cos: torch.Tensor, sin: torch.Tensor) -> None:
        super().__init__()
        self.cos = nn.Buffer(cos)
        self.sin = nn.Buffer(sin)

    def forward(self, *_: Any, **__: Any) -> Tables:
        """cos and sin, [context, head_dim / 2], whatever the positions."""
        return self.cos, self.sin


class LayeredTables(nn.Module):
    """`RotaryTables` of a decoder whose kinds of layers turn differently."""

    def __init__(self, tables: Mapping[str, torch.Tensor]) -> None:
        """`tables` are those of `rotary_tables`, of a single kind or of several."""
        super().__init__()
        for name, table in tables.items():
            self.register_buffer(name, table)

    def forward(self, _x: Any, position_ids: Any = None, layer_type: str = "") -> Tables:
        """cos and sin of layers of `layer_type`, whatever the positions.

        Called as transformers calls its own modules.
        """
        suffix = f"_{layer_type}" if layer_type else ""
        return self.get_buffer(f"cos{suffix}"), self.get_buffer(f"sin{suffix}")
