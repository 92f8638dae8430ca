"""What each back-end has a choice of: known to it and to the command line, refused by every other one."""

from __future__ import annotations

import pytest

from dflash_compile.cli.main import main
from dflash_compile.compile.backend import find_backend
from dflash_compile.compile.backend_folders import backend_names
from dflash_compile.compile.backend_options import BackendOptions
from dflash_compile.compile.calibration_text import Calibration
from dflash_compile.compile.coreml.precision import compression_of
from dflash_compile.compile.onnxruntime import precision as onnxruntime
from dflash_compile.compile.options import BuildOptions
from dflash_compile.compile.tensorrt import precisions as tensorrt
from dflash_compile.runtime.errors import UsageError

VALUES = {
    "arch": ("sm89",),
    "cache_policy": "ane-io",
    "calibrate": Calibration("some", lambda _: []),
    "deployment_target": "macos26",
    "flavour": "rtx",
    "group_size": 32,
    "portable": True,
    "refine": 1,
    "widths": (2,),
}


def options_of(name: str) -> type[BackendOptions]:
    return find_backend(name).Options


@pytest.mark.parametrize("option", VALUES)
@pytest.mark.parametrize("backend", backend_names())
def test_an_option_is_one_back_ends_and_others_say_whose(backend: str, option: str) -> None:
    precision = "fp32" if option == "portable" else "int4" if backend == "onnxruntime" else ""
    asked = BuildOptions(backend, precision, engine={option: VALUES[option]})
    owners = [name for name in backend_names() if option in options_of(name).options()]
    assert len(owners) == 1
    if backend in owners:
        assert getattr(options_of(backend).parse(asked), option) == VALUES[option]
        return
    with pytest.raises(UsageError) as refusal:
        options_of(backend).parse(asked)
    assert refusal.value.where == f"--{option.replace('_', '-')}"
    assert refusal.value.why
    assert refusal.value.fix.endswith(f"--backend {owners[0]}")


def test_every_option_is_tried_here() -> None:
    assert {option for name in backend_names() for option in options_of(name).options()} == VALUES.keys()


@pytest.mark.parametrize(
    ("backend", "given", "fix"),
    [
        ("tensorrt", "archs", "did you mean --arch, here 'arch'?"),
        ("onnxruntime", "groupsize", "did you mean --group-size, here 'group_size'?"),
        ("coreai", "archs", "leave it out"),
    ],
)
def test_a_name_that_no_back_end_has_is_refused_with_the_nearest(backend: str, given: str, fix: str) -> None:
    with pytest.raises(UsageError) as refusal:
        options_of(backend).parse(BuildOptions(backend, engine={given: 1}))
    assert refusal.value.fix == fix


@pytest.mark.parametrize("backend", backend_names())
def test_none_is_the_same_as_nothing(backend: str) -> None:
    kind = options_of(backend)
    assert kind.parse(BuildOptions(backend, engine=dict.fromkeys(VALUES))) == kind.parse(BuildOptions(backend))


def test_precisions_are_those_of_the_tables() -> None:
    assert tuple(onnxruntime.PRECISIONS) == options_of("onnxruntime").PRECISIONS
    assert tuple(tensorrt.PRECISIONS) == options_of("tensorrt").PRECISIONS
    assert [compression_of(name).name for name in options_of("coreml").PRECISIONS] == list(
        options_of("coreml").PRECISIONS
    )


def test_help_shows_each_back_ends_flags_in_a_panel_of_its_own_and_says_once_where_values_come_from(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    main(["build", "--help"])
    panels = capsys.readouterr().out.split("╭─ ")
    for name in backend_names():
        own = [panel for panel in panels if panel.startswith(f"Only with --backend {name} ")]
        flags = [option.spelling for option in options_of(name).options().values()]
        assert len(own) == bool(flags)
        assert all(flag in own[0] for flag in flags)
        assert not any(f"{flag} " in panel for flag in flags for panel in panels if panel not in own)
    assert "".join(panels).count("DFLASH_COMPILE_BUILD_") == 1


def test_flags_become_values_of_the_back_ends_types(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["build", "no-target", "no-drafter", "-o", "no-place", "--backend", "tensorrt"]
    assert main([*asked, "--widths", "4,eight"]) == 2
    assert "'eight' is no number" in capsys.readouterr().err
    assert main([*asked, "--arch", "SM89, sm42"]) == 2
    assert "unknown architecture 'sm42'" in capsys.readouterr().err
    assert main([*asked, "--portable"]) == 2
    assert "--backend onnxruntime" in capsys.readouterr().err


RECORDED: list[tuple[BuildOptions, dict[str, object]]] = [
    (BuildOptions("coreai"), {}),
    (BuildOptions("coreml"), {"deployment_target": "macos15", "cache_policy": "gpu-state"}),
    (BuildOptions("onnxruntime"), {"portable": False, "refine": 0}),
    (BuildOptions(drafter_precision="int4"), {"portable": False, "refine": 0, "group_size": 64}),
    (
        BuildOptions(precision="int4", engine={"calibrate": VALUES["calibrate"], "group_size": 32}),
        {"portable": False, "refine": 0, "group_size": 32, "calibration": "some"},
    ),
    (BuildOptions("tensorrt"), {"arch": "sm86,sm89,sm120"}),
    (
        BuildOptions("tensorrt", engine={"arch": ("sm120", "sm86"), "widths": (8, 4, 4), "flavour": "rtx"}),
        {"arch": "sm120,sm86", "widths": "4,8", "flavour": "rtx"},
    ),
]


@pytest.mark.parametrize(("asked", "recorded"), RECORDED)
def test_the_manifest_records_a_back_ends_own_options(asked: BuildOptions, recorded: dict[str, object]) -> None:
    assert list(options_of(asked.backend).parse(asked).config().items()) == list(recorded.items())
