"""Core ML bundles: what a saved package computes, found by executing it in torch, and every fault that must not get
through.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import models
import numpy as np
import pytest
import torch
from apple import rewritten

from dflash_compile.compile.apple.caches import HostCache
from dflash_compile.compile.apple.lower import Stateful, lower
from dflash_compile.compile.apple.reference import Reference
from dflash_compile.compile.apple.roles import roles_of
from dflash_compile.compile.build import BuildOptions, build
from dflash_compile.compile.coreml import convert as conversion
from dflash_compile.compile.coreml.check import check_function, check_package, run_once
from dflash_compile.compile.coreml.convert import convert
from dflash_compile.compile.coreml.evaluator.evaluate import Evaluator
from dflash_compile.compile.coreml.evaluator.lint import lint
from dflash_compile.compile.coreml.package import WEIGHTS, merge
from dflash_compile.compile.coreml.precision import compression_of
from dflash_compile.compile.pair_sizes import Models, decide
from dflash_compile.export import open_drafter, open_target
from dflash_compile.export.tracing.graph import Owner
from dflash_compile.runtime.bundle.read import read_manifest
from dflash_compile.runtime.errors import BuildError

BLOCK, CONTEXT, FP16 = 4, 96, compression_of("fp16")


def pair(folder: Path, family: str) -> Models:
    target = models.write_target(folder / "target", family, num_hidden_layers=2)
    drafter = models.write_drafter(folder / "drafter", target, layers=1, block=BLOCK, taps=(0,))
    return decide(open_target(target), open_drafter(drafter), BuildOptions(context=CONTEXT))


def graph(both: Models, owner: Owner, function: str) -> Stateful:
    (role,) = (role for role in roles_of(both, owner, "float16") if role.function == function)
    return lower(role.trace(both), role)


@pytest.fixture(scope="module")
def llama(apple_bundle: Callable[..., Path]) -> Models:
    """The pair of `package`."""
    folder = apple_bundle("llama", "coreml", "fp16").parent
    return decide(open_target(folder / "target"), open_drafter(folder / "drafter"), BuildOptions(context=CONTEXT))


@pytest.fixture(scope="module")
def verify(llama: Models) -> Stateful:
    return graph(llama, "target", "verify4")


@pytest.fixture(scope="module")
def package(apple_bundle: Callable[..., Path]) -> Path:
    """A target's functions in one package, at float16."""
    return apple_bundle("llama", "coreml", "fp16") / "target" / "target.mlpackage"


@pytest.fixture(scope="module", params=["gpu-state", "ane-io"])
def saved(
    request: pytest.FixtureRequest, apple_bundle: Callable[..., Path], llama: Models, verify: Stateful
) -> SimpleNamespace:
    """The same target under each cache policy: its package, and the traced graphs of a block and of a token."""
    if request.param == "gpu-state":
        graphs = (verify, graph(llama, "target", "decode1"))
        path = apple_bundle("llama", "coreml", "fp16")
    else:
        roles = {role.function: role for role in roles_of(llama, "target", "float16", in_state=False)}
        graphs = (
            lower(roles["verify4"].trace(llama), roles["verify4"]),
            lower(roles["decode1"].trace(llama), roles["decode1"]),
        )
        path = apple_bundle("llama", "coreml", "fp16", "ane-io")
    return SimpleNamespace(
        evaluator=Evaluator(path / "target" / "target.mlpackage"), verify=graphs[0], decode=graphs[1]
    )


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A whole build: tied weights, four bits."""
    both = pair(tmp_path_factory.mktemp("qwen3"), "qwen3")
    path = tmp_path_factory.mktemp("out") / "bundle"
    notes: list[str] = []
    build(
        both.target,
        both.drafter,
        path,
        BuildOptions(backend="coreml", precision="int4", context=CONTEXT),
        note=notes.append,
    )
    return SimpleNamespace(path=path, models=both, notes=notes, manifest=read_manifest(path))


def test_functions_share_one_copy_of_the_weights(package: Path, llama: Models) -> None:
    numbers = sum(int(np.prod(shape)) for shape in llama.target.tensors.shapes().values())
    assert len(Evaluator(package).functions) == 3
    assert (package / WEIGHTS).stat().st_size < 1.2 * 2 * numbers


def test_a_saved_package_follows_torch_over_accepted_and_rejected_blocks(saved: SimpleNamespace, llama: Models) -> None:
    """A block, a part of it accepted, a plain token, back again: one cache for both functions, whoever keeps it."""
    random, sizes = np.random.default_rng(1), saved.verify.role.cache.sizes
    calls = {
        4: (saved.verify, Reference(saved.verify, llama.sources, {})),
        1: (saved.decode, Reference(saved.decode, llama.sources, {})),
    }
    state, reference, position = np.zeros(sizes, np.float16), torch.zeros(sizes, dtype=torch.float16), 0
    for step in range(12):
        rows = 1 if step % 4 == 3 else 4
        stateful, torch_call = calls[rows]
        feeds = {
            "tokens": random.integers(0, models.VOCAB, (1, rows)).astype(np.int32),
            "position": np.array([position], np.int32),
        }
        found, state = run_once(saved.evaluator, stateful, feeds, state)
        torch_call.state = reference
        wanted, scores = torch_call.run(feeds)
        reference = torch_call.state
        assert scores is not None
        np.testing.assert_allclose(found["taps"], wanted["taps"], atol=5e-3 * np.abs(wanted["taps"]).max())
        np.testing.assert_allclose(
            state[:, :, : position + rows], reference[:, :, : position + rows], atol=5e-3 * float(reference.abs().max())
        )
        chosen = np.take_along_axis(scores, found["choices"][..., None].astype(np.int64), -1)[..., 0]
        assert (scores.max(-1) - chosen < 5e-3 * np.abs(scores).max()).all()
        position += int(random.integers(1, rows + 1))


def test_it_needs_no_cache_that_was_zero(saved: SimpleNamespace) -> None:
    """Rows past the position are never read: that is what makes rollback a smaller position."""
    states = [np.full(saved.verify.role.cache.sizes, rubbish, np.float16) for rubbish in (0, 100)]
    for position in (0, 3):
        feeds = {"tokens": np.array([[7, 8, 9, 10]], np.int32), "position": np.array([position], np.int32)}
        (clean, states[0]), (dirty, states[1]) = (
            run_once(saved.evaluator, saved.verify, feeds, state) for state in states
        )
        assert all(np.array_equal(clean[name], dirty[name]) for name in clean)


def test_a_cache_that_the_host_keeps_is_an_input_and_products_are_convolutions(
    apple_bundle: Callable[..., Path],
) -> None:
    bundle = apple_bundle("llama", "coreml", "fp16", "ane-io")
    manifest = read_manifest(bundle)
    assert manifest.config["cache_policy"] == "ane-io"
    for model in (manifest.target, manifest.drafter):
        functions = Evaluator(bundle / model.graphs[0].file).saved.functions
        for graph_ in model.graphs:
            function = functions[graph_.function]
            assert graph_.caches == []
            assert set(function.inputs) == {port.name for port in graph_.inputs} >= {"cache"}
            assert {output.name for output in function.outputs} == {port.name for port in graph_.outputs}
            assert ("rows" in {port.name for port in graph_.outputs}) == (graph_.role != "draft")
            kinds = [op.op_type for op in function.operations]
            assert not {"linear", "read_state", "coreml_update_state"} & set(kinds)
            layers = (
                7 * 2 + 3
                if graph_.role in ("prefill", "verify", "decode")
                else 1 + 2
                if graph_.role == "inject"
                else 7 + 3
            )
            assert kinds.count("conv") == layers, f"{graph_.role}: projections, and a head of three parts"


def test_a_mask_that_shows_rejected_rows_is_found_by_running(
    apple_bundle: Callable[..., Path], llama: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The traced graph is made wrong instead of the package: the two differ either way."""
    evaluator = Evaluator(apple_bundle("llama", "coreml", "fp16", "ane-io") / "target" / "target.mlpackage")
    (role,) = (role for role in roles_of(llama, "target", "float16", in_state=False) if role.function == "decode1")
    check_function(evaluator, lower(role.trace(llama), role), llama.sources, FP16, tolerance=5e-3)
    hidden = HostCache.columns
    monkeypatch.setattr(HostCache, "columns", lambda cache, rows: (hidden(cache, rows)[0], None))
    with pytest.raises(BuildError, match="is not what the traced graph gives"):
        check_function(evaluator, lower(role.trace(llama), role), llama.sources, FP16)


def test_a_build_holds_every_role_and_says_how_to_call_it(bundle: SimpleNamespace) -> None:
    graphs = {
        model: [(graph.role, graph.rows, graph.function) for graph in getattr(bundle.manifest, model).graphs]
        for model in ("target", "drafter")
    }
    assert graphs["target"] == [("prefill", 64, "prefill64"), ("verify", 4, "verify4"), ("decode", 1, "decode1")]
    assert graphs["drafter"] == [("inject", 64, "inject64"), ("inject", 4, "inject4"), ("draft", 4, "draft4")]
    assert bundle.manifest.config["deployment_target"] == "macos15"
    assert any("Core ML runs on a Mac only" in note for note in bundle.notes)
    for model in (bundle.manifest.target, bundle.manifest.drafter):
        functions = Evaluator(bundle.path / model.graphs[0].file).saved.functions
        for graph_ in model.graphs:
            declared = {port.name for port in graph_.inputs}
            assert (set(functions[graph_.function].inputs), graph_.caches) == (declared, [("cache", "cache")])


def test_what_the_drafter_hears_is_never_compressed(bundle: SimpleNamespace) -> None:
    evaluator = Evaluator(bundle.path / bundle.manifest.drafter.graphs[0].file)
    stored = evaluator.weight("inject64", "p_p_drafter_fc_weight")
    assert stored is not None
    assert torch.equal(stored, bundle.models.drafter.read("fc.weight").float())
    layer = evaluator.weight("inject64", "p_p_drafter_layers_0_self_attn_v_proj_weight")
    assert layer is not None
    assert not torch.equal(layer.float(), bundle.models.drafter.read("layers.0.self_attn.v_proj.weight").float())


def test_equal_inputs_give_equal_bytes_and_name_no_path(llama: Models, verify: Stateful, tmp_path: Path) -> None:
    packages = [tmp_path / name / "one.mlpackage" for name in ("here", "there")]
    for path in packages:
        path.parent.mkdir()
        convert(verify, llama.sources, compression_of("palette4"), "macos15", path.parent / "part.mlpackage")
        merge({"verify4": path.parent / "part.mlpackage"}, path)
    files = [
        {file.relative_to(path): file.read_bytes() for file in path.rglob("*") if file.is_file()} for path in packages
    ]
    assert files[0] == files[1]
    assert not any(
        str(tmp_path).encode() in data or str(Path(torch.__file__).parent).encode() in data
        for data in files[0].values()
    )
    check_package(packages[0], (verify,), llama.sources, compression_of("palette4"), tolerance=5e-3)


def named(block: Any, kind: str) -> list[Any]:
    return [operation for operation in block.operations if operation.type == kind]


def redirect(operation: Any, port: str, name: str) -> None:
    operation.inputs[port].arguments[0].name = name


def without_write_state(block: Any) -> None:
    for operation in named(block, "write_state"):
        block.operations.remove(operation)


def state_written_as_read(block: Any) -> None:
    (read, *_), (write,) = named(block, "read_state"), named(block, "write_state")
    redirect(write, "data", read.outputs[0].name)


@pytest.mark.parametrize(
    ("change", "says"), [(without_write_state, "never written"), (state_written_as_read, "written back as it was read")]
)
def test_a_state_that_is_not_written_is_seen_without_running(
    package: Path, tmp_path: Path, change: Callable[[Any], None], says: str
) -> None:
    lint(package)
    with pytest.raises(BuildError) as caught:
        lint(rewritten(package, tmp_path, change))
    assert says in str(caught.value)


def first_write_dropped(block: Any) -> None:
    """What reads the first layer's K/V, and what writes the second's, goes on from the state as it was."""
    first, _ = named(block, "slice_update")
    source, dropped = first.inputs["x"].arguments[0].name, first.outputs[0].name
    for operation in block.operations:
        for argument in operation.inputs.values():
            for binding in argument.arguments:
                if binding.name == dropped:
                    binding.name = source


def one_write_dropped_from_the_chain(block: Any) -> None:
    """Attention is right, but the state loses the first layer's rows: the next call would miss them."""
    first, second = named(block, "slice_update")
    redirect(second, "x", first.inputs["x"].arguments[0].name)


def shifted_write(block: Any) -> None:
    """K and V of the second layer land where the first's are."""
    first, second = named(block, "slice_update")
    redirect(second, "begin", first.inputs["begin"].arguments[0].name)
    redirect(second, "end", first.inputs["end"].arguments[0].name)


@pytest.mark.parametrize("change", [first_write_dropped, one_write_dropped_from_the_chain, shifted_write])
def test_a_cache_write_that_is_lost_or_misplaced_is_found_by_running(
    package: Path, llama: Models, verify: Stateful, tmp_path: Path, change: Callable[[Any], None]
) -> None:
    check_function(Evaluator(package), verify, llama.sources, FP16, tolerance=5e-3)
    with pytest.raises(BuildError, match="is not what the traced graph gives"):
        check_function(Evaluator(rewritten(package, tmp_path, change)), verify, llama.sources, FP16)


def test_swapped_taps_are_found_by_running(tmp_path: Path) -> None:
    both = pair(tmp_path, "llama")
    four = models.write_target(tmp_path / "four", "llama", num_hidden_layers=3)
    drafters = [
        models.write_drafter(tmp_path / f"taps{taps}", four, layers=1, block=BLOCK, taps=taps)
        for taps in ((0, 1), (1, 0))
    ]
    straight, swapped = (
        graph(decide(open_target(four), open_drafter(drafter), BuildOptions(context=CONTEXT)), "target", "decode1")
        for drafter in drafters
    )
    sources = {**both.sources, "target": open_target(four).tensors}
    convert(swapped, sources, FP16, "macos15", tmp_path / "part.mlpackage")
    merge({"decode1": tmp_path / "part.mlpackage"}, tmp_path / "one.mlpackage")
    with pytest.raises(BuildError, match="decode1: taps"):
        check_package(tmp_path / "one.mlpackage", (straight,), sources, FP16)


def test_rotary_tables_are_never_compressed(
    apple_bundle: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a long context are as large as a matrix.

    In eight bits they would turn keys by less than float16's rounding may: float32 shows it.
    """
    folder = apple_bundle("llama", "coreml", "fp16").parent
    long = decide(open_target(folder / "target"), open_drafter(folder / "drafter"), BuildOptions(context=512))
    stateful, compression = graph(long, "target", "decode1"), compression_of("int8")

    def package(name: str) -> Evaluator:
        convert(stateful, long.sources, compression, "macos15", tmp_path / "part.mlpackage")
        merge({"decode1": tmp_path / "part.mlpackage"}, tmp_path / name)
        return Evaluator(tmp_path / name)

    right = package("right.mlpackage")
    check_function(right, stateful, long.sources, compression)
    for name in stateful.constants.keys() - {"cache"}:
        table = right.weight("decode1", f"b_{name}")
        assert table is not None
        assert torch.equal(table, stateful.constants[name].half())
    kept = conversion._kept
    monkeypatch.setattr(
        conversion,
        "_kept",
        lambda graph: replace(
            kept(graph), exact=tuple(name for name in kept(graph).exact if not name.startswith("b_"))
        ),
    )
    with pytest.raises(BuildError, match="is not what the traced graph gives"):
        check_function(package("wrong.mlpackage"), stateful, long.sources, compression)


def test_an_operation_nobody_knows_is_an_error(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(
        __import__("dflash_compile.compile.coreml.evaluator.evaluate", fromlist=["OPERATIONS"]).OPERATIONS, "silu"
    )
    with pytest.raises(BuildError, match="does not know"):
        Evaluator(package).run(
            "decode1",
            {"tokens": np.zeros((1, 1), np.int32), "position": np.zeros(1, np.int32)},
            Evaluator(package).new_state("decode1"),
        )
    with pytest.raises(BuildError, match="breaks a rule"):
        lint(package)


@pytest.mark.parametrize(
    ("feeds", "says"),
    [
        ({"tokens": np.zeros((1, 4), np.int32), "position": np.array([157], np.int32)}, "of an axis of 160"),
        (
            {"tokens": np.full((1, 4), models.VOCAB, np.int32), "position": np.array([0], np.int32)},
            f"on an axis of {models.VOCAB}",
        ),
        ({"tokens": np.zeros((1, 3), np.int32), "position": np.array([0], np.int32)}, "the input 'tokens'"),
        ({"tokens": np.zeros((1, 4), np.int32)}, "'position' was not given"),
    ],
)
def test_reaching_outside_is_an_error_not_a_wrapped_index(package: Path, feeds: dict[str, Any], says: str) -> None:
    evaluator = Evaluator(package)
    with pytest.raises(BuildError) as caught:
        evaluator.run("verify4", feeds, evaluator.new_state("verify4"))
    assert says in str(caught.value)


def test_a_part_that_is_missing_is_named(package: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(package, tmp_path / "copy.mlpackage")
    (copy / WEIGHTS).unlink()
    with pytest.raises(BuildError, match=r"lacks .*weight\.bin"):
        Evaluator(copy)
