"""Help answers without the heavy libraries, for every command there is."""

from __future__ import annotations

import json
import subprocess
import sys

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


def test_help_loads_no_heavy_library() -> None:
    """All in one process: what an earlier command had loaded would have shown there."""
    code = f"""
import contextlib, io, json, sys
from dflash_compile.cli.main import main
for command in {["", *COMMANDS]}:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        code = main([*command.split(), "--help"])
    print(json.dumps([command, code, [name for name in {HEAVY} if name in sys.modules], shown.getvalue()]))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    answers = {command: answer for command, *answer in map(json.loads, run.stdout.splitlines())}
    assert list(answers) == ["", *COMMANDS]
    for command, (returned, loaded, shown) in answers.items():
        assert (returned, loaded) == (0, []), command
        assert all(word in shown for word in (["--json", "--debug"] if command else COMMANDS)), command
