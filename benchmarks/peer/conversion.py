"""Forms of the model that a peer reads: made once, kept for the next run."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path


def made_once(path: Path, make: Callable[[Path], object]) -> Path:
    """`path`, a file or folder, which `make` writes where it is given if it is not there yet.

    A run that fails leaves nothing at `path`.
    """
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_name(f".{path.name}.part")
    if staged.is_dir():
        shutil.rmtree(staged)
    staged.unlink(missing_ok=True)
    make(staged)
    staged.replace(path)
    return path


def work_folder(root: Path, model: Path) -> Path:
    """Where the forms of `model` belong: another file of the same name has another folder."""
    with model.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return root / f"{model.stem}-{digest[:12]}"


def transformers_folder(model: Path, work: Path) -> Path:
    """A transformers directory of the GGUF file `model`, weights in float32, read and written by transformers
    itself.
    """

    def make(folder: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

        config = GgufConfig(dequantize=True)
        loaded = AutoModelForCausalLM.from_pretrained(
            model.parent, gguf_file=model.name, quantization_config=config, dtype=torch.float32
        )
        # It counts as quantised still, and would refuse to be written.
        loaded.hf_quantizer = None
        loaded.save_pretrained(folder)
        AutoTokenizer.from_pretrained(model.parent, gguf_file=model.name).save_pretrained(folder)

    return made_once(work / "transformers", make)


def gguf_form(model: Path, work: Path, form: str) -> Path:
    """The GGUF file `model` in another of llama.cpp's forms, say `Q4_0`, made by llama.cpp; itself where that is what
    it is. Raises `ImportError`.
    """
    if model.stem.upper().endswith(form):
        return model

    def make(path: Path) -> None:
        import llama_cpp

        options = llama_cpp.llama_model_quantize_default_params()
        options.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{form}")
        options.allow_requantize = True
        if code := llama_cpp.llama_model_quantize(str(model).encode(), str(path).encode(), options):
            raise RuntimeError(f"llama_model_quantize to {form} gave {code}")

    return made_once(work / f"{form}.gguf", make)
