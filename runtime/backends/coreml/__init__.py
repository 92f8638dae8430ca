"""Engines on coreml."""
