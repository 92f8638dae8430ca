"""Several packages of one function each → one package with all of them, whose weights are stored once.

Equal inputs give equal bytes.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from pathlib import Path

from .convert import quiet

MODEL, WEIGHTS = "Data/com.apple.CoreML/model.mlmodel", "Data/com.apple.CoreML/weights/weight.bin"
INDEX = "Manifest.json"


def merge(functions: Mapping[str, Path], package: Path) -> None:
    """Write `package` with a function for every name in `functions`, whose value is the package that has it as
    `main`.
    """
    with quiet():
        from coremltools.models.utils import MultiFunctionDescriptor, save_multifunction

        descriptor = MultiFunctionDescriptor()
        for name, source in functions.items():
            descriptor.add_function(str(source), src_function_name="main", target_function_name=name)
        descriptor.default_function_name = next(iter(functions))
        save_multifunction(descriptor, str(package))
    _settle(package)


def _settle(package: Path) -> None:
    """Take out what differs from run to run: identifiers drawn at random, and the order of maps in the model file."""
    from coremltools import proto

    index = json.loads((package / INDEX).read_text())
    renamed = {
        key: str(uuid.uuid5(uuid.NAMESPACE_URL, entry["path"])).upper()
        for key, entry in index["itemInfoEntries"].items()
    }
    index["itemInfoEntries"] = {
        renamed[key]: entry for key, entry in sorted(index["itemInfoEntries"].items(), key=lambda item: item[1]["path"])
    }
    index["rootModelIdentifier"] = renamed[index["rootModelIdentifier"]]
    (package / INDEX).write_text(json.dumps(index, indent=4) + "\n")
    spec = proto.Model_pb2.Model()
    spec.ParseFromString((package / MODEL).read_bytes())
    (package / MODEL).write_bytes(spec.SerializeToString(deterministic=True))
