"""Parts of a tokenizer that end the process, or never end, are refused before the library sees them."""

from __future__ import annotations

import base64
import json
import subprocess
import sys

import pytest
from tiny import make_tokenizer, write_manifest

from dflash_compile.runtime.bundle.read import open_bundle, read_manifest
from dflash_compile.runtime.errors import BundleError
from dflash_compile.runtime.text import open_text
from dflash_compile.runtime.tokenizer_bounds import check_tokenizer_file


def replace(found, content, kind="String"):
    return {"type": "Replace", "pattern": {kind: found}, "content": content}


def charsmap(data):
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(data).decode()}


BAD = {
    "a map of 4 GB": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "/////w=="}},
    "a map cut short": {"normalizer": charsmap(b"\x08\0\0\0\1\2\3\4")},
    "a map of three bytes": {"normalizer": charsmap(b"\0\0\0")},
    "an empty map": {"normalizer": charsmap(b"\0\0\0\0")},
    "a map of texts that are none": {"normalizer": charsmap(b"\x04\0\0\0\1\2\3\4\xff\xfe")},
    "a map that is no base64": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "§"}},
    "a map inside": {
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, charsmap(b"\xff\xff\xff\xff")]}
    },
    "doubled 40 times": {"normalizer": {"type": "Sequence", "normalizers": [replace("a", "aa")] * 40}},
    "one into many": {"normalizer": replace("a", "b" * 10_000)},
    "an expression into many": {"normalizer": replace(".*", "b" * 10_000, "Regex")},
    "answers doubled": {"decoder": {"type": "Sequence", "decoders": [replace("a", "aa")] * 40}},
    "parts without end": {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}] * 1001}},
    "doubled, without types": {"normalizer": {"normalizers": [{"pattern": {"String": "a"}, "content": "a" * 50}] * 3}},
    "nothing replaced, without a type": {"normalizer": {"pattern": {"String": ""}, "content": "x"}},
    "nothing before, without a type": {"normalizer": {"prepend": ""}},
    "nothing replaced": {"normalizer": replace("", "x")},
    "nothing before": {"normalizer": {"type": "Prepend", "prepend": ""}},
    "pieces of no length": {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
    "stripped without end": {"decoder": {"type": "Strip", "content": "a", "start": 0, "stop": 1 << 60}},
}


@pytest.mark.parametrize("name", BAD)
def test_it_is_refused(tiny_bundle, name):
    file = tiny_bundle / "tokenizer/tokenizer.json"
    file.write_text(json.dumps(json.loads(make_tokenizer().to_str()) | BAD[name]))
    write_manifest(tiny_bundle, read_manifest(tiny_bundle))
    with pytest.raises(ValueError, match=r"."):
        check_tokenizer_file(file.read_bytes())
    with pytest.raises(BundleError, match="tokenizer cannot be read"):
        open_text(open_bundle(tiny_bundle))


@pytest.mark.parametrize("depth", [100, 100_000])
def test_parts_nested_without_end(depth):
    nested = '{"type":"Sequence","normalizers":[' * depth + "]}" * depth
    with pytest.raises(ValueError, match="end"):
        check_tokenizer_file(f'{{"normalizer":{nested}}}'.encode())


def test_the_library_alone_would_abort():
    """Why the map is looked at first: where this no longer holds, the check may go."""
    content = json.dumps(json.loads(make_tokenizer().to_str()) | BAD["a map of 4 GB"])
    limit = "import resource; resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))"
    code = f"{limit}; from tokenizers import Tokenizer; Tokenizer.from_str({content!r})"
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode != 0


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")]}},
        {
            "decoder": {
                "type": "Sequence",
                "decoders": [replace("▁", " "), {"type": "Strip", "content": " ", "start": 1, "stop": 0}],
            }
        },
        {"normalizer": charsmap(b"\x04\0\0\0\1\2\3\4texts\0")},
        {
            "pre_tokenizer": {
                "type": "Split",
                "pattern": {"Regex": r"\p{N}{1,3}"},
                "behavior": "Isolated",
                "invert": False,
            }
        },
    ],
    ids=["none", "llama", "llama's decoder", "a map", "split"],
)
def test_what_is_published_passes(parts):
    check_tokenizer_file(json.dumps(json.loads(make_tokenizer().to_str()) | parts).encode())
