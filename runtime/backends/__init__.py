"""Back-ends: a folder each, with a module `backend`; `runtime/backend.py` finds them by name."""
