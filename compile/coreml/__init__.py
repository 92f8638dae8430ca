"""Core ML: from stateful graphs to one multifunction package per model, and the proof that a saved package means what
was traced.
"""
