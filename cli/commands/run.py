"""`run`: generate from a bundle."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dflash_compile.runtime.errors import UsageError

from ..console import Console
from ..report import Report

if TYPE_CHECKING:
    from dflash_compile.runtime.statistics import Statistics


SAMPLING = "Sampling"


def command(
    console: Console,
    bundle: Annotated[Path, typer.Argument(help="A directory that `build` wrote.")],
    prompt: Annotated[
        str, typer.Option("--prompt", help="What to say to the model; `-` reads it from standard input.")
    ],
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", min=1, help="Most tokens to generate.")] = 512,
    draft: Annotated[
        bool, typer.Option("--draft/--no-draft", help="Use the drafter. The text is the same either way.")
    ] = True,
    lookup: Annotated[
        bool | None,
        typer.Option(
            "--lookup/--no-lookup",
            help="Guess from the text itself where it repeats; by default, with the drafter only.",
        ),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the prompt as it stands, without the chat template.")
    ] = False,
    system: Annotated[
        str | None, typer.Option("--system", metavar="TEXT", help="A system message before the prompt.")
    ] = None,
    chat_template_kwargs: Annotated[
        str | None,
        typer.Option(
            "--chat-template-kwargs",
            metavar="JSON",
            help='What the chat template reads beside the messages, as in {"enable_thinking": false}.',
        ),
    ] = None,
    stop: Annotated[
        list[str] | None, typer.Option("--stop", metavar="TEXT", help="End before this text; may be given again.")
    ] = None,
    special_tokens: Annotated[
        bool, typer.Option("--special-tokens", help="Show the special tokens of the answer as text.")
    ] = False,
    temperature: Annotated[
        float,
        typer.Option("--temperature", min=0, rich_help_panel=SAMPLING, help="0: always the most probable token."),
    ] = 0.0,
    top_k: Annotated[
        int, typer.Option("--top-k", min=0, rich_help_panel=SAMPLING, help="Only the K most probable; 0: all.")
    ] = 0,
    top_p: Annotated[
        float,
        typer.Option("--top-p", rich_help_panel=SAMPLING, help="Only the most probable with this share together."),
    ] = 1.0,
    min_p: Annotated[
        float,
        typer.Option("--min-p", rich_help_panel=SAMPLING, help="Only those with this share of the most probable's."),
    ] = 0.0,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed", min=0, rich_help_panel=SAMPLING, help="Of the noise; the same text each time. Anew by default."
        ),
    ] = None,
    repetition_penalty: Annotated[
        float,
        typer.Option("--repetition-penalty", rich_help_panel=SAMPLING, help="More than 1: what was said, less often."),
    ] = 1.0,
    presence_penalty: Annotated[
        float,
        typer.Option("--presence-penalty", rich_help_panel=SAMPLING, help="Off the logits of what the answer has."),
    ] = 0.0,
    frequency_penalty: Annotated[
        float,
        typer.Option("--frequency-penalty", rich_help_panel=SAMPLING, help="The same, as often as it has it."),
    ] = 0.0,
    min_new_tokens: Annotated[
        int,
        typer.Option("--min-new-tokens", min=0, rich_help_panel=SAMPLING, help="Fewest tokens before the end."),
    ] = 0,
    provider: Annotated[Literal["cpu", "cuda"], typer.Option("--provider", help="Kind of device.")] = "cpu",
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="CPU threads; every core by default.")] = None,
    device_loop: Annotated[
        int | None,
        typer.Option(
            "--device-loop",
            metavar="N",
            help="TensorRT, an experiment: the GPU does up to N cycles before the host sees them.",
        ),
    ] = None,
) -> Report:
    """Generate text from BUNDLE: the text streams to standard output, figures go to standard error."""
    if raw and system is not None:
        raise UsageError(
            "--system has no place in a raw prompt", fix="leave out --raw, or write the system text into the prompt"
        )
    variables = None if chat_template_kwargs is None else _variables(chat_template_kwargs)
    text = _standard_input() if prompt == "-" else prompt
    messages = (
        [{"role": "system", "content": system}, {"role": "user", "content": text}] if system is not None else text
    )

    from dflash_compile.runtime import Sampling, load

    sampling = Sampling(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        min_new_tokens=min_new_tokens,
    )
    with load(bundle, provider=provider, threads=threads, device_loop=device_loop) as session:
        known = session.notes
        for note in known:
            console.note(f"note: {note}")
        answer = []
        pieces = session.generate(
            messages,
            max_new_tokens=max_new_tokens,
            stop=stop or (),
            special_tokens=special_tokens,
            raw=raw,
            draft=draft,
            lookup=lookup,
            sampling=sampling,
            chat_template_kwargs=variables,
        )
        for note in session.notes[len(known) :]:  # what is unusual about this prompt
            console.note(f"note: {note}")
        for piece in pieces:
            answer.append(piece)
            console.stream(piece)
        statistics, verdict, notes = session.statistics, session.verdict, session.notes
    console.stream("\n")
    console.note(summary(statistics, draft=draft))
    if draft:
        console.note(f"[{verdict}]")
    return Report(
        {
            "text": "".join(answer),
            "draft": draft,
            "statistics": as_dict(statistics),
            "verdict": verdict if draft else None,
            "notes": list(notes),
        }
    )


def _variables(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            "--chat-template-kwargs is no JSON", why=str(error), fix='give an object, as in {"enable_thinking": false}'
        ) from error
    if not isinstance(found, dict):
        raise UsageError(
            "--chat-template-kwargs is no JSON object", fix='give names and values, as in {"enable_thinking": false}'
        )
    return found


def _standard_input() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise UsageError(
            "the prompt is not Unicode text", where="standard input", why=str(error), fix="give it in UTF-8"
        ) from error


def summary(statistics: Statistics, *, draft: bool) -> str:
    """One line about a request."""
    speed = f"{statistics.tokens_per_second:.1f} tokens/s after {statistics.prefill_seconds * 1000:.0f} ms of prefill"
    how = (
        f"τ {statistics.tau:.2f} tokens per drafted cycle, {statistics.drafted} of {statistics.cycles} cycles drafted"
        if draft
        else "plain decoding"
    )
    if statistics.looked_up:
        how += f", {statistics.looked_up_accepted} of {statistics.looked_up} looked-up tokens right"
    if statistics.seed is not None:
        how += f", seed {statistics.seed}"
    return f"[{statistics.tokens} tokens, {speed}, {how}, ended by {statistics.finish}]"


def as_dict(statistics: Statistics) -> dict[str, Any]:
    """The figures of a request, JSON-ready; rates are of the cycles that verified a proposal at that slot, which may be
    those whose drafter was sure.
    """
    return {
        "prompt_tokens": statistics.prompt_tokens,
        "tokens": statistics.tokens,
        "cycles": statistics.cycles,
        "drafted_cycles": statistics.drafted,
        "tau": statistics.tau,
        "undrafted_tau": statistics.undrafted_tau,
        "looked_up": statistics.looked_up,
        "looked_up_accepted": statistics.looked_up_accepted,
        "acceptance_by_position": [
            taken / offered
            for taken, offered in zip(statistics.accepted_at, statistics.offered_at, strict=True)
            if offered
        ],
        "prefill_seconds": statistics.prefill_seconds,
        "decode_seconds": statistics.decode_seconds,
        "tokens_per_second": statistics.tokens_per_second,
        "seconds_by_role": dict(statistics.seconds),
        "host_seconds": statistics.host_seconds,
        "finish": statistics.finish,
        "seed": statistics.seed,
    }
