"""SmolLM3: layers without rotary embedding in between."""

from __future__ import annotations

from transformers.models.smollm3 import modeling_smollm3

from . import Family, Norm

FAMILY = Family(modeling=modeling_smollm3, norms=(Norm(modeling_smollm3.SmolLM3RMSNorm),))
