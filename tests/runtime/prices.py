"""What cycles of SmolLM2-135M with the demo's drafter cost at int4, one thread, in plain steps of 9 ms."""

BLOCK, WIDTHS, NARROWEST = 6, (2, 4, 6), 2
VERIFY = {1: 1.0, 2: 1.0, 4: 1.54, 6: 2.02}
DRAFT = {2: 0.18, 4: 0.2, 6: 0.25}
"""with its inject"""
