"""Generation defaults of a checkpoint that change what transformers says even where it does not sample."""

from __future__ import annotations

from collections.abc import Mapping

NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "repetition_penalty": (None, 1),
    "encoder_repetition_penalty": (None, 1),
    "no_repeat_ngram_size": (None, 0),
    "encoder_no_repeat_ngram_size": (None, 0),
    "guidance_scale": (None, 1),
    "num_beams": (None, 1),
    "min_length": (None, 0),
    "min_new_tokens": (None, 0),
    "bad_words_ids": (None, []),
    "sequence_bias": (None, {}, []),
    "suppress_tokens": (None, []),
    "begin_suppress_tokens": (None, []),
    "forced_bos_token_id": (None,),
    "forced_eos_token_id": (None,),
    "exponential_decay_length_penalty": (None,),
    "penalty_alpha": (None, 0),
    "dola_layers": (None,),
    "watermarking_config": (None,),
    "stop_strings": (None, []),
}
"""defaults that apply to greedy decoding as well, and the values with which they do nothing"""


def greedy_note(generation: Mapping[str, object]) -> str | None:
    """A sentence for the user about defaults that an answer here does without, None where there are none."""
    found = [
        f"{key} = {generation[key]}"
        for key, neutral in NEUTRAL.items()
        if generation.get(key, neutral[0]) not in neutral
    ]
    if not found:
        return None
    return (
        f"the checkpoint's generation defaults ask for {', '.join(found)}: transformers applies that to greedy decoding"
        " as well, a bundle does not, so their texts differ"
    )
