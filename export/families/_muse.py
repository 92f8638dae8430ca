"""What the Muse families share: a text decoder inside a multimodal checkpoint, with normed embeddings and capped
logits.

transformers has no causal language model class of the text alone, so the head is put on the decoder here, as
`…ForConditionalGeneration` has it. Everything else is transformers' own.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import nn
from transformers.modeling_outputs import CausalLMOutputWithPast

from dflash_compile.runtime.errors import CheckpointError

from ..parameter_names import EMBEDDING, HEAD
from . import PLACEHOLDERS, TEXT, Family, Norm, text_decoder


def decoder_class(base: Any, text_model: Any) -> Any:
    """A causal language model of `text_model`, a kind of the pre-trained model `base`."""

    class MuseDecoder(base):  # type: ignore[misc]
        """Token ids to logits: the decoder, its head, and logits scaled and softly capped."""

        _tied_weights_keys = {HEAD: EMBEDDING}  # noqa: RUF012  (transformers' own attribute)

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.model = text_model(config)
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
            self.post_init()

        def forward(self, input_ids: torch.Tensor, **kwargs: Any) -> CausalLMOutputWithPast:
            """As a causal language model of transformers: input_ids [N, S] to logits [N, S, V], with whatever else is
            asked for.
            """
            text = input_ids
            for token in getattr(self.config, PLACEHOLDERS, ()):
                text = torch.where(input_ids == token, 0, text)
            out = self.model(input_ids=text, **kwargs)
            cap = self.config.final_logit_softcapping
            logits = torch.tanh(self.lm_head(out.last_hidden_state) * self.config.output_multiplier / cap) * cap
            return CausalLMOutputWithPast(logits=logits, cache=out.cache, hidden_states=out.hidden_states)

    return MuseDecoder


def family(modeling: ModuleType, base: Any, text_model: Any, norms: tuple[Norm, ...]) -> Family:
    """The family of a Muse modelling file."""
    decoder = decoder_class(base, text_model)

    def build(config: Any, dtype: torch.dtype) -> Any:
        _check_rope(config)
        return decoder._from_config(config, dtype=dtype)

    towers = ("vision_tower", "vision_adapter", "vision_projection", "audio_tower")
    stored: dict[str, str | None] = {"model.language_model.": "model.", **{f"model.{name}.": None for name in towers}}
    return Family(modeling=modeling, norms=norms, decoder=_text, build=build, stored=stored, experts_apart=True)


def _text(config: Any) -> Any:
    text = text_decoder(config)
    setattr(
        text,
        PLACEHOLDERS,
        [
            getattr(config, key)
            for key in ("image_token_id", "video_token_id", "audio_token_id")
            if hasattr(config, key)
        ],
    )
    return text


def _check_rope(config: Any) -> None:
    theta = config.rope_parameters["rope_theta"]
    if len(config.layer_rope_theta) != config.num_hidden_layers or any(
        base not in (0, theta) for base in config.layer_rope_theta
    ):
        raise CheckpointError(
            f"the rotary bases of the layers are not 0 or {theta:g}, one for each",
            where=f"config.json: {TEXT}.layer_rope_theta",
            why="transformers turns every layer that turns at all by one base",
            fix="take the configuration from the model's original repository",
        )
