"""Engines on coreai."""
