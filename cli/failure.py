"""Every exception as an error that says what, where, why and what to do."""

from __future__ import annotations

import errno

from dflash_compile.runtime.errors import BuildError, DFlashError, ExitCode, IncompatibleError, UsageError

from . import interrupts

EXTRAS = {
    "gguf": "build",
    "matplotlib": "report",
    "onnx": "build",
    "onnx_ir": "build",
    "onnxruntime": "cpu",
    "onnxscript": "build",
    "safetensors": "build",
    "torch": "build",
    "transformers": "build",
}
"""which extra of this package brings a library"""


class Interrupted(DFlashError):
    """The user stopped the command."""

    exit_code = ExitCode.INTERRUPTED


class UnexpectedError(DFlashError):
    """A fault of the tool itself."""


def as_error(error: BaseException) -> DFlashError:
    """`error` in the form that users see; anything unknown is a fault of ours, exit code 4."""
    if isinstance(error, KeyboardInterrupt) or interrupts.received():
        return Interrupted("interrupted")
    match error:
        case DFlashError():
            return error
        case ImportError():
            return _import_error(error)
        case MemoryError():
            return _out_of_memory()
        case RuntimeError() if "allocate memory" in str(error):  # torch has no class for it
            return _out_of_memory()
        case OSError():
            return _system_error(error)
    return UnexpectedError(
        f"{type(error).__name__}: {error}",
        why="this is a fault in dflash-compile, or in a library it uses, not in the input",
        fix="run again with --debug and report the traceback",
    )


def _out_of_memory() -> BuildError:
    return BuildError("out of memory", fix="free memory, or choose a smaller --max-context or --precision int4")


def _import_error(error: ImportError) -> DFlashError:
    library = (error.name or "").partition(".")[0]
    if isinstance(error, ModuleNotFoundError) and library in EXTRAS:
        return IncompatibleError(f"{library} is not installed", fix=f"pip install 'dflash-compile[{EXTRAS[library]}]'")
    return IncompatibleError(
        f"{library or 'a library'} cannot be imported", why=str(error), fix="dflash-compile doctor"
    )


def _system_error(error: OSError) -> DFlashError:
    where, why = str(error.filename or ""), error.strerror or str(error)
    match error.errno:
        case errno.ENAMETOOLONG | errno.ELOOP | errno.EEXIST:
            return UsageError("this path cannot be used", where=where, why=why, fix="choose another path")
        case errno.ENOSPC | errno.EDQUOT:
            return BuildError("the disk is full", where=where, why=why, fix="free space, or write somewhere else")
        case errno.ENOENT | errno.ENOTDIR | errno.EISDIR:
            return UsageError(
                "no such file or directory" if error.errno == errno.ENOENT else "not the kind of file expected",
                where=where,
                why=why,
                fix="check the path",
            )
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return UsageError("access denied", where=where, why=why, fix="choose a path this user may read and write")
    return BuildError(f"{type(error).__name__}: {why}", where=where, fix="run again with --debug for the traceback")
