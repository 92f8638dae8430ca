"""Semantic graphs in the operators of one runtime, one file per form."""
