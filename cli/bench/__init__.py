"""What `dflash-compile bench` does, without the drawing: prompts, variants that take turns, figures, and the documents
they go into.
"""
