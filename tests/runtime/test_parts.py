"""Models of several engines: a manifest whose parts do not fit together is refused, and a chain hands values on by
name.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from dflash_compile.runtime.backends.apple.chain import Chain
from dflash_compile.runtime.bundle.contract import check_contract
from dflash_compile.runtime.bundle.manifest import GraphRecord, Manifest, PartRecord, PortRecord
from dflash_compile.runtime.errors import BundleError


@pytest.fixture(scope="module")
def cut(apple_bundle: Callable[..., Path]) -> Path:
    """A target in three packages and a drafter in two."""
    return apple_bundle("deep-llama", "coreml", "fp16", "ane-io", "160000")


def graphs_of(document: dict[str, Any], number: int) -> list[dict[str, Any]]:
    return [graph for graph in document["target"]["graphs"] if graph["part"]["number"] == number]


def order_swapped(document: dict[str, Any]) -> None:
    for first, second in zip(graphs_of(document, 0), graphs_of(document, 1), strict=True):
        first["part"]["number"], second["part"]["number"] = 1, 0


def layers_swapped(document: dict[str, Any]) -> None:
    for graph in graphs_of(document, 1):
        graph["part"]["layers"] = [2, 1]


def tap_of_another(document: dict[str, Any]) -> None:
    for graph in graphs_of(document, 2):
        graph["part"]["taps"] = [1]
    for graph in graphs_of(document, 1):
        graph["part"]["taps"] = []


def part_left_out(document: dict[str, Any]) -> None:
    document["target"]["graphs"].remove(graphs_of(document, 1)[0])


def file_of_another(document: dict[str, Any]) -> None:
    graphs_of(document, 1)[0]["file"] = "target/target-1.mlpackage"


def value_renamed(document: dict[str, Any]) -> None:
    next(port for port in graphs_of(document, 2)[0]["inputs"] if port["name"].startswith("hidden"))["name"] = "hidden_7"


def value_of_another_shape(document: dict[str, Any]) -> None:
    next(port for port in graphs_of(document, 2)[0]["inputs"] if port["name"].startswith("hidden"))["shape"][2] += 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (order_swapped, "are not the layers 0 to 3"),
        (layers_swapped, "are not the layers 0 to 3"),
        (part_left_out, "lacks a part"),
        (file_of_another, "another part in some calls"),
        (value_renamed, "reads hidden_7"),
        (value_of_another_shape, "reads hidden_0"),
    ],
)
def test_a_manifest_whose_packages_do_not_fit_together_is_refused(
    cut: Path, tmp_path: Path, change: Callable[[dict[str, Any]], None], says: str
) -> None:
    document = json.loads((cut / "manifest.json").read_text())
    check_contract(msgspec.convert(document, Manifest))
    change(document)
    with pytest.raises(BundleError) as caught:
        check_contract(msgspec.convert(document, Manifest))
    assert says in str(caught.value)


def test_a_tap_that_no_package_gives_is_refused(cut: Path) -> None:
    document = json.loads((cut / "manifest.json").read_text())
    tap_of_another(document)
    check_contract(msgspec.convert(document, Manifest))  # the port is there, whoever says so
    for graph in graphs_of(document, 2):
        graph["part"]["taps"] = []
    with pytest.raises(BundleError, match=r"gives the taps \[0\]"):
        check_contract(msgspec.convert(document, Manifest))


class Adding:
    """An engine that gives, under every name in `gives`, the first of its inputs and `step`."""

    def __init__(self, step: int, *gives: str) -> None:
        self.step, self.gives = step, gives

    def call(self, _function: str, feeds: dict[str, Any]) -> dict[str, Any]:
        (given,) = feeds.values()
        return dict.fromkeys(self.gives, given + self.step)

    def close(self) -> None:
        self.gives = ()


def test_a_chain_hands_on_by_name_and_joins_taps_in_list_order() -> None:
    """Made-up engines, listed last part first."""

    def ports(names: list[str]) -> list[PortRecord]:
        return [PortRecord(name=name, dtype="float16", shape=[1, 2, 2]) for name in names]

    def graph(number: int, inputs: list[str], outputs: list[str]) -> GraphRecord:
        part = PartRecord(number=number, count=2, layers=[number], taps=[number])
        return GraphRecord(
            role="verify",
            file=f"f{number}",
            rows=2,
            inputs=ports(inputs),
            outputs=ports(outputs),
            caches=[],
            function="v",
            part=part,
        )

    graphs = [
        graph(1, ["tap_0", "cache"], ["tap_1", "choices", "rows"]),
        graph(0, ["tokens", "cache"], ["tap_0", "rows"]),
    ]
    record: Any = SimpleNamespace(graphs=graphs)
    chain = Chain(record, {"f0": Adding(1, "tap_0"), "f1": Adding(10, "tap_1", "choices")}, (1, 0))
    found = chain.call("v", {"tokens": np.zeros((1, 2, 2)), "unasked": np.ones(1)})
    assert found["taps"][0].tolist() == [[11, 11, 1, 1]] * 2
    assert (found["choices"] == 11).all()
    chain.close()
