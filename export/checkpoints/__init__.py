"""Opened checkpoints: files, tensors, text, and what they say of a model."""
