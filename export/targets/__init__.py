"""Target layouts: one file each, found by looking at the path (`registry.py`)."""
