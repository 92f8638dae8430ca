"""Help answers without the heavy libraries, for every command there is."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tree import ROOT

COMMANDS = sorted(file.stem for file in (ROOT / "cli" / "commands").glob("*.py") if file.stem != "__init__")
HEAVY = [
    "torch",
    "transformers",
    "onnx",
    "onnxruntime",
    "onnxscript",
    "safetensors",
    "gguf",
    "numpy",
    "tokenizers",
    "matplotlib",
]


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_loads_no_heavy_library(command):
    code = (
        f"import sys\nfrom dflash_compile.cli.main import main\ncode = main({[*command.split(), '--help']})\nprint([m"
        f" for m in {HEAVY} if m in sys.modules], code, file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.stderr.strip() == "[] 0"
    assert all(name in run.stdout for name in (COMMANDS if not command else ["--json", "--debug"]))
