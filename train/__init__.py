"""The DFlash training recipe: responses, features, drafter training, evaluation.

Knows nothing about engines or bundles: it works on torch modules and writes a
drafter checkpoint in the z-lab layout.
"""
