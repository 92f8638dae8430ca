"""Llama: Llama 2 and 3, SmolLM2 and everything else that says `model_type: llama`."""

from __future__ import annotations

from transformers.models.llama import modeling_llama

from . import Family, Norm

FAMILY = Family(modeling=modeling_llama, norms=(Norm(modeling_llama.LlamaRMSNorm),))
