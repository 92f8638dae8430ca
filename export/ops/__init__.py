"""The semantic operators of traced graphs, each with its torch reference."""
