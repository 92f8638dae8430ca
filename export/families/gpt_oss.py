"""gpt-oss: mixtures of experts, attention sinks, every second layer with a window."""

from __future__ import annotations

from transformers.models.gpt_oss import modeling_gpt_oss

from . import Family, Norm

FAMILY = Family(modeling=modeling_gpt_oss, norms=(Norm(modeling_gpt_oss.GptOssRMSNorm),))
