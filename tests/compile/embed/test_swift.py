"""The Swift form of an app's source, from the template of the Python form, reads and calls what is there.

Nobody compiles it here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dflash_compile.compile.coreml.evaluator.evaluate import Evaluator
from dflash_compile.compile.embed.source import source_of
from dflash_compile.runtime.bundle.parts import calls
from dflash_compile.runtime.bundle.read import read_manifest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module", params=["gpu-state", "ane-io", "cut"])
def either(request: pytest.FixtureRequest, apple_bundle: Callable[..., Path]) -> Path:
    """A Core ML bundle of each cache policy, and one that is cut into several packages."""
    kinds = {
        "gpu-state": ("llama", "coreml", "fp16"),
        "ane-io": ("llama", "coreml", "fp16", "ane-io"),
        "cut": ("deep-llama", "coreml", "fp16", "ane-io", "160000"),
    }
    return apple_bundle(*kinds[request.param])


@pytest.fixture(scope="module")
def swift(either: Path) -> dict[str, str]:
    return source_of(read_manifest(either), "swift")


def structures(text: str) -> dict[str, dict[str, tuple[str, str]]]:
    """Every Decodable structure of Swift source: type and key by field."""
    found = {}
    for name, body in re.findall(r"^struct (\w+): Decodable \{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL):
        types = dict(re.findall(r"^    let (\w+): (.+)$", body, re.MULTILINE))
        keys = dict(re.findall(r'^        case (\w+) = "(\w+)"$', body, re.MULTILINE))
        assert keys.keys() == types.keys(), f"{name} decodes fields without keys"
        found[name] = {field: (types[field], key) for field, key in keys.items()}
    return found


def check_decodes(value: Any, kind: str, known: dict[str, dict[str, tuple[str, str]]], where: str) -> None:
    """`value` is what Swift's decoder takes for the type `kind`."""
    if kind.endswith("?"):
        if value is not None:
            check_decodes(value, kind[:-1], known, where)
    elif kind == "[String: String]":
        assert all(isinstance(item, str) for item in value.values()), where
    elif kind.startswith("["):
        for number, item in enumerate(value):
            check_decodes(item, kind[1:-1], known, f"{where}[{number}]")
    elif kind in known:
        for inner, key in known[kind].values():
            assert key in value, f"{where} has no {key}"
            check_decodes(value[key], inner, known, f"{where}.{key}")
    else:
        assert type(value) is {"Int": int, "String": str}[kind], f"{where} is {value!r}, not {kind}"


def test_swift_decodes_only_keys_that_a_manifest_has(either: Path, swift: dict[str, str]) -> None:
    known = structures(swift["Sources/DFlash/Manifest.swift"])
    assert {
        "Manifest",
        "ModelRecord",
        "Part",
        "Place",
        "Port",
        "Pairing",
        "DraftVocabulary",
        "Configuration",
    } <= known.keys()
    document = json.loads((either / "manifest.json").read_text())
    check_decodes(document, "Manifest", known, "manifest")
    check_decodes({"size": 5, "file": "x"}, "DraftVocabulary", known, "draft_vocabulary")
    schema = json.loads((ROOT / "artifacts" / "bundle.schema.json").read_text())["$defs"]["DraftVocabularyRecord"][
        "properties"
    ]
    assert {key for _, key in known["DraftVocabulary"].values()} <= schema.keys()
    del document["pairing"]["mask_id"]
    with pytest.raises(AssertionError, match="mask_id"):
        check_decodes(document, "Manifest", known, "manifest")


def test_swift_names_only_what_the_packages_have(either: Path, swift: dict[str, str]) -> None:
    """Functions by role, their inputs and outputs: as the saved packages declare them."""
    manifest, loop = read_manifest(either), swift["Sources/DFlash/Generator.swift"]
    hosted = manifest.config["cache_policy"] == "ane-io"
    bodies = dict(re.findall(r"func (\w+)\(.*?\{\n(.*?)\n    \}", loop, re.DOTALL))
    given = {name: set(re.findall(r'"(\w+)": ', body)) for name, body in bodies.items()}
    read = {name: set(re.findall(r'integers\("(\w+)"\)', body)) for name, body in bodies.items()}
    given["inject"] = set(
        re.findall(r'^            "(\w+)": MLFeatureValue', swift["Sources/DFlash/Model.swift"], re.MULTILINE)
    )
    model_file = swift["Sources/DFlash/Model.swift"]
    asked = set(re.findall(r'\$0\.name == "(\w+)"', model_file))
    assert asked == ({"cache", "rows"} if hosted else set())
    assert hosted == ('["cache": cache]' in model_file)
    assert set(re.findall(r'halves\(found\["(\w+)"\]', model_file)) == asked - {"cache"}
    taps = re.search(r'pairing\.taps\.map \{ "(\w+)\\\(\$0\)" \} : \["(\w+)"\]', swift["Sources/DFlash/Manifest.swift"])
    assert taps is not None
    callers = {"prefill": "prefill", "verify": "cycle", "decode": "cycle", "inject": "inject", "draft": "draft"}
    assert set(re.findall(r'graphs\("(\w+)"\)', loop)) == callers.keys()
    files = {graph.file for model in (manifest.target, manifest.drafter) for graph in model.graphs}
    packages = {file: Evaluator(either / file).saved.functions for file in files}
    for model in (manifest.target, manifest.drafter):
        for parts in calls(model):
            caller, made, taken = callers[parts[0].role], set(), set()
            for graph in parts:
                function = packages[graph.file][graph.function]
                outputs = {output.name for output in function.outputs}
                taken |= set(function.inputs) - made
                made |= outputs
                assert ("rows" in outputs) == (hosted and graph.role != "draft")
            assert given[caller] | {"cache"} == taken, parts[0].role
            assert read.get(caller, set()) <= made, parts[0].role
            if model is manifest.target:
                listed = [f"{taps[1]}{tap}" for tap in manifest.pairing.taps] if len(parts) > 1 else [taps[2]]
                assert set(listed) <= made


def test_swift_gives_no_call_a_copy_of_the_cache(either: Path, swift: dict[str, str]) -> None:
    """As the Python form, of which that is measured: one array over memory of its own, named where a model is made and
    nowhere in a call.
    """
    model, hosted = swift["Sources/DFlash/Model.swift"], read_manifest(either).config["cache_policy"] == "ane-io"
    assert model.count("MLFeatureValue(multiArray: memory.array)") == model.count("try Memory(port.shape)") == hosted
    run = re.search(r"    (?:private )?func run\(.*?\n    \}\n", model, re.DOTALL)
    assert run is not None
    assert set(re.findall(r"\bcache\.\w+", run[0])) == ({"cache.commit", "cache.hold"} if hosted else set())
    assert not re.search(r"multiArray|shapedArray:|MLDictionaryFeatureProvider" if hosted else r"memory|cache", run[0])
    text = swift.get("Sources/DFlash/HostCache.swift", "")
    assert (
        ("dataPointer: raw" in text) == ("(first + place).update(from: base + start, count: count)" in text) == hosted
    )


def test_both_languages_have_the_same_loop(swift: dict[str, str], either: Path) -> None:
    """Taken back to what they share, the two are one text: same functions, same order, same comments."""
    python = source_of(read_manifest(either), "python")["dflash_generate.py"]
    names = [
        re.findall(pattern, text[text.index("The greedy draft–verify loop. It") :])
        for pattern, text in (
            (
                r"(?:func|def) (generate|prefill|cycle|draft|show|narrowest|padded)\b",
                swift["Sources/DFlash/Generator.swift"],
            ),
            (r"(?:func|def) (generate|prefill|cycle|draft|show|narrowest|padded)\b", python),
        )
    ]
    assert names[0] == names[1] == ["generate", "prefill", "cycle", "draft", "show", "narrowest", "padded"]
    for name in ("loop", "cache"):
        template = (ROOT / "compile" / "embed" / "templates" / f"{name}.jinja").read_text()
        assert not re.search(r"swift|python", template.partition("\n\n\n")[2], re.IGNORECASE), (
            "a loop that asks for the language is two loops"
        )
    cache = swift.get("Sources/DFlash/HostCache.swift", "")
    methods = ["hold", "commit"] if cache else []
    assert re.findall(r"func (hold|commit)\b", cache) == re.findall(r"def (hold|commit)\b", python) == methods


def test_swift_is_well_formed(swift: dict[str, str]) -> None:
    grammar = pytest.importorskip("tree_sitter_swift", reason="the test extra brings a grammar of Swift")
    from tree_sitter import Language, Parser

    parser = Parser(Language(grammar.language()))
    for name, text in swift.items():
        if name.endswith(".swift"):
            assert not parser.parse(text.encode()).root_node.has_error, name
            assert parser.parse(text.replace("{", "", 1).encode()).root_node.has_error or "{" not in text


def test_it_says_that_nobody_compiled_the_swift(swift: dict[str, str]) -> None:
    assert "neither compiled nor run" in swift["README.md"]
    assert all("{{" not in text and "\x01" not in text and "\x02" not in text for text in swift.values())
