"""GGUF `llama`: the converter interleaves the rows of every query and key head, because llama.cpp rotates
neighbours.
"""

from __future__ import annotations

MODEL_TYPE = "llama"
INTERLEAVED_ROPE = True
