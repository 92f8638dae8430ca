"""Sampling that no draft can change: a token is a function of the logits before it, the parameters, the seed and its
position.
"""
