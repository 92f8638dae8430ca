"""`build`: target and drafter in, bundle out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dflash_compile.runtime.errors import UsageError

from ..console import Console
from ..report import Report

if TYPE_CHECKING:
    from dflash_compile.compile.onnxruntime.calibration_text import Calibration

Precision = Literal["int8", "int4", "fp32", "fp16", "bf16", "fp8", "nvfp4", "palette6", "palette4"]


_PROMPTS = "prompts"


def command(
    console: Console,
    target: Annotated[
        str, typer.Argument(help="A transformers directory, a GGUF file, or the name of a packaged model.")
    ],
    drafter: Annotated[str, typer.Argument(help="A directory with the DFlash drafter trained for it.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="The bundle to write.")],
    block: Annotated[
        int | None, typer.Option("--block", min=2, help="Rows verified at once; the drafter's own by default.")
    ] = None,
    max_context: Annotated[
        int | None,
        typer.Option(
            "--max-context",
            min=1,
            help="Tokens of prompt and answer together; by default what both models allow, at most 2048.",
        ),
    ] = None,
    precision: Annotated[
        Precision | None,
        typer.Option(
            "--precision",
            help=(
                "Of the weights: int8 (default), int4 or fp32 for ONNX Runtime; fp16 (default) and more for TensorRT"
                " and Core ML."
            ),
        ),
    ] = None,
    drafter_precision: Annotated[
        Precision | None,
        typer.Option("--drafter-precision", help="Of the drafter's weights; as --precision by default."),
    ] = None,
    group_size: Annotated[
        int | None,
        typer.Option(
            "--group-size",
            metavar="N",
            help="Weights that share a scale at int4, for ONNX Runtime: 64 (default), 32, 128 or 256.",
        ),
    ] = None,
    calibrate: Annotated[
        str | None,
        typer.Option(
            "--calibrate",
            metavar="TEXT",
            help="Round int4 weights for what they meet: 'prompts' of many kinds, or a text file.",
        ),
    ] = None,
    backend: Annotated[
        str,
        typer.Option(
            "--backend",
            help="What the bundle runs on: onnxruntime, tensorrt for NVIDIA GPUs, coreml or coreai for Apple Silicon.",
        ),
    ] = "onnxruntime",
    arch: Annotated[
        str,
        typer.Option(
            "--arch",
            metavar="LIST",
            help="GPU architectures to compile for, with --backend tensorrt; sm86,sm89,sm120 by default.",
        ),
    ] = "",
    widths: Annotated[
        str,
        typer.Option(
            "--widths",
            metavar="LIST",
            help="Rows of a verify beside the block's, with --backend tensorrt: 4,8. They share one set of weights.",
        ),
    ] = "",
    flavour: Annotated[
        Literal["rtx", "trt"] | None,
        typer.Option("--flavour", help="TensorRT for RTX, or TensorRT 11; by default the one that is installed."),
    ] = None,
    deployment_target: Annotated[
        str | None,
        typer.Option(
            "--deployment-target",
            metavar="SYSTEM",
            help="The oldest system a Core ML bundle is for: macos15 (iOS 18 too) or macos26.",
        ),
    ] = None,
    cache_policy: Annotated[
        str | None,
        typer.Option(
            "--cache-policy",
            metavar="POLICY",
            help="Who keeps a Core ML bundle's cache: gpu-state, the engine, or ane-io, the host.",
        ),
    ] = None,
    refine: Annotated[
        int,
        typer.Option("--refine", min=0, help="Run a draft again this often over the proposals it is least sure of."),
    ] = 0,
    drafter_thinking: Annotated[
        Literal["on", "off"] | None,
        typer.Option(
            "--drafter-thinking",
            help=(
                "Whether the drafter was trained on prompts that asked for thinking, where its checkpoint does not say."
            ),
        ),
    ] = None,
    portable: Annotated[
        bool, typer.Option("--portable", help="Standard operators only, for other tools; needs --precision fp32.")
    ] = False,
    target_from: Annotated[
        Path | None,
        typer.Option(
            "--target-from",
            metavar="BUNDLE",
            help="Take the compiled target from this bundle and compile the drafter only.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a bundle that is there.")] = False,
) -> Report:
    """Build a bundle from TARGET and DRAFTER. Needs no GPU, nor the whole model in memory unless it calibrates."""
    from dflash_compile.compile.build import BuildOptions, build

    options = BuildOptions(
        backend=backend,
        precision=precision or "",
        drafter_precision=drafter_precision,
        group_size=group_size,
        calibration=None if calibrate is None else _calibration(calibrate),
        context=max_context,
        block=block,
        refine=refine,
        portable=portable,
        arch=tuple(name.strip().lower() for name in arch.split(",") if name.strip()),
        widths=_numbers("--widths", widths),
        flavour=flavour,
        deployment_target=deployment_target,
        cache_policy=cache_policy,
        drafter_thinking=None if drafter_thinking is None else drafter_thinking == "on",
        force=force,
    )
    notes: list[str] = []
    with console.progress() as progress:
        bundle = build(target, drafter, output, options, progress, notes.append, target_from)
    for note in notes:
        console.note(f"note: {note}")
    return Report(
        {"bundle": str(bundle), "notes": notes},
        [f"built {bundle}", f'try: dflash-compile run {bundle} --prompt "Why is the sky blue?"'],
    )


def _calibration(given: str) -> Calibration:
    """What `--calibrate` names."""
    from dflash_compile.compile.onnxruntime.calibration_text import TOKENS, Calibration, from_file

    if given != _PROMPTS:
        return from_file(Path(given))
    from dflash_compile.train.prompt_tokens import prompt_tokens

    return Calibration("prompts", lambda target: prompt_tokens(target, TOKENS))


def _numbers(option: str, given: str) -> tuple[int, ...]:
    """The numbers of a list with commas. Raises `UsageError` where one is none."""
    words = [word.strip() for word in given.split(",") if word.strip()]
    if wrong := [word for word in words if not word.isdecimal()]:
        raise UsageError(
            f"{wrong[0]!r} is no number of rows", where=option, fix="give numbers with commas between them: 4,8"
        )
    return tuple(int(word) for word in words)
