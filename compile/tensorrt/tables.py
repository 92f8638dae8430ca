"""The target's embedding table and head as memory that engines are given, not as constants inside them.

They are files of the bundle, the same for every architecture. A head that is tied to the table is that very table: one
file, and one copy on the card, for both engines and for the drafter's use of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
import onnx_ir as ir

from dflash_compile.export.checkpoints.checkpoint import TensorSource
from dflash_compile.export.parameter_names import EMBEDDING, HEAD
from dflash_compile.export.spec import TargetSpec
from dflash_compile.export.tracing.graph import Owner
from dflash_compile.export.tracing.signature import Dtype, Port, Signature
from dflash_compile.export.tracing.trace import target_weight

from ..graphs.bind import Advance, bind
from ..graphs.edit import Editor, nodes, replace_node
from ..graphs.lowered import Lowered, WeightBinding, WeightBindings
from .attention import cast
from .precisions import Precision

# Floats of 8 bits stay constants: it is not known whether TensorRT reads them as fast from an input.
_DTYPES: dict[ir.DataType, Dtype] = {
    ir.DataType.INT8: "int8",
    ir.DataType.FLOAT16: "float16",
    ir.DataType.BFLOAT16: "bfloat16",
    ir.DataType.FLOAT: "float32",
}
_ROWS_AT_ONCE = 1 << 14


@dataclass(frozen=True)
class Table:
    """One array of an encoded table [V, H], and the input that takes it."""

    name: str
    binding: WeightBinding
    columns: bool
    """whether it is stored [1, H, V], which is how products read it without a copy; a row is looked up there as well"""

    @property
    def port(self) -> Port:
        """The input."""
        stored = self.binding.stored
        rows, *width = stored.shape
        shape = (1, *width, rows) if self.columns and width else stored.shape
        return Port(self.name, _DTYPES[stored.dtype], shape)

    @property
    def file(self) -> str:
        """Where its bytes are, relative to the bundle."""
        return f"target/{self.name}.bin"

    @property
    def bytes(self) -> int:
        """Of the file."""
        return self.binding.stored.bytes


def tables_of(spec: TargetSpec, precision: Precision, held: Collection[str]) -> tuple[Table, ...]:
    """What a graph that reads the weights `held` is given in the target's `precision`: of its table and of its head the
    levels, then scales where there are any.
    """
    found: list[Table] = []
    shape = (spec.vocab, spec.hidden)
    for name, tensor in (("table", EMBEDDING), *(() if spec.tied else (("head", HEAD),))):
        ref = target_weight(spec, tensor)
        products = spec.tied or tensor == HEAD
        encoding = precision.linear(ref, shape, head=True) if products else precision.table(shape)
        parts = encoding.parts(shape)
        if f"{ref.owner}.{ref.tensor}" in held and all(part.dtype in _DTYPES for part in parts):
            names = (name, f"{name}_scales")
            found += [
                Table(names[number], WeightBinding(ref, encoding, shape, number), products)
                for number in range(len(parts))
            ]
    return tuple(found)


def with_tables(signature: Signature, tables: Sequence[Table]) -> Signature:
    """`signature` with their inputs behind all others."""
    return Signature(
        signature.role,
        (*signature.inputs, *(table.port for table in tables)),
        signature.outputs,
        signature.caches,
    )


def lower_tables(model: ir.Model, bindings: WeightBindings, tables: Sequence[Table]) -> None:
    """Products with the tables and look-ups in them, on inputs of the graph."""
    for _, parts in groupby(tables, lambda table: table.binding.ref):
        _lower_table(model, bindings, list(parts))


def _lower_table(model: ir.Model, bindings: WeightBindings, parts: Sequence[Table]) -> None:
    ref, columns = parts[0].binding.ref, parts[0].columns
    found = [
        node
        for node in [*nodes(model, "Linear"), *nodes(model, "Gather", "")]
        for value in node.inputs
        if value is not None and bindings.weights.get(str(value.name)) == ref
    ]
    inputs = [
        ir.Value(name=table.name, type=ir.TensorType(table.binding.stored.dtype), shape=ir.Shape(table.port.shape))
        for table in parts
    ]
    compute = parts[-1].binding.stored.dtype  # that of the target, whatever the rest of the graph computes in
    for node in found:
        edit, (out,) = Editor(model, node), node.outputs
        read: ir.Value = inputs[0]
        if len(inputs) > 1:
            read = edit.one("DequantizeLinear", inputs, {"axis": 2 if columns else 0}, like=inputs[0])
            read.type = ir.TensorType(compute)
        if node.op_type == "Linear":
            value = edit.one("MatMul", [cast(edit, node.inputs[0], compute), read])
        elif columns:
            flat = edit.one("Reshape", [node.inputs[1], edit.constant(np.array([-1], np.int64))])
            value = edit.one("Transpose", [edit.one("Gather", [read, flat], {"axis": 2})], {"perm": [0, 2, 1]})
        else:
            value = edit.one("Gather", [read, node.inputs[1]], {"axis": 0})
        value.type, value.shape = ir.TensorType(compute), out.shape
        replace_node(node, [cast(edit, value, ir.DataType.FLOAT, like=out)])
    model.graph.inputs.extend(inputs)


def write_tables(
    tables: Sequence[Table],
    sources: Mapping[Owner, TensorSource],
    work: Path,
    directory: Path,
    advance: Advance = lambda _: None,
) -> None:
    """The file of every table, below `directory`; `work` is an empty folder for what lies between."""
    unique = {table.name: table for table in tables}
    values = [
        ir.Value(name=name, type=ir.TensorType(table.binding.stored.dtype), shape=ir.Shape(table.binding.stored.shape))
        for name, table in unique.items()
    ]
    graph = ir.Graph([], [], nodes=[], initializers=values, opset_imports={"": 24}, name="tables")
    bound = ir.Model(graph, ir_version=10)
    bind(
        Lowered(Signature("tables", (), ()), bound, {name: table.binding for name, table in unique.items()}),
        sources,
        work,
        "tables.onnx",
        advance,
    )
    for name, table in unique.items():
        tensor = graph.initializers[name].const_value
        assert isinstance(tensor, ir.ExternalTensor)
        stored = table.binding.stored
        items = np.dtype(f"u{stored.bytes // int(np.prod(stored.shape))}")
        found = np.memmap(tensor.path, items, "r", tensor.offset or 0, stored.shape)
        (directory / table.file).parent.mkdir(exist_ok=True)
        # Not mapped as well: on a full disk a write raises, where a store into a mapped file ends the process.
        with (directory / table.file).open("wb") as file:
            for start in range(0, len(found), _ROWS_AT_ONCE):
                rows = found[start : start + _ROWS_AT_ONCE]
                if not (table.columns and rows.ndim == 2):
                    file.write(rows.tobytes())
                    continue
                for column, values in enumerate(np.ascontiguousarray(rows.T)):
                    file.seek((column * len(found) + start) * items.itemsize)
                    file.write(values.tobytes())
