"""Engines on onnxruntime."""
