"""Core ML: one package per model with a function for every role and width, which share weights and one state."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from dflash_compile.export.graph import OWNERS, Owner
from dflash_compile.runtime.bundle.manifest import GraphRecord, MeasuredRecord, RequirementRecord
from dflash_compile.runtime.errors import IncompatibleError

from ..coreml import convert
from ..coreml.check import check_package
from ..coreml.names import ANE_IO, GPU_STATE
from ..coreml.package import merge
from ..coreml.precision import NAMES, Compression, compression_of
from ..mil.lint import lint
from ..models import Models
from ..options import BuildOptions
from ..progress import Note, Progress
from ..records import graph_record
from ..stateful.lower import Stateful, lower
from ..stateful.options import refuse_others
from ..stateful.roles import Role, roles_of

PRECISIONS, DEPLOYMENT_TARGETS, ARCHITECTURES = NAMES, convert.TARGETS, ()
CACHE_POLICIES = (GPU_STATE, ANE_IO)
GROUP_SIZES: tuple[int, ...] = ()

_LIBRARY, _MINIMUM = "coremltools", "9.0"
_PARTS = "parts"
# Evaluated in torch, a package takes several times its size in memory; larger ones are looked at, not run.
_RUN_BELOW_BYTES = 1 << 30
# Larger packages leave the Neural Engine without a word.
_NEURAL_ENGINE_BYTES = 10**9


@dataclass(frozen=True)
class _Prepared:
    models: Models
    target: str
    graphs: Mapping[Owner, tuple[Stateful, ...]]
    compressions: Mapping[Owner, Compression]

    @property
    def bytes(self) -> int:
        """Every function is converted by itself before weights are shared: as often as that, in float16, is the most there is at once."""
        return sum(_bytes(graph) for graphs in self.graphs.values() for graph in graphs)

    @property
    def measured(self) -> list[MeasuredRecord]:
        return []

    def write(self, directory: Path, progress: Progress) -> Mapping[Owner, list[GraphRecord]]:
        records: dict[Owner, list[GraphRecord]] = {"target": [], "drafter": []}
        parts, count = directory / _PARTS, sum(len(graphs) for graphs in self.graphs.values())
        for owner, graphs in self.graphs.items():
            parts.mkdir()
            (directory / owner).mkdir()
            file = f"{owner}/{owner}.mlpackage"
            done = {}
            for graph in graphs:
                progress("converting", sum(len(found) for found in records.values()), count)
                done[graph.role.function] = parts / f"{graph.role.function}.mlpackage"
                convert.convert(graph, self.models.sources, self.compressions[owner], self.target, done[graph.role.function])
                records[owner].append(graph_record(graph.role.signature, file, graph.role.rows, graph.role.function))
            merge(done, directory / file)
            shutil.rmtree(parts)
        return records

    def check(self, directory: Path, progress: Progress, note: Note) -> None:
        for number, (owner, graphs) in enumerate(self.graphs.items()):
            progress("checking the packages", number, len(self.graphs))
            package = directory / owner / f"{owner}.mlpackage"
            lint(package)
            if sum(file.stat().st_size for file in package.rglob("*") if file.is_file()) < _RUN_BELOW_BYTES:
                check_package(package, graphs, self.models.sources, self.compressions[owner])
            else:
                note(f"the {owner} package is too large to be evaluated here: its structure was checked, its numbers were not")
        note("Core ML runs on a Mac only: the packages were evaluated in torch here, not by Core ML")


def check_options(options: BuildOptions) -> None:
    """Raises `UsageError` for options that these engines cannot have."""
    refuse_others(options, PRECISIONS)


def requires(_models: Models, _options: BuildOptions) -> RequirementRecord:
    """What the engines need of a machine."""
    return RequirementRecord(backend="coreml", package=_LIBRARY, minimum=_MINIMUM, built_with=_built_with(), exact_width=1)


def prepare(models: Models, options: BuildOptions, progress: Progress, owners: Collection[Owner] = OWNERS) -> _Prepared:
    """Trace and lower every role at every width. Raises `IncompatibleError` where coremltools is missing."""
    if find_spec(_LIBRARY) is None:
        raise IncompatibleError("Core ML's converter is not installed", fix='run: pip install "dflash-compile[coreml]"')
    in_state = options.deployment["cache_policy"] == GPU_STATE
    roles: dict[Owner, tuple[Role, ...]] = {owner: roles_of(models, owner, "float16", in_state) for owner in OWNERS if owner in owners}
    graphs: dict[Owner, tuple[Stateful, ...]] = dict.fromkeys(roles, ())
    for owner, wanted in roles.items():
        for role in wanted:
            progress("tracing and lowering", sum(map(len, graphs.values())), sum(map(len, roles.values())))
            graphs[owner] = (*graphs[owner], lower(role.trace(models), role))
            _check_experts(graphs[owner][-1])
    compressions = {owner: compression_of(options.precision_for(owner)) for owner in roles}
    prepared = _Prepared(models, options.deployment["deployment_target"], graphs, compressions)
    if not in_state:
        _check_sizes(prepared)
    return prepared


def _check_experts(graph: Stateful) -> None:
    """Raises `IncompatibleError` for stacked weights: the converter turns them around, and compression knows no block or channel of them."""
    if any(".experts." in ref.tensor for ref in graph.weights.values()):
        raise IncompatibleError("mixtures of experts have no Core ML form here", fix="build with --backend coreai, or for another kind of machine")


def _check_sizes(prepared: _Prepared) -> None:
    """Raises `IncompatibleError` for a package that the Neural Engine would not take. One is not split into several here."""
    for owner, graphs in prepared.graphs.items():
        weights = {ref: int(graph.program.state_dict[name].numel()) for graph in graphs for name, ref in graph.weights.items()}
        size = sum(weights.values()) * prepared.compressions[owner].bits / 8
        if size > _NEURAL_ENGINE_BYTES:
            raise IncompatibleError(
                f"the {owner}'s package would have {size / 1e9:.1f} GB",
                where="--cache-policy ane-io",
                why=f"the Neural Engine takes {_NEURAL_ENGINE_BYTES / 1e9:.0f} GB at most, and a model is one package here",
                fix=f"build with fewer bits, or with --cache-policy {GPU_STATE}",
            )


def _bytes(graph: Stateful) -> int:
    count: int = sum(graph.program.state_dict[name].numel() for name in graph.weights)
    return 2 * count


def _built_with() -> str:
    try:
        return version(_LIBRARY)
    except PackageNotFoundError:
        return _MINIMUM
