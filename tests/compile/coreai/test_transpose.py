"""Core AI's graphs: weights stored transposed, and one write of a call's rows.

Checked on the programs that are converted.
"""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn
from torch.export import ExportedProgram, export

from dflash_compile.compile.apple.caches import CacheShape
from dflash_compile.compile.apple.ops import cache_write  # noqa: F401  (registers the operator)
from dflash_compile.compile.coreai.transpose import with_transposed_weights


class Tied(nn.Module):
    """An embedding that is the output head too; matmuls of two and three dimensions, with a bias, of a transposed
    operand; a weight read otherwise as well.
    """

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(11, 6))
        self.first, self.second = nn.Linear(6, 4), nn.Linear(4, 6, bias=False)
        self.third = nn.Linear(6, 6)
        self.shared = nn.Parameter(torch.randn(6, 6))

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = nn.functional.embedding(ids, self.table)
        x = x + self.second(self.first(x).tanh())
        x = nn.functional.linear(x, self.shared) * self.shared.sum()
        x = self.third(x.reshape(1, 6, -1).transpose(1, 2))
        return nn.functional.linear(x, self.table), nn.functional.linear(x[0], self.table)


def program_of(module: nn.Module, *given: torch.Tensor) -> ExportedProgram:
    table = torch.export.default_decompositions()
    table.pop(torch.ops.aten.linear.default)
    return export(module, given).run_decompositions(table)


@pytest.mark.parametrize("count", [1, 5])
def test_matmuls_and_look_ups_of_transposed_weights_give_what_they_gave(count: int) -> None:
    torch.manual_seed(0)
    module, ids = Tied(), torch.arange(count)[None] * 2
    transposed = with_transposed_weights(program_of(module, ids))
    for found, wanted in zip(transposed.module()(ids), module(ids), strict=True):
        assert torch.allclose(found, wanted, atol=1e-5)
    assert tuple(transposed.state_dict["table"].shape) == (6, 11)
    assert tuple(transposed.state_dict["second.weight"].shape) == (4, 6)
    assert torch.equal(transposed.state_dict["shared"], module.shared), "one that is read in other ways stays"
    kinds = Counter(node.target for node in transposed.graph.nodes)
    assert kinds[torch.ops.aten.linear.default] == 1
    assert kinds[torch.ops.aten.embedding.default] == 0
    assert all("val" in node.meta for node in transposed.graph.nodes if node.op != "output"), (
        "the converter reads shapes there"
    )


def test_what_was_traced_stays_as_it_was() -> None:
    """The check of a build runs the same program with the weights as the checkpoint has them."""
    module, ids = Tied(), torch.arange(3)[None]
    traced = export(module, (ids,))
    before = [node.name for node in traced.graph.nodes]
    table = torch.export.default_decompositions()
    table.pop(torch.ops.aten.linear.default)
    with_transposed_weights(traced.run_decompositions(table))
    assert [node.name for node in traced.graph.nodes] == before
    assert all(torch.equal(value, traced.state_dict[name]) for name, value in module.state_dict().items())
    assert torch.equal(traced.module()(ids)[0], module(ids)[0])


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("both", [True, False], ids=["K and V at once", "one by one"])
def test_a_late_cache_reads_and_leaves_what_the_other_does(late: bool, both: bool) -> None:
    """Over a state full of rubbish: an entry as its layer sees it, and the state after the pass."""
    torch.manual_seed(0)
    shape = CacheShape(4, 2, 8, 3, late=late)
    packed, position = torch.randn(shape.sizes), torch.tensor([3], dtype=torch.int32)
    rows = [torch.randn(2, 2, 2, 3) for _ in range(2)]
    cache, wanted = shape.opened(packed, position), packed.clone()
    for layer, new in enumerate(rows):
        for index, part in [(2 * layer, new)] if both else [(2 * layer, new[:1]), (2 * layer + 1, new[1:])]:
            cache.write(index, part)
        wanted[2 * layer : 2 * layer + 2, :, 3:5] = new
        assert torch.equal(cache.read(2 * layer), wanted[2 * layer : 2 * layer + 1])
        assert torch.equal(cache.read(2 * layer + 1), wanted[2 * layer + 1 : 2 * layer + 2])
    assert torch.equal(cache.written(), wanted)  # type: ignore[union-attr]
