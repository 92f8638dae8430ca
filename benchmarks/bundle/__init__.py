"""What `benchmarks/bundles.py` measures, one file a question."""
