"""Tracing the target and the drafter into weightless graphs."""
