"""GGUF `qwen3`: rows in transformers' order, norms on query and key heads."""

from __future__ import annotations

MODEL_TYPE = "qwen3"
INTERLEAVED_ROPE = False
