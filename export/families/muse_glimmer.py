"""Muse Glimmer: the text decoder of a multimodal checkpoint.

transformers has no causal language model class of the text alone, so the head is put on the decoder here, as
`MuseGlimmerForConditionalGeneration` has it. Everything else is transformers' own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.muse_glimmer import modeling_muse_glimmer
from transformers.models.muse_glimmer.configuration_muse_glimmer import MuseGlimmerTextConfig

from dflash_compile.runtime.errors import CheckpointError

from ..skeleton import EMBEDDING, HEAD
from . import TEXT, Family, Norm, text_decoder

_PLACEHOLDERS = "placeholder_token_ids"
"""our key of the decoder's configuration: tokens that stand for pictures and, where no picture is given, are embedded as token 0"""


class MuseGlimmerDecoder(modeling_muse_glimmer.MuseGlimmerPreTrainedModel):
    """Token ids to logits: the decoder, its head, and logits scaled and softly capped."""

    config: MuseGlimmerTextConfig  # type: ignore[assignment]
    _tied_weights_keys = {HEAD: EMBEDDING}  # noqa: RUF012  (transformers' own attribute)

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = modeling_muse_glimmer.MuseGlimmerTextModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(self, input_ids: torch.Tensor, **kwargs: Any) -> CausalLMOutputWithPast:
        """As a causal language model of transformers: input_ids [N, S] to logits [N, S, V], with whatever else is asked for."""
        text = input_ids
        for token in getattr(self.config, _PLACEHOLDERS, ()):
            text = torch.where(input_ids == token, 0, text)
        out = self.model(input_ids=text, **kwargs)
        cap = self.config.final_logit_softcapping
        logits = torch.tanh(self.lm_head(out.last_hidden_state) * self.config.output_multiplier / cap) * cap
        return CausalLMOutputWithPast(logits=logits, cache=out.cache, hidden_states=out.hidden_states)


def _decoder(config: Any) -> Any:
    text = text_decoder(config)
    setattr(text, _PLACEHOLDERS, [config.image_token_id, config.video_token_id])
    return text


def _build(config: Any, dtype: torch.dtype) -> Any:
    theta = config.rope_parameters["rope_theta"]
    if len(config.layer_rope_theta) != config.num_hidden_layers or any(base not in (0, theta) for base in config.layer_rope_theta):
        raise CheckpointError(
            f"the rotary bases of the layers are not 0 or {theta:g}, one for each",
            where=f"config.json: {TEXT}.layer_rope_theta",
            why="transformers turns every layer that turns at all by one base",
            fix="take the configuration from the model's original repository",
        )
    return MuseGlimmerDecoder._from_config(config, dtype=dtype)  # type: ignore[no-untyped-call]


FAMILY = Family(
    modeling=modeling_muse_glimmer,
    norms=(
        Norm(modeling_muse_glimmer.MuseGlimmerRMSNorm, eps="eps"),
        Norm(modeling_muse_glimmer.MuseGlimmerTextCenteredRMSNorm, eps="eps", offset=1.0),
    ),
    decoder=_decoder,
    build=_build,
    stored={
        "model.language_model.": "model.",
        "model.vision_tower.": None,
        "model.vision_adapter.": None,
        "model.vision_projection.": None,
    },
)
