"""The benchmark as one HTML file that needs nothing else: no network, no script, no file beside it."""

from __future__ import annotations

import os
import tempfile
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from dflash_compile.runtime.errors import IncompatibleError, UsageError

from .records import BenchRecord

TEMPLATE = "report.html.jinja"


def check_report(path: Path) -> None:
    """Whether a report can be written to `path`, asked before anything is measured.

    Raises `UsageError`, and `IncompatibleError` without matplotlib.
    """
    folder = path.parent
    if path.is_dir():
        raise UsageError(
            "the report would replace a folder", where=str(path), fix="give the path of a file, such as report.html"
        )
    if not folder.is_dir():
        raise UsageError(
            "the report's folder is not there", where=str(folder), fix="make the folder, or choose another path"
        )
    if not os.access(folder, os.W_OK):
        raise UsageError("the report's folder cannot be written to", where=str(folder), fix="choose another path")
    if find_spec("matplotlib") is None:
        raise IncompatibleError(
            "matplotlib is not installed",
            why="it draws the report's charts",
            fix="pip install 'dflash-compile[report]'",
        )


def write_report(record: BenchRecord, path: Path) -> None:
    """Write it whole or not at all; what was at `path` is replaced. Raises `OSError` where the disk refuses."""
    text = report_html(record)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    draft = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        draft.chmod(0o666 & ~_umask())  # as any new file: mkstemp's are for their owner alone
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def report_html(record: BenchRecord) -> str:
    """The text of the file."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    from .charts import charts
    from .tables import verdict

    source = files(__package__ or "").joinpath(TEMPLATE).read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    drawn = {
        name: Markup(svg) for name, svg in charts(record.suites, record.contexts).items()
    }  # ours, and matplotlib escapes labels
    return environment.from_string(source).render(bench=record, charts=drawn, verdict=verdict(record))


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
