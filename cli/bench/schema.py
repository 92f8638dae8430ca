"""The JSON schema of the benchmark's document, generated from its records.

`python -m dflash_compile.cli.bench.schema > artifacts/bench.schema.json` renews the checked-in copy.
"""

from __future__ import annotations

import json
import sys

import msgspec

from ..report import VERSION, schema
from .records import BenchRecord


def bench_schema() -> str:
    """The schema as the text of a JSON document (draft 2020-12)."""
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"DFlash benchmark, version {VERSION}",
        **msgspec.json.schema(BenchRecord),
    }
    # Every command's document carries this key; the command line adds it.
    record = document["$defs"]["BenchRecord"]
    record["properties"] = {"schema": {"const": schema("bench")}, **record["properties"]}
    record["required"] = ["schema", *record["required"]]
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(bench_schema())
