"""OpenVINO GenAI: its own reader of GGUF files, then NNCF's compression of the weights, as its documentation has it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from peer import Setup
from peer.conversion import gguf_form, made_once

_MODEL = "openvino_model.xml"


class OpenVinoGenai:
    """Variants are precisions of the layers; the head has 8 bits in both, one scale per row."""

    VARIANTS: ClassVar = ("int4", "int8")
    INSTALL: ClassVar = "pip install openvino-genai nncf llama-cpp-python (the last for a form that NNCF can compress)"

    def __init__(self, setup: Setup) -> None:
        import nncf
        import openvino
        import openvino_genai

        self._tensor, self._library = openvino.Tensor, openvino_genai
        self.version = f"{openvino_genai.__version__}, nncf {nncf.__version__}"
        self.weights = {"int4": "int4 symmetric in blocks of 64, head int8", "int8": "int8 symmetric, a scale per row"}[
            setup.variant
        ]
        plain = made_once(setup.work / "openvino-float16", lambda path: _read(setup.model, path))
        folder = made_once(setup.work / f"openvino-{setup.variant}", lambda path: _compress(plain, path, setup.variant))
        self._pipeline = openvino_genai.LLMPipeline(str(folder), "CPU", INFERENCE_NUM_THREADS=setup.threads)

    def generate(self, prompt: Sequence[int], new_tokens: int, on_token: Callable[[int], None]) -> Mapping[str, float]:
        ids = np.array([prompt], np.int64)
        inputs = self._library.TokenizedInputs(self._tensor(ids), self._tensor(np.ones_like(ids)))
        config = self._library.GenerationConfig(max_new_tokens=new_tokens, ignore_eos=True, do_sample=False)
        self._pipeline.generate(inputs, config, _streamer(self._library, on_token))
        return {}


def _read(model: Path, folder: Path) -> None:
    """OpenVINO's form of `model` in float16: blocks of GGUF it would keep as they are, and NNCF leave alone."""
    import openvino_genai

    folder.mkdir()
    file = gguf_form(model, folder, "F16")
    openvino_genai.LLMPipeline(str(file), "CPU", enable_save_ov_model=True)
    if file != model:
        file.unlink()


def _compress(plain: Path, folder: Path, variant: str) -> None:
    import nncf
    import openvino

    modes = nncf.CompressWeightsMode
    own = {"mode": modes.INT8_SYM}
    if variant == "int4":
        own = {"mode": modes.INT4_SYM, "group_size": 64, "ratio": 1.0}
    shutil.copytree(plain, folder, ignore=shutil.ignore_patterns("openvino_model.*"))
    compressed = nncf.compress_weights(openvino.Core().read_model(plain / _MODEL), **own)
    openvino.save_model(compressed, folder / _MODEL, compress_to_fp16=False)


def _streamer(library: Any, on_token: Callable[[int], None]) -> Any:
    """Hands out ids, which its own streamers turn into text first."""

    class Streamer(library.StreamerBase):  # type: ignore[misc]
        def write(self, tokens: int | list[int]) -> Any:
            for token in [tokens] if isinstance(tokens, int) else tokens:
                on_token(token)
            return library.StreamingStatus.RUNNING

        def end(self) -> None:
            pass

    return Streamer()


PEER = OpenVinoGenai
