"""The benchmark's document, as frozen records.

`artifacts/bench.schema.json` is generated from these classes; a test keeps the two equal. Times are in milliseconds,
sizes in bytes.
"""

from __future__ import annotations

import msgspec


# Subclasses repeat `frozen` and `kw_only`: msgspec inherits them, type checkers do not.
class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class SpreadRecord(_Record, frozen=True, kw_only=True):
    """Median and quartiles over single answers."""

    lower: float
    median: float
    upper: float


class SideRecord(_Record, frozen=True, kw_only=True):
    """One side on one suite. Roles are inject, draft, verify, decode, and host for the time outside the engines."""

    tokens_per_second: float
    """of decoding: all tokens but each answer's first, by the sum of the median decoding times"""
    answer_tokens_per_second: SpreadRecord | None
    """of single answers; None where no answer has two tokens"""
    ttft_ms: SpreadRecord
    """from the request to its first token by the wall clock: template, tokenizer and prompt"""
    latency_ms: SpreadRecord
    """from the request to the end of its text by the wall clock"""
    prompt_ms: dict[str, SpreadRecord]
    """inside engine calls while the prompt is taken in: prefill and inject"""
    role_ms_per_token: dict[str, float]
    """of decoding"""
    host_ms_per_cycle: float


class MemoryRecord(_Record, frozen=True, kw_only=True):
    """Main memory of the whole process while a suite ran, not that of a device; None where the system does not tell."""

    peak_rss_bytes: int | None
    major_faults: int | None
    """pages that had to be read from disk meanwhile"""
    swapped_bytes: int | None
    """of this process in swap at the end"""


class SuiteRecord(_Record, frozen=True, kw_only=True):
    """One suite. `tau` and `acceptance` are exact counts of whole blocks; speeds are of what an app gets."""

    name: str
    prompts: int
    tokens: int
    """of one repetition"""
    lossless: bool
    """every answer of every side has the same token ids"""
    differing: list[int]
    """prompts for which that is not so, counted from 0"""
    tau: float
    """tokens per cycle"""
    acceptance: list[float]
    """share of cycles in which the proposal at each position of the block was accepted"""
    drafted: float
    """share of cycles in which the session chose to draft"""
    looked_up: float
    """share of decoded tokens that were looked up in the text, where the session chose"""
    tokens_per_second: float
    baseline_tokens_per_second: float
    speedup: float
    """ratio of the two"""
    answer_speedup: SpreadRecord | None
    """of single answers, each against the baseline's of the same turn"""
    worst_speedup: float | None
    """of the prompt that gained least, medians over its repetitions; None where no prompt was decoded"""
    ttft_ms: float
    """median"""
    latency_ms: float
    """median"""
    longest: int
    """tokens of the longest prompt with its answer"""
    kv_bytes: int
    """cache rows that the longest used, target and drafter"""
    memory: MemoryRecord
    sides: dict[str, SideRecord]
    """dflash, blocks (always whole blocks) and baseline"""


class NeededRecord(_Record, frozen=True, kw_only=True):
    """What a drafter must reach for a speed-up."""

    speedup: float
    tau: float
    """more than the block's width is out of reach"""


class WidthRecord(_Record, frozen=True, kw_only=True):
    """Blocks of one width at one context length."""

    width: int
    cycle_ms: float
    role_ms: dict[str, float]
    """of a cycle: inject, draft, verify, host"""
    tau: float
    tokens_per_second: float
    needed: list[NeededRecord]


class ContextRecord(_Record, frozen=True, kw_only=True):
    """Speed at one context length. Figures are medians over the repetitions."""

    context: int
    """as asked"""
    prompt_tokens: int
    tokens: int
    lossless: bool
    tokens_per_second: SpreadRecord
    baseline_tokens_per_second: SpreadRecord
    speedup: float
    ttft_ms: float
    baseline_ttft_ms: float
    baseline_token_ms: float
    kv_bytes: int
    widths: list[WidthRecord]


class CacheRecord(_Record, frozen=True, kw_only=True):
    """K/V memory. Caches are reserved whole when a bundle is loaded; every token fills one more row."""

    target_bytes: int
    drafter_bytes: int
    bytes_per_token: int
    """of both"""


class BundleRecord(_Record, frozen=True, kw_only=True):
    """What was measured."""

    path: str
    target: str
    drafter: str
    precision: str
    drafter_precision: str
    backend: str
    context: int
    block: int
    draft_vocabulary: int | None
    """tokens that can be proposed; None where those are all"""
    refine: int
    """passes of a draft after its first"""
    exact_width: int
    """rows of a plain cycle"""
    cache: CacheRecord


class SettingsRecord(_Record, frozen=True, kw_only=True):
    """How it was measured: the same for all sides."""

    baseline: str
    baseline_summary: str
    sampling: str
    prompts: int
    """most prompts of a suite"""
    max_new_tokens: int
    repeats: int
    warm_up_tokens: int
    provider: str
    threads: int | None
    """None: every core"""


class MachineRecord(_Record, frozen=True, kw_only=True):
    """Where it was measured; None where the system does not tell."""

    system: str
    processor: str | None
    cores: int
    """that this process may use"""
    memory_bytes: int | None
    python: str
    tool: str
    """version of dflash-compile"""
    backend: dict[str, str]
    """versions of the back-end's library"""
    load_average: float | None
    """over a minute, before the first run: what else the machine was doing"""


class BenchRecord(_Record, frozen=True, kw_only=True):
    """The whole document."""

    bundle: BundleRecord
    settings: SettingsRecord
    machine: MachineRecord
    lossless: bool
    suites: list[SuiteRecord]
    contexts: list[ContextRecord]
    notes: list[str]
