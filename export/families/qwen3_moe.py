"""Qwen3 with mixtures of experts: attention as in Qwen3."""

from __future__ import annotations

from transformers.models.qwen3_moe import modeling_qwen3_moe

from . import Family, Norm

FAMILY = Family(modeling=modeling_qwen3_moe, norms=(Norm(modeling_qwen3_moe.Qwen3MoeRMSNorm),), experts_apart=True)
