"""The DFlash training recipe: responses, features, drafter training, evaluation.

Trains torch modules and writes a drafter checkpoint in the layout that its options need. Knows nothing of bundles or
back-ends: where a compiled target makes the data, it is handed in (`compiled_target.py`).
"""
