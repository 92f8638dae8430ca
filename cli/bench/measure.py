"""The whole measurement on a loaded bundle: suites, then context lengths."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from dflash_compile.runtime.errors import LengthError
from dflash_compile.runtime.session import Session

from ..progress import ProgressDisplay
from .answers import interleave, warm_up
from .cache import cache_record
from .context import make_prompt, measure_context, prompt_length, turns
from .machine_record import machine_record
from .memory import MemoryWatch
from .records import BenchRecord, BundleRecord, ContextRecord, MachineRecord, SettingsRecord, SuiteRecord
from .suite import Suite
from .suite_record import suite_record
from .variants import BASELINE, Variant, drafting_variants


def bench(
    path: Path,
    session: Session,
    baseline: Variant,
    suites: Sequence[Suite],
    lengths: Sequence[int],
    settings: SettingsRecord,
    progress: ProgressDisplay,
) -> BenchRecord:
    """Every suite and every context length of `lengths` on `session`, which is the loaded bundle at `path`.

    Raises `LengthError` where no prompt of any suite fits the bundle, and `UsageError` where a context length does not.
    """
    bundle, machine = bundle_record(path, session), machine_record(session.manifest.requires.backend)
    fitting, notes = fit(session, suites)
    sizes = {asked: prompt_length(asked, bundle.context, settings.max_new_tokens, bundle.block) for asked in lengths}
    notes = [
        *session.notes,
        *notes,
        *(
            f"context {asked}: the prompt has {size} tokens, to leave room for the answer"
            for asked, size in sizes.items()
            if size < asked
        ),
    ]
    variants = {**drafting_variants(session), BASELINE: baseline}
    measured = [_suite(suite, variants, settings, bundle.cache.bytes_per_token, progress) for suite in fitting]
    texts = [prompt for suite in fitting for prompt in suite.prompts]
    contexts = list(
        _contexts(
            session, baseline, sizes, lambda size: make_prompt(session.encode, texts, size), settings, bundle, progress
        )
    )
    lossless = all(suite.lossless for suite in measured) and all(it.lossless for it in contexts)
    notes += _doubts(machine, measured)
    return BenchRecord(
        bundle=bundle,
        settings=settings,
        machine=machine,
        lossless=lossless,
        suites=measured,
        contexts=contexts,
        notes=notes,
    )


def bundle_record(path: Path, session: Session) -> BundleRecord:
    """What its manifest says."""
    manifest = session.manifest
    return BundleRecord(
        path=str(path),
        target=manifest.target.name,
        drafter=manifest.drafter.name,
        precision=manifest.target.precision,
        drafter_precision=manifest.drafter.precision,
        backend=manifest.requires.backend,
        context=manifest.context,
        block=manifest.pairing.block,
        draft_vocabulary=None if manifest.pairing.draft_vocabulary is None else manifest.pairing.draft_vocabulary.size,
        refine=int(manifest.config.get("refine") or 0),
        exact_width=manifest.requires.exact_width,
        cache=cache_record(manifest),
    )


def fit(session: Session, suites: Sequence[Suite]) -> tuple[list[Suite], list[str]]:
    """The suites without the prompts that the bundle cannot hold, and notes on what was left out."""
    kept, notes = [], []
    fault: LengthError | None = None
    for suite in suites:
        prompts = []
        for prompt in suite.prompts:
            try:
                session.tokens(prompt, max_new_tokens=1).close()
                prompts.append(prompt)
            except LengthError as error:
                fault = error
        if len(prompts) < len(suite.prompts):
            notes.append(
                f"{suite.name}: {len(suite.prompts) - len(prompts)} of {len(suite.prompts)} prompts do not fit the"
                " bundle and are left out"
            )
        if prompts:
            kept.append(Suite(suite.name, tuple(prompts)))
    if not kept and fault is not None:
        raise fault
    return kept, notes


def _suite(
    suite: Suite,
    variants: Mapping[str, Variant],
    settings: SettingsRecord,
    kv_bytes_per_token: int,
    progress: ProgressDisplay,
) -> SuiteRecord:
    tick = _ticker(progress, f"suite {suite.name}", len(suite.prompts) * len(variants) * settings.repeats)
    warm_up(variants, suite.prompts[0])
    watch = MemoryWatch()
    results = [
        interleave(variants, prompt, settings.max_new_tokens, settings.repeats, tick) for prompt in suite.prompts
    ]
    tick()
    return suite_record(suite.name, results, kv_bytes_per_token, watch.record())


def _contexts(
    session: Session,
    baseline: Variant,
    sizes: Mapping[int, int],
    prompt: Callable[[int], list[int]],
    settings: SettingsRecord,
    bundle: BundleRecord,
    progress: ProgressDisplay,
) -> Iterator[ContextRecord]:
    for asked, size in sizes.items():
        tick = _ticker(progress, f"context {asked}", turns(bundle.block, settings.repeats))
        record = measure_context(
            session,
            baseline,
            asked,
            prompt(size),
            settings.max_new_tokens,
            settings.repeats,
            bundle.cache.bytes_per_token,
            tick,
        )
        tick()
        yield record


def _ticker(progress: ProgressDisplay, step: str, total: int) -> Callable[[], None]:
    """To be called before each of `total` answers, and after the last."""
    done = itertools.count()
    progress(step, 0, total)
    return lambda: progress(step, next(done), total)


def _doubts(machine: MachineRecord, suites: Sequence[SuiteRecord]) -> list[str]:
    """Reasons not to trust the times."""
    doubts = []
    if machine.load_average is not None and machine.load_average > machine.cores / 2:
        doubts.append(
            f"the machine was busy before the first run (load {machine.load_average:.1f}, cores {machine.cores}): times"
            " may be of something else"
        )
    doubts += [
        f"{suite.name}: {suite.memory.swapped_bytes >> 20} MiB of this process lie in swap: its times are of the disk"
        " as well"
        for suite in suites
        if suite.memory.swapped_bytes
    ]
    return doubts
