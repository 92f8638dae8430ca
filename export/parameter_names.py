"""Parameters that every decoder of transformers has, by the names its modules give them."""

HEAD = "lm_head.weight"
EMBEDDING = "model.embed_tokens.weight"
