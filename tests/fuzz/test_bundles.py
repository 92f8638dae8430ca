"""Mutated manifests and tokenizers: a bundle opens, or an error of ours says why. Seeds are fixed."""

from __future__ import annotations

import json
import random
from contextlib import suppress

import pytest
from tiny import write_bundle, write_manifest

from dflash_compile.runtime.bundle.read import open_bundle, read_manifest
from dflash_compile.runtime.errors import DFlashError
from dflash_compile.runtime.text import open_text

VALUES = [None, True, 0, 1, -1, 2**31, 2**64, 1.5, 1e308, "", "a", "../x", "/etc/passwd", "x" * 300, [], {}, [[]]]


def places(value, found):
    """Every (container, key) of a JSON value."""
    for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
        found.append((value, key))
        if isinstance(entry, dict | list):
            places(entry, found)
    return found


def mutate(document, chance):
    """One to three changes: another value, one less, a copy of another part."""
    for _ in range(chance.randint(1, 3)):
        spots = places(document, [])
        container, key = chance.choice(spots)
        other, other_key = chance.choice(spots)
        action = chance.randrange(3)
        if action == 0:
            container[key] = chance.choice(VALUES)
        elif action == 1:
            del container[key]
        else:
            container[key] = json.loads(json.dumps(other[other_key]))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return write_bundle(tmp_path_factory.mktemp("fuzz") / "bundle")


CASES = [pytest.param(range(300), id="300"), pytest.param(range(300, 3000), id="more", marks=pytest.mark.slow)]


@pytest.mark.parametrize("seeds", CASES)
def test_manifests(bundle, seeds):
    file = bundle / "manifest.json"
    whole = file.read_text()
    try:
        for seed in seeds:
            document = json.loads(whole)
            mutate(document, random.Random(seed))
            file.write_text(json.dumps(document))
            with suppress(DFlashError):  # anything else fails the test
                open_text(open_bundle(bundle))
    finally:
        file.write_text(whole)


@pytest.mark.parametrize("seeds", CASES)
def test_tokenizers(bundle, seeds):
    file = bundle / "tokenizer" / "tokenizer.json"
    whole = file.read_text()
    try:
        for seed in seeds:
            document = json.loads(whole)
            mutate(document, random.Random(seed))
            file.write_text(json.dumps(document))
            write_manifest(bundle, read_manifest(bundle))
            with suppress(DFlashError):
                text = open_text(open_bundle(bundle))
                stream = text.stream()
                for token in text.encode("Some text, é 😀 <eos>", raw=True):
                    stream.feed(token)
    finally:
        file.write_text(whole)
        write_manifest(bundle, read_manifest(bundle))
