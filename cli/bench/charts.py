"""Charts of a benchmark, each as one SVG element.

matplotlib draws them: its SVG needs no script, so the report shows the same in a browser, a mail or a CI system that
blocks scripts, and weighs kilobytes where a scripted chart carries its library along.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter, ScalarFormatter

from .records import ContextRecord, SpreadRecord, SuiteRecord
from .variants import BASELINE, BLOCKS, DFLASH

SIDE_COLOURS = {DFLASH: "#0072b2", BLOCKS: "#56b4e9", BASELINE: "#999999"}
ROLE_COLOURS = {"inject": "#cc79a7", "draft": "#e69f00", "verify": "#0072b2", "decode": "#999999", "host": "#000000"}
SUITE_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999")
"""of Okabe and Ito's palette, told apart by colour-blind readers"""
MARKERS = "osD^vPX*"
STYLE: Any = {  # whose keys matplotlib types one by one, from some version on
    "svg.fonttype": "none",  # text stays text
    "font.family": ["sans-serif"],
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e5e5e5",
    "legend.frameon": False,
}


def speed_chart(suites: Sequence[SuiteRecord]) -> str:
    """Median decoding speed of single answers by suite, with quartiles; the speed-up stands above."""
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    axes = figure.add_subplot(ylabel="tokens/s")
    sides = (BASELINE, DFLASH)
    top = 0.0
    for number, side in enumerate(sides):
        spreads = [
            suite.sides[side].answer_tokens_per_second or SpreadRecord(lower=0, median=0, upper=0) for suite in suites
        ]
        places = [place + (number - 0.5) * 0.36 for place in range(len(suites))]
        axes.bar(places, [it.median for it in spreads], 0.34, label=_label(side), color=SIDE_COLOURS[side])
        axes.vlines(places, [it.lower for it in spreads], [it.upper for it in spreads], color="#333333", linewidth=1.5)
        top = max(top, *(it.upper for it in spreads))
    for place, suite in enumerate(suites):
        axes.annotate(f"{suite.speedup:.2f}×", (place, top * 1.04), ha="center", fontweight="bold")
    axes.set_ylim(0, (top or 1) * 1.15)
    middle, wide = (len(suites) - 1) / 2, max(len(suites), 4) / 2  # one suite does not fill the page
    axes.set_xlim(middle - wide, middle + wide)
    axes.set_xticks(range(len(suites)), [suite.name for suite in suites])
    axes.grid(visible=False, axis="x")
    figure.legend(loc="outside lower center", ncols=2)
    return _svg(figure, "speed")


def acceptance_chart(suites: Sequence[SuiteRecord]) -> str:
    """Share of whole blocks whose proposal at each position was accepted."""
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    axes = figure.add_subplot(xlabel="position after the anchor", ylabel="accepted")
    for number, suite in enumerate(suites):
        colour, marker = SUITE_COLOURS[number % len(SUITE_COLOURS)], MARKERS[number % len(MARKERS)]
        axes.plot(
            range(1, len(suite.acceptance) + 1),
            suite.acceptance,
            color=colour,
            marker=marker,
            label=f"{suite.name} (τ {suite.tau:.2f})",
        )
    most = max((len(suite.acceptance) for suite in suites), default=0)
    axes.set_xticks(range(1, most + 1))
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    figure.legend(loc="outside lower center", ncols=4)
    return _svg(figure, "acceptance")


def role_chart(suites: Sequence[SuiteRecord]) -> str:
    """Where the time of a token goes, for every suite and side."""
    rows = [
        (f"{suite.name}, {_label(name)}", side.role_ms_per_token)
        for suite in suites
        for name, side in suite.sides.items()
    ]
    figure = Figure(figsize=(8, 1.4 + 0.3 * len(rows)), layout="constrained")
    axes = figure.add_subplot(xlabel="ms per token")
    left = [0.0] * len(rows)
    for role, colour in ROLE_COLOURS.items():
        spent = [times.get(role, 0.0) for _, times in rows]
        if any(spent):
            axes.barh(range(len(rows)), spent, left=left, label=role, color=colour)
            left = [a + b for a, b in zip(left, spent, strict=True)]
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    figure.legend(loc="outside lower center", ncols=5)
    return _svg(figure, "roles")


def context_chart(contexts: Sequence[ContextRecord]) -> str:
    """Decoding speed by context length; the band spans the quartiles."""
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    axes = figure.add_subplot(xlabel="tokens of the prompt", ylabel="tokens/s")
    lengths = [it.prompt_tokens for it in contexts]
    speeds = {
        BASELINE: [it.baseline_tokens_per_second for it in contexts],
        DFLASH: [it.tokens_per_second for it in contexts],
    }
    for side, spreads in speeds.items():
        axes.plot(lengths, [it.median for it in spreads], color=SIDE_COLOURS[side], marker="o", label=_label(side))
        axes.fill_between(
            lengths,
            [it.lower for it in spreads],
            [it.upper for it in spreads],
            color=SIDE_COLOURS[side],
            alpha=0.2,
            linewidth=0,
        )
    axes.set_ylim(0)
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths)
    axes.xaxis.set_major_formatter(ScalarFormatter())
    figure.legend(loc="outside lower center", ncols=2)
    return _svg(figure, "context")


def needed_chart(contexts: Sequence[ContextRecord]) -> str:
    """τ that each width needs for each speed-up, and the τ it had, one panel for each context length."""
    contexts = [it for it in contexts if it.widths]
    figure = Figure(figsize=(8, 4), layout="constrained")
    panels = figure.subplots(1, len(contexts), sharey=True, squeeze=False)[0]
    for axes, it in zip(panels, contexts, strict=True):
        places = [width.width for width in it.widths]
        for shade, needed in zip(
            ("#c6dbef", "#9ecae1", "#6baed6", "#2171b5"),
            zip(*(width.needed for width in it.widths), strict=True),
            strict=True,
        ):
            axes.plot(
                places, [one.tau for one in needed], color=shade, marker="o", label=f"{needed[0].speedup:.1f}× needs"
            )
        axes.plot(places, [width.tau for width in it.widths], color="#d55e00", marker="D", label="measured")
        axes.plot(places, places, color="#bbbbbb", linestyle="--", label="most it can give")
        axes.set_title(f"context {it.context}", fontsize=10)
        axes.set_xlabel("block")
        axes.set_xticks(places)
    panels[0].set_ylabel("τ")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return _svg(figure, "needed")


def charts(suites: Sequence[SuiteRecord], contexts: Sequence[ContextRecord]) -> Mapping[str, str]:
    """Every chart there are figures for, by name."""
    with rc_context(STYLE):
        drawn = {"speed": speed_chart(suites), "acceptance": acceptance_chart(suites), "roles": role_chart(suites)}
        if contexts:
            drawn["context"] = context_chart(contexts)
        if any(it.widths for it in contexts):
            drawn["needed"] = needed_chart(contexts)
    return drawn


def _label(side: str) -> str:
    return {DFLASH: "DFlash", BLOCKS: "whole blocks", BASELINE: "baseline"}.get(side, side)


def _svg(figure: Figure, name: str) -> str:
    """The drawing as an element for HTML: without the prologue of a file, its ids its own, the same bytes every
    time.
    """
    file = io.StringIO()
    with rc_context({"svg.hashsalt": name}):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = file.getvalue()
    # Every figure numbers its parts from 1, and one page holds several figures.
    return re.sub(r'( id="|url\(#|xlink:href="#)', rf"\1{name}-", text[text.index("<svg") :])
