"""Engines on tensorrt."""
