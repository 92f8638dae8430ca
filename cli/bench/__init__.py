"""What `dflash-compile bench` does, without the drawing: prompts, sides that take turns, figures, and the documents
they go into.
"""
