"""The commands on a tiny target and drafter: built, shown, run, damaged, interrupted."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys

import pytest

from dflash_compile.cli.demo import bundle as demo_bundle
from dflash_compile.compile.build import BuildOptions
from dflash_compile.runtime.bundle.read import read_manifest

PROMPT = "the quick brown fox"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """(target, drafter), as words of a command line."""
    from models import write_drafter, write_target

    folder = tmp_path_factory.mktemp("models")
    target = write_target(folder / "target")
    return str(target), str(write_drafter(folder / "drafter", target))


@pytest.fixture(scope="module")
def bundle(models, tmp_path_factory):
    """A built bundle; tests that change it copy it first."""
    from dflash_compile.cli.main import main

    path = tmp_path_factory.mktemp("bundles") / "tiny"
    assert (
        main(["build", *models, "-o", str(path), "--precision", "fp32", "--max-context", "128", "--block", "4", "-q"])
        == 0
    )
    return path


@pytest.fixture
def copy(bundle, tmp_path):
    return shutil.copytree(bundle, tmp_path / "copy")


def _has_row(text, name, value):
    return any(line.split()[:1] == [name] and line.partition("  [")[0].endswith(value) for line in text.splitlines())


def test_build_options_reach_the_bundle(bundle):
    manifest = read_manifest(bundle)
    assert (manifest.context, manifest.pairing.block, manifest.target.precision) == (128, 4, "fp32")


def test_build_does_not_overwrite_unasked_and_says_where_the_bundle_is(cli, models, bundle, copy):
    again = ("build", *models, "-o", str(copy), "--precision", "int4", "--json")
    refused = cli(*again)
    assert refused.code == 2
    assert "--force" in refused.document["fix"]
    assert cli(*again, "--force").document == {"schema": "dflash-compile.build/1", "bundle": str(copy), "notes": []}
    assert read_manifest(copy).target.precision == "int4"


def test_int4_weights_are_rounded_for_prompts_or_for_a_text(cli, models, tmp_path):
    """Each gives other weights than the other, the same twice, and the manifest says which."""
    text = tmp_path / "some.txt"
    text.write_text("the quick brown fox jumps over the lazy dog and runs home " * 40)
    ways = {"prompts": "prompts", "again": "prompts", "text": str(text)}
    for name, given in ways.items():
        assert (
            cli(
                "build",
                *models,
                "-o",
                str(tmp_path / name),
                "--precision",
                "int4",
                "--max-context",
                "128",
                "--calibrate",
                given,
            ).code
            == 0
        )
    manifests = {name: read_manifest(tmp_path / name) for name in ways}
    assert manifests["prompts"].files == manifests["again"].files
    assert manifests["prompts"].files["target/target.onnx.data"] != manifests["text"].files["target/target.onnx.data"]
    said = {name: manifest.config["calibration"] for name, manifest in manifests.items()}
    assert said["prompts"] == said["again"]
    assert said["prompts"].startswith("prompts ")
    assert said["text"].startswith("text ")


@pytest.mark.parametrize(
    ("options", "what"),
    [(("--precision", "int8", "--calibrate", "prompts"), "calibration at precision int8"), ((), "cannot be read")],
)
def test_what_cannot_be_calibrated_is_refused_before_anything_is_built(cli, models, tmp_path, options, what):
    refused = cli(
        "build",
        *models,
        "-o",
        str(tmp_path / "b"),
        "--json",
        *(options or ("--precision", "int4", "--calibrate", str(tmp_path / "none"))),
    )
    assert (refused.code, what in refused.document["what"]) == (2, True)
    assert not list(tmp_path.iterdir())


def test_an_int8_drafter_is_made_shown_and_built_onto_the_compiled_target(cli, models, bundle, tmp_path):
    int8, swapped = tmp_path / "int8", tmp_path / "swapped"
    assert cli("quantize", models[1], "-o", str(int8), "--json").document["drafter"] == str(int8)
    refused = cli("quantize", models[1], "-o", str(int8))
    assert (refused.code, "--force" in refused.err) == (2, True)
    assert _has_row(cli("inspect", str(int8)).out, "hidden", "64")
    shared = (
        "build",
        models[0],
        str(int8),
        "-o",
        str(swapped),
        "--target-from",
        str(bundle),
        "--drafter-precision",
        "int4",
        "--precision",
    )
    refused = cli(*shared, "int8", "--max-context", "128", "--json")
    assert (refused.code, refused.document["why"]) == (3, "precision of the target: fp32 there, int8 here")
    assert cli(*shared, "fp32", "--max-context", "128").code == 0
    rows = cli("inspect", str(swapped)).out
    assert _has_row(rows, "target", "fp32)")
    assert _has_row(rows, "drafter", "int4)")
    asked = ("--prompt", PROMPT, "--raw", "--max-new-tokens", "12", "-q")
    assert cli("run", str(swapped), *asked).out == cli("run", str(bundle), *asked).out


def test_build_passes_on_what_it_noticed(cli, models, tmp_path):
    from models import write_drafter

    drafter = write_drafter(tmp_path / "drafter", models[0], rope_theta=5e5)
    command = ("build", models[0], str(drafter), "--max-context", "64", "-o")
    said = cli(*command, str(tmp_path / "one"))
    assert "note: the drafter's RoPE base is 500000" in said.err
    assert "RoPE" not in said.out
    assert cli(*command, str(tmp_path / "two"), "--json").document["notes"] == [
        "the drafter's RoPE base is 500000, the target's 10000"
    ]


def test_run_gives_the_same_text_with_and_without_the_drafter(cli, bundle):
    asked = ("run", str(bundle), "--prompt", PROMPT, "--raw", "--max-new-tokens", "24", "--json")
    drafted, plain = cli(*asked).document, cli(*asked, "--no-draft").document
    assert drafted["text"] == plain["text"] != ""
    assert (drafted["draft"], plain["draft"]) == (True, False)
    assert drafted["statistics"]["acceptance_by_position"]
    assert not plain["statistics"]["acceptance_by_position"]
    streamed = cli("run", str(bundle), "--prompt", PROMPT, "--raw", "--max-new-tokens", "24", "-q")
    assert streamed.out == drafted["text"] + "\n"


def test_inspect_shows_a_bundle_and_both_checkpoints(cli, bundle, models):
    document = cli("inspect", str(bundle), "--json").document
    assert document["kind"] == "bundle"
    assert document["manifest"]["pairing"]["block"] == 4
    assert _has_row(cli("inspect", str(bundle)).out, "context", "128 tokens")
    for path, kind in zip(models, ("target", "drafter"), strict=True):
        assert cli("inspect", path, "--json").document["kind"] == kind
        assert _has_row(cli("inspect", path).out, "hidden", "64")


def test_inspect_says_where_a_drafters_fields_were_found(cli, models):
    out = cli("inspect", models[1]).out
    assert re.search(r"^taps +0, 1 +\[dflash_config.target_layer_ids\]$", out, re.MULTILINE), out
    assert re.search(r"^windows .*\[layer_types\]$", out, re.MULTILINE), out


def test_inspect_reads_no_whole_file_unless_its_hash_is_asked_for(cli, models, monkeypatch):
    from dflash_compile.export.checkpoints.files import FileHashes

    assert len(cli("inspect", models[0], "--json").document["files"]["model.safetensors"]) == 64
    monkeypatch.setattr(FileHashes, "__getitem__", lambda *_: pytest.fail("a file was hashed"))
    assert cli("inspect", models[0]).code == 0


def test_one_changed_byte_is_a_failed_check(cli, copy):
    engine = next((copy / "target").iterdir())
    data = bytearray(engine.read_bytes())
    data[len(data) // 2] ^= 1
    engine.write_bytes(data)
    for command in (("inspect", str(copy)), ("run", str(copy), "--prompt", PROMPT)):
        result = cli(*command, "--json")
        assert result.code == 1
        assert engine.name in result.document["where"] + result.document["what"]


def test_a_bundle_from_a_newer_version_is_incompatible(cli, copy):
    manifest = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps(manifest | {"version": manifest["version"] + 1}))
    result = cli("run", str(copy), "--prompt", PROMPT)
    assert result.code == 3
    assert "upgrade" in result.err


def test_a_pair_that_does_not_belong_together_is_incompatible(cli, models, tmp_path):
    from models import write_drafter

    stranger = write_drafter(tmp_path / "stranger", models[0], vocab_size=200, mask_id=3)
    result = cli("build", models[0], str(stranger), "-o", str(tmp_path / "out"), "--json")
    assert result.code == 3
    assert result.document["error"] == "PairingError"
    assert not (tmp_path / "out").exists()


def test_a_prompt_that_is_too_long_is_a_usage_error(cli, bundle):
    result = cli("run", str(bundle), "--prompt", PROMPT * 200, "--json")
    assert result.code == 2
    assert result.document["error"] == "LengthError"


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_build_stopped_midway_leaves_nothing(models, tmp_path, number):
    command = [
        sys.executable,
        "-c",
        "from dflash_compile.cli.main import entry; entry()",
        "build",
        *models,
        "-o",
        str(tmp_path / "out" / "bundle"),
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if "binding" in line:
            break
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]


@pytest.fixture
def tiny_demo(models, monkeypatch, tmp_path):
    """`ensure_bundle` for the tiny models; the drafter is a copy that may be changed."""
    drafter = shutil.copytree(models[1], tmp_path / "drafter")
    monkeypatch.setattr(demo_bundle, "TARGET", models[0])
    monkeypatch.setattr(demo_bundle, "DRAFTER", drafter)

    def ensure(**options):
        return demo_bundle.ensure_bundle(
            tmp_path / "bundle", BuildOptions(force=True, precision="fp32", **options), lambda *_: None
        )

    return ensure, drafter, tmp_path / "bundle"


def test_the_demo_builds_once_and_again_only_when_something_changed(tiny_demo):
    ensure, drafter, bundle = tiny_demo
    assert [ensure(), ensure()] == [True, False]
    assert [ensure(context=64), ensure(context=64)] == [True, False]
    from models import write_drafter

    write_drafter(drafter, demo_bundle.TARGET, seed=5)
    assert [ensure(context=64), ensure(context=64)] == [True, False]
    next((bundle / "target").iterdir()).write_bytes(b"damaged")
    assert [ensure(context=64), ensure(context=64)] == [True, False]


def test_a_build_that_fails_is_tried_again(tiny_demo, monkeypatch):
    ensure, _, _ = tiny_demo
    with monkeypatch.context() as broken:
        broken.setattr(demo_bundle, "build", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            ensure()
    assert ensure() is True


@pytest.mark.slow
def test_the_real_demo_is_lossless_and_its_drafter_guesses_well(cli, tmp_path):
    result = cli("demo", "-o", str(tmp_path / "bundle"), "--repeats", "1", "--max-new-tokens", "64", "--json")
    assert (result.code, result.document["lossless"]) == (0, True)
    assert 1.3 <= result.document["tau"] < 8
    assert all(prompt["text"].strip() for prompt in result.document["prompts"])
    assert (
        cli("demo", "-o", str(tmp_path / "bundle"), "--repeats", "1", "--max-new-tokens", "2", "--json").document[
            "built"
        ]
        is False
    )
