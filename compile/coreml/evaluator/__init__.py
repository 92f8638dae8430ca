"""Core ML's intermediate language, executed in torch: what a saved package computes can be seen on a machine without a
Mac.

It checks what the artifact means. It says nothing about Apple's kernels: their rounding, their speed, where they run.
"""
