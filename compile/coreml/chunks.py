"""Where a model is cut into packages that the Neural Engine takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from dflash_compile.export.tracing.graph import Graph, Owner, WeightRef
from dflash_compile.runtime.errors import BuildError, IncompatibleError

from ..apple.partition import units
from .names import ANE_IO, GPU_STATE
from .package import WEIGHTS
from .precision import Compression

LIMIT_BYTES = 10**9
"""of weights in one package, as estimated; the rest up to `MOST_BYTES` is room for tables and for what Core ML adds
when it compiles"""
MOST_BYTES = 1_400_000_000
"""others found that larger packages leave the Neural Engine without a word"""


def starts_of(owner: Owner, graphs: Sequence[Graph], compression: Compression) -> tuple[int, ...]:
    """Layers before which the model `owner`, whose functions are `graphs`, is cut: as few as can be, and the packages
    as equal as they can be then.

    Raises `IncompatibleError` for a layer, with embedding or head where it is the first or the last, that is too large
    by itself.
    """
    counts = {
        ref: int(graph.program.state_dict[name].numel()) for graph in graphs for name, ref in graph.weights.items()
    }
    sizes = {ref: compression.bytes_of(ref, count) for ref, count in counts.items()}
    layers = [frozenset().union(*found) for found in zip(*map(units, graphs), strict=True)]
    largest = max(layers, key=lambda refs: _size(refs, sizes))
    if _size(largest, sizes) > LIMIT_BYTES:
        raise IncompatibleError(
            f"the {owner}'s layer {layers.index(largest)}, with embedding or head where it has them, would have"
            f" {_size(largest, sizes) / 1e9:.2g} GB",
            where=f"--cache-policy {ANE_IO}",
            why=(
                f"the Neural Engine takes packages of {LIMIT_BYTES / 1e9:.2g} GB at most, and models are cut between"
                " layers here"
            ),
            fix=f"build with fewer bits, or with --cache-policy {GPU_STATE}",
        )
    return tuple(_starts(layers, sizes, _least(layers, sizes)))


def check_size(package: Path) -> None:
    """Raises `BuildError` for a saved package that the Neural Engine would leave, whatever was estimated of it."""
    size = (package / WEIGHTS).stat().st_size
    if size > MOST_BYTES:
        raise BuildError(
            f"{package.name} has {size / 1e9:.2g} GB of weights, for the Neural Engine's {MOST_BYTES / 1e9:.2g}",
            why="they were estimated to be fewer when the model was cut",
            fix=f"build with fewer bits or with --cache-policy {GPU_STATE}, and report this",
        )


def _least(layers: Sequence[frozenset[WeightRef]], sizes: dict[WeightRef, float]) -> float:
    """The smallest limit that makes no more packages than the real one does."""
    count, low, high = len(list(_starts(layers, sizes, LIMIT_BYTES))), 0.0, float(LIMIT_BYTES)
    while high - low > LIMIT_BYTES / 1000:
        middle = (low + high) / 2
        fits = (
            all(_size(refs, sizes) <= middle for refs in layers) and len(list(_starts(layers, sizes, middle))) == count
        )
        low, high = (low, middle) if fits else (middle, high)
    return high


def _starts(layers: Sequence[frozenset[WeightRef]], sizes: dict[WeightRef, float], limit: float) -> Iterator[int]:
    """Every layer that does not fit into the package of those before it.

    What several layers of one package share is in it once.
    """
    together: frozenset[WeightRef] = frozenset()
    for number, refs in enumerate(layers):
        if number and _size(together | refs, sizes) > limit:
            yield number
            together = frozenset()
        together |= refs


def _size(refs: frozenset[WeightRef], sizes: dict[WeightRef, float]) -> float:
    return sum(sizes[ref] for ref in refs)
