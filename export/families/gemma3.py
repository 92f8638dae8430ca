"""Gemma 3 with a vision tower: its text decoder, which is that of `gemma3_text`."""

from __future__ import annotations

from dataclasses import replace

from . import gemma3_text, text_decoder

FAMILY = replace(
    gemma3_text.FAMILY,
    decoder=text_decoder,
    omitted=("vocab_size", "num_attention_heads", "max_position_embeddings", "rms_norm_eps", "rope_theta"),
    stored={
        "model.language_model.": "model.",
        "model.vision_tower.": None,
        "model.multi_modal_projector.": None,
        # as written before transformers 4.52
        "language_model.model.": "model.",
        "language_model.lm_head.": "lm_head.",
        "vision_tower.": None,
        "multi_modal_projector.": None,
    },
)
