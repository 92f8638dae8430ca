"""GGUF architectures: one file each, named as `general.architecture` names it.

Each has `MODEL_TYPE`, transformers' name for it, and `INTERLEAVED_ROPE`: whether the rows of every query and key head
are stored with its two halves interleaved.
"""
