"""Core AI: from stateful graphs to one `.aimodel` per model with an entry point for every role and width."""
