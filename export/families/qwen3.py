"""Qwen3, dense: per-head norms on queries and keys, optional sliding layers."""

from __future__ import annotations

from transformers.models.qwen3 import modeling_qwen3

from . import Family, Norm

FAMILY = Family(modeling=modeling_qwen3, norms=(Norm(modeling_qwen3.Qwen3RMSNorm),))
