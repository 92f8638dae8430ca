"""A semantic graph of one role and static width, rewritten into torch operators that Apple's converters know.

The traced program is run once more, node by node, under fake tensors; its attention, cache writes and rotary embeddings
take the packed form on the way. `dflash::rms_norm` and `dflash::cache_write` stay whole: each converter has its own
numerically safe form of them.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram, export
from torch.export.graph_signature import InputKind

from dflash_compile.export.tracing.graph import Graph, WeightRef
from dflash_compile.export.tracing.signature import Port
from dflash_compile.runtime.errors import IncompatibleError

from .caches import CACHE, Cache, HostCache, LateCache, attend, visible
from .ops import pointwise
from .roles import Role, sizes

_OPS = torch.ops.dflash
_DTYPES = {"float32": torch.float32, "float16": torch.float16, "int32": torch.int32}


@dataclass(frozen=True)
class Stateful:
    """A graph ready for a converter; its weights, by the names of the program's state, still wait to be read."""

    role: Role
    program: ExportedProgram
    weights: Mapping[str, WeightRef]
    constants: Mapping[str, torch.Tensor]
    """values known already: rotary tables, and the state as it starts"""


def lower(graph: Graph, role: Role) -> Stateful:
    """`graph`, traced at `role`'s width, over the packed cache that `role` describes."""
    fake = _mode(graph.program)
    with fake, torch.no_grad():
        module = _Module(graph, role)
        given = [port for port in role.inputs if port.name != CACHE or not role.cache.in_state]
        inputs = {port.name: torch.zeros(sizes(port), dtype=_DTYPES[port.dtype]) for port in given}
        # Nothing to decompose: this is what makes writes to the state outputs of the program.
        program = _without_aliases(export(module, (), inputs).run_decompositions({}))
    names = {
        spec.target: spec.arg.name for spec in graph.program.graph_signature.input_specs if spec.target is not None
    }
    constants = {names[name]: value for name, value in graph.constants.items()}
    if role.cache.in_state:
        constants[CACHE] = torch.zeros(role.cache.sizes, dtype=_DTYPES[role.dtype])
    used = _used(program)
    return Stateful(
        role, program, {names[name]: ref for name, ref in graph.weights.items() if names[name] in used}, constants
    )


def _used(program: ExportedProgram) -> set[str]:
    """Names of the state that some node reads: an inject graph leaves most of the drafter alone."""
    read = {node.name for node in program.graph.nodes if node.op == "placeholder" and node.users}
    return {
        spec.target for spec in program.graph_signature.input_specs if spec.target is not None and spec.arg.name in read
    }


def _mode(program: ExportedProgram) -> FakeTensorMode:
    return next(iter(program.state_dict.values())).fake_mode  # type: ignore[no-any-return]


def _without_aliases(program: ExportedProgram) -> ExportedProgram:
    """Nodes that only repeat their input are gone: no converter knows them."""
    graph = program.graph_module.graph
    for node in list(graph.nodes):
        if node.target is torch.ops.aten.alias.default:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    program.graph_module.recompile()
    return program


class _Module(nn.Module):
    """The rewritten graph behind the ports of a role; parameters carry the names of the program's placeholders."""

    def __init__(self, graph: Graph, role: Role) -> None:
        super().__init__()
        self.graph, self.role = graph, role
        self.specs = graph.program.graph_signature.input_specs
        values = {
            **graph.program.constants,
            **graph.program.state_dict,
        }  # buffers that no checkpoint has are among the constants
        for spec in self.specs:
            if spec.kind == InputKind.PARAMETER:
                self.register_parameter(spec.arg.name, nn.Parameter(values[spec.target], requires_grad=False))
            elif spec.kind == InputKind.BUFFER:
                self.register_buffer(spec.arg.name, values[spec.target])
        if role.cache.in_state:
            self.register_buffer(CACHE, torch.zeros(role.cache.sizes, dtype=_DTYPES[role.dtype]))

    def forward(self, **ports: torch.Tensor) -> tuple[torch.Tensor, ...]:
        position = ports["position"]
        cache = self.role.cache.opened(getattr(self, CACHE) if self.role.cache.in_state else ports[CACHE], position)
        user = iter([self._given(port.name, ports) for port in self.graph.signature.inputs])
        values = [
            next(user) if spec.kind == InputKind.USER_INPUT else getattr(self, spec.arg.name) for spec in self.specs
        ]
        outputs = _Rewriter(self.graph.program.graph_module, cache, position).run(*values)
        named = dict(zip((port.name for port in self.graph.signature.outputs), outputs, strict=True))
        taken = [self.role.taken(port.name, named, ports) for port in self.role.results]
        if isinstance(cache, HostCache):
            taken += [cache.rows()] if self.role.commits else []
        else:
            getattr(self, CACHE).copy_(cache.written())
        return tuple(_narrowed(value, port) for value, port in zip(taken, self.role.returned, strict=True))

    def _given(self, name: str, ports: Mapping[str, torch.Tensor]) -> Any:
        """What the semantic graph's input `name` is."""
        entries = [taken for taken, _ in self.graph.signature.caches]
        if name in entries:
            return _Entry(entries.index(name))
        return _widened(ports[name] if name in ports else self.role.given(ports))


def _widened(value: torch.Tensor) -> torch.Tensor:
    """Graphs compute in float32; a converter narrows them as a whole."""
    return value.float() if value.is_floating_point() else value


def _narrowed(value: torch.Tensor, port: Port) -> torch.Tensor:
    return value.to(_DTYPES[port.dtype])


def _as_convolution(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """A product in the form that the Neural Engine computes, which reads the caches that hosts keep."""
    product: torch.Tensor = pointwise(x, weight)
    return product if bias is None else product + bias


@dataclass(frozen=True)
class _Entry:
    """Stands for one of a graph's cache tensors: an entry of the packed one."""

    index: int


class _Rewriter(torch.fx.Interpreter):
    """Runs a semantic program with the packed forms in place of its cached and rotary operators."""

    def __init__(
        self, module: torch.fx.GraphModule, cache: Cache | LateCache | HostCache, position: torch.Tensor
    ) -> None:
        super().__init__(module)
        self.cache, self.position = cache, position
        self.masks: dict[tuple[int, int, bool, bool], torch.Tensor] = {}
        self.tables: dict[tuple[int, int], torch.Tensor] = {}

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One node, or its replacement."""
        if target is _OPS.kv_attention.default:
            return self._attention(*args, **kwargs)
        if target is _OPS.kv_write.default:
            return self._write(*args, **kwargs)
        if target is _OPS.rotary.default:
            return self._rotary(*args, **kwargs)
        if target is operator.getitem and isinstance(args[0], _Entry):
            return args[0]
        if target is torch.ops.aten.linear.default and isinstance(self.cache, HostCache) and args[0].ndim == 3:
            return _as_convolution(*args, **kwargs)
        return super().call_function(target, args, kwargs)

    def _attention(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        keys: _Entry,
        values: _Entry,
        _position: torch.Tensor,
        scale: float,
        window: int,
        causal: bool,
        anchored: bool = False,
        sinks: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, _Entry, _Entry]:
        if sinks is not None:
            raise IncompatibleError(
                "attention sinks have no form in Apple's fused attention", fix="build for another back-end"
            )
        assert values.index == keys.index + 1
        self.cache.write(keys.index, torch.cat([k, v]))
        key = (q.shape[2], window, causal, anchored)
        if key not in self.masks:
            self.masks[key] = visible(self.cache, *key)
        return attend(self.cache, q, keys.index, self.masks[key], scale), keys, values

    def _write(self, new: torch.Tensor, entry: _Entry, _position: torch.Tensor) -> _Entry:
        self.cache.write(entry.index, new)
        return entry

    def _rotary(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, _position: torch.Tensor) -> torch.Tensor:
        c, s = (self._rows_of(table, x.shape[2]) for table in (cos, sin))
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * c - second * s, second * c + first * s], dim=-1)

    def _rows_of(self, table: torch.Tensor, rows: int) -> torch.Tensor:
        # Rows of padding may lie past the table's end: any of its rows will do for them.
        key = (id(table), rows)
        if key not in self.tables:
            index = self.position + torch.arange(rows, dtype=torch.int32)
            index = torch.minimum(index, torch.full([rows], table.shape[0] - 1, dtype=torch.int32))
            self.tables[key] = table.index_select(0, index)
        return self.tables[key]
