"""Prompts to train on: forms and word lists in `.toml` files, the code that puts them together, and text of the
standard library.

Every prompt is a user message, before any chat template. Prompts that the target itself makes up need the target:
`responses.py`.
"""
