"""Reading GGUF: metadata, weights under transformers' names, and the tokenizer."""
