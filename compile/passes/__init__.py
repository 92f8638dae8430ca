"""Rewrites of an onnx-ir graph, one per file. Each takes a model, changes it in place, and returns whether it did."""
