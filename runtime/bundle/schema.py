"""The manifest's JSON schema, generated from its records.

`python -m dflash_compile.runtime.bundle.schema > artifacts/bundle.schema.json` renews the checked-in copy.
"""

from __future__ import annotations

import json
import sys

import msgspec

from .manifest import VERSION, Manifest


def bundle_schema() -> str:
    """The schema as the text of a JSON document (draft 2020-12)."""
    schema = msgspec.json.schema(Manifest)
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"DFlash bundle manifest, version {VERSION}",
        **schema,
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(bundle_schema())
