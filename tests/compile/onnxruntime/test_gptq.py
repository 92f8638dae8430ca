"""Four bits rounded for what weights meet: the Hessians, the rounding against one written down once more, and whole
builds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import models
import numpy as np
import pytest
import torch
from forms import Cached, load_target, ort_call
from numpy.typing import NDArray
from tokenizers import Tokenizer

from dflash_compile.compile.build import BuildOptions, build
from dflash_compile.compile.calibration_text import Calibration, from_file
from dflash_compile.compile.onnxruntime.gptq import GptqGroups
from dflash_compile.compile.onnxruntime.hessian import Hessian
from dflash_compile.compile.onnxruntime.hessians import Hessians
from dflash_compile.compile.onnxruntime.precision import precision_of
from dflash_compile.compile.onnxruntime.quantize import IntGroups
from dflash_compile.export import open_drafter, open_target
from dflash_compile.export.checkpoints.checkpoint import DrafterCheckpoint, TargetCheckpoint, TensorSource
from dflash_compile.export.checkpoints.torch_model import load_model
from dflash_compile.export.tracing.graph import WeightRef
from dflash_compile.export.tracing.trace import trace_target
from dflash_compile.runtime import load
from dflash_compile.runtime.bundle.read import read_manifest
from dflash_compile.runtime.errors import BuildError, IncompatibleError, UsageError
from dflash_compile.train.prompt_tokens import prompt_tokens

WIDTH = 96


def ids_of(seed: int) -> list[int]:
    """Forty token ids."""
    ids: list[int] = torch.randint(5, 60, (40,), generator=torch.Generator().manual_seed(seed)).tolist()
    return ids


TEXTS = Calibration("some ids", lambda target: [ids_of(seed) for seed in range(12)])


class Known(Hessians):
    """Hessians that a test chose."""

    def __init__(self, hessian: torch.Tensor) -> None:
        self.inverse = torch.linalg.inv(hessian.double())

    def factor(self, tensor: str) -> torch.Tensor | None:
        return None if tensor == "unknown" else torch.linalg.cholesky(self.inverse, upper=True).float()


def hessian_of(width: int, seed: int = 0) -> torch.Tensor:
    """Of rows whose numbers go together, as those of a layer do."""
    random = torch.Generator().manual_seed(seed)
    rows = torch.randn(4 * width, width // 3, generator=random) @ torch.randn(
        width // 3, width, generator=random
    ) + 0.3 * torch.randn(4 * width, width, generator=random)
    return rows.T @ rows + 0.01 * torch.eye(width)


def lost(hessian: torch.Tensor, weight: torch.Tensor, decoded: torch.Tensor) -> torch.Tensor:
    """Squared error of each output over the rows that `hessian` is of."""
    error = weight - decoded[:, : weight.shape[1]]
    return ((error @ hessian) * error).sum(1)


def by_elimination(
    row: NDArray[np.float64],
    inverse: NDArray[np.float64],
    scale: NDArray[np.float64],
    zero: NDArray[np.float64],
    block: int,
) -> list[int]:
    """Levels of one row as the papers have it, column by column: what is lost goes to the others by the inverse
    Hessian, then the column leaves it.
    """
    row, inverse, levels = row.copy(), inverse.copy(), []
    for column in range(len(row)):
        step, middle = scale[column // block], zero[column // block]
        level = min(max(round(row[column] / step) + middle, 0), 15)
        row -= (row[column] - (level - middle) * step) / inverse[column, column] * inverse[column]
        inverse -= np.outer(inverse[:, column], inverse[column]) / inverse[column, column]
        levels.append(int(level))
    return levels


@pytest.mark.parametrize("block", [32, 64, 128])
@pytest.mark.parametrize("seed", [0, 1])
def test_outputs_lose_less_than_when_every_block_is_rounded_alone(block: int, seed: int) -> None:
    hessian, weight = hessian_of(WIDTH, seed), torch.randn(24, WIDTH, generator=torch.Generator().manual_seed(seed))
    alone, known = IntGroups(4, block), GptqGroups(4, block, "weight", Known(hessian))
    before, after = (lost(hessian, weight, encoding.decode(encoding.encode(weight))) for encoding in (alone, known))
    assert after.sum() < 0.6 * before.sum()
    assert (after < before).float().mean() > 0.9


def test_levels_are_those_of_elimination_column_by_column() -> None:
    """Given the scales and zero points that were chosen, which depend on what columns before have left."""
    hessian, weight, block = hessian_of(160), torch.randn(6, 160, generator=torch.Generator().manual_seed(3)), 32
    hessians = Known(hessian)
    encoding = GptqGroups(4, block, "weight", hessians)
    data, scales, zeros = encoding.encode(weight)
    levels = np.stack([data & 15, data >> 4], -1).reshape(6, 160)
    middles = np.stack([zeros & 15, zeros >> 4], -1).reshape(6, -1).astype(np.float64)
    same = 0
    for row in range(6):
        wanted = by_elimination(
            weight[row].double().numpy(), hessians.inverse.numpy(), scales[row].astype(np.float64), middles[row], block
        )
        differ = np.flatnonzero(levels[row] != wanted)
        same += int(differ[0]) if len(differ) else 160  # one that lay between two levels changes all that follow it
    assert same > 0.9 * levels.size


@pytest.mark.parametrize("block", [32, 128])
def test_rows_are_rounded_on_their_own_and_stored_like_others(block: int) -> None:
    """But for the order in which a product of more rows is summed."""
    encoding, weight = GptqGroups(4, block, "weight", Known(hessian_of(WIDTH))), torch.randn(10, WIDTH)
    whole, pieces = encoding.encode(weight), [encoding.encode(weight[start : start + 3]) for start in range(0, 10, 3)]
    for index, part in enumerate(encoding.parts((10, WIDTH))):
        together = np.concatenate([piece[index] for piece in pieces])
        assert np.isclose(together, whole[index], rtol=1e-5).mean() > 0.99
        assert whole[index].shape == part.shape
        assert whole[index].nbytes == part.bytes


def test_a_layer_nothing_is_known_of_is_rounded_alone() -> None:
    weight = torch.randn(4, WIDTH)
    for found, wanted in zip(
        GptqGroups(4, 32, "unknown", Known(hessian_of(WIDTH))).encode(weight),
        IntGroups(4, 32).encode(weight),
        strict=True,
    ):
        np.testing.assert_array_equal(found, wanted)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> TargetCheckpoint:
    return open_target(models.write_target(tmp_path_factory.mktemp("models") / "target", num_hidden_layers=3))


@pytest.fixture(scope="module")
def drafter(target: TargetCheckpoint, tmp_path_factory: pytest.TempPathFactory) -> DrafterCheckpoint:
    return open_drafter(models.write_drafter(tmp_path_factory.mktemp("drafter") / "drafter", target.path))


def test_layers_are_told_as_the_texts_reach_them(target: TargetCheckpoint) -> None:
    told: list[tuple[int, int]] = []
    hessians = Hessians(target, TEXTS)
    hessians.report = lambda number, count: told.append((number, count))
    for name in ("0.self_attn.q_proj", "0.mlp.down_proj", "2.mlp.up_proj"):
        hessians.factor(f"model.layers.{name}.weight")
    assert told == [(0, 3), (1, 3), (2, 3)]


def test_layers_are_read_once_in_a_build(target: TargetCheckpoint, drafter: DrafterCheckpoint, tmp_path: Path) -> None:
    """By calibration, beside the one reading that stores them."""
    counting = Counting(target.tensors)
    build(replace(target, tensors=counting), drafter, tmp_path / "bundle", KNOWN)
    assert counting.read["model.layers.1.mlp.down_proj.weight"] == 2 * target.spec.hidden


class Counting:
    """Tensors of which it is known how many rows were read."""

    def __init__(self, tensors: TensorSource) -> None:
        self._tensors, self.read = tensors, Counter[str]()

    def __getattr__(self, name: str) -> object:
        return getattr(self._tensors, name)

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._tensors.shapes()

    def rows(self, name: str, start: int, stop: int) -> torch.Tensor:
        self.read[name] += stop - start
        return self._tensors.rows(name, start, stop)


@pytest.mark.parametrize("before", ["model.layers.2.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"])
def test_moments_are_of_what_transformers_gives_the_layer(target: TargetCheckpoint, before: str) -> None:
    """In whatever order they are asked for."""
    hessians, model = Hessians(target, TEXTS), load_model(target)
    assert hessians.factor(before) is not None
    read: dict[str, torch.Tensor] = {}
    layer = model.model.layers[1]
    wanted = {
        "self_attn.v_proj": layer.self_attn.v_proj,
        "mlp.down_proj": layer.mlp.down_proj,
        "self_attn.o_proj": layer.self_attn.o_proj,
    }
    with torch.inference_mode():
        for name, module in wanted.items():
            rows: list[torch.Tensor] = []
            hook = module.register_forward_hook(lambda module, given, out, rows=rows: rows.append(given[0][0]))
            for ids in TEXTS.sequences(target):
                model(torch.tensor([ids]))
            hook.remove()
            read[name] = torch.cat(rows).double()
    for name in ("mlp.down_proj", "self_attn.v_proj", "self_attn.o_proj"):
        factor = hessians.factor(f"model.layers.1.{name}.weight")
        assert factor is not None
        assert torch.equal(factor, factor.triu())
        hessian = read[name].T @ read[name]
        damped = hessian + 0.01 * hessian.diagonal().mean() * torch.eye(len(hessian))
        torch.testing.assert_close(
            factor.double().T @ factor.double() @ damped, torch.eye(len(hessian)).double(), atol=2e-3, rtol=0
        )
    assert hessians.factor("model.embed_tokens.weight") is None


GROUP = {"group_size": 32}
OPTIONS = BuildOptions(precision="int4", drafter_precision="int8", context=96, engine=GROUP)
KNOWN = replace(OPTIONS, engine={**GROUP, "calibrate": TEXTS})


@pytest.fixture(scope="module")
def known(target: TargetCheckpoint, drafter: DrafterCheckpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle whose target was rounded for `TEXTS`."""
    return build(target, drafter, tmp_path_factory.mktemp("known") / "bundle", KNOWN)


def test_a_target_rounded_for_its_texts_stays_nearer_to_its_file(
    target: TargetCheckpoint, drafter: DrafterCheckpoint, known: Path, tmp_path: Path
) -> None:
    """On other texts of the same kind; only the target is another, and drafted and plain answers are equal."""
    alone = build(target, drafter, tmp_path / "alone", OPTIONS)
    assert str(read_manifest(known).config["calibration"]).startswith("some ids ")
    assert "calibration" not in read_manifest(alone).config
    differ = {name for name, digest in read_manifest(known).files.items() if read_manifest(alone).files[name] != digest}
    assert differ == {"target/target.onnx.data"}
    texts = [ids_of(100 + seed) for seed in range(8)]
    with load(known, threads=1) as session:
        for ids in texts:
            assert list(session.tokens(ids, max_new_tokens=12)) == list(
                session.tokens(ids, max_new_tokens=12, draft=False)
            )
    assert divergence(target, known, texts) < 0.8 * divergence(target, alone, texts)


def divergence(target: TargetCheckpoint, bundle: Path, texts: list[list[int]]) -> float:
    """Mean of KL(transformers in float32 || the engine) over all places of `texts`."""
    model, signature, call = (
        load_target(target),
        trace_target(target, (0, 1), 96).signature,
        ort_call(bundle / "target" / "target.onnx"),
    )
    places = []
    for ids in texts:
        with torch.inference_mode():
            wanted = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
        found = torch.from_numpy(Cached(signature, call).verify(ids, 0)[0]).double().log_softmax(-1)
        places.append((wanted.exp() * (wanted - found)).sum(-1))
    return float(torch.cat(places).mean())


def test_a_target_rounded_for_other_texts_is_not_taken_over(
    target: TargetCheckpoint, drafter: DrafterCheckpoint, known: Path, tmp_path: Path
) -> None:
    again = build(target, drafter, tmp_path / "again", KNOWN, target_from=known)
    assert read_manifest(again).files == read_manifest(known).files
    with pytest.raises(IncompatibleError, match=r"calibration: some ids [0-9a-f]{12} there, None here"):
        build(target, drafter, tmp_path / "other", OPTIONS, target_from=known)
    others = Calibration("some ids", lambda target: [ids_of(1)])
    options = replace(OPTIONS, engine={**GROUP, "calibrate": others})
    with pytest.raises(
        IncompatibleError, match=r"calibration: some ids [0-9a-f]{12} there, some ids [0-9a-f]{12} here"
    ):
        build(target, drafter, tmp_path / "other", options, target_from=known)


@pytest.mark.parametrize(
    "wrong",
    [{"precision": "int8"}, {"precision": "fp32"}, {"backend": "tensorrt", "precision": "int4"}],
)
def test_only_four_bits_for_onnx_runtime_are_calibrated(wrong: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="--calibrate"):
        build("no target", "no drafter", "no place", BuildOptions(**wrong, engine={"calibrate": TEXTS}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "said", ["a cat and a dog walk to the river and back again " * 400, "\u732b\u3068\u72ac" * 800]
)
def test_a_text_file_is_read_in_pieces(said: str, target: TargetCheckpoint, tmp_path: Path) -> None:
    """Each begins as texts of the target do; a text of other words has another name."""
    file = tmp_path / "text.txt"
    file.write_text(said, encoding="utf-8")
    given = from_file(file).for_target(target)
    pieces = given.sequences(target)
    bos = Tokenizer.from_str(target.text.tokenizer_json.decode()).token_to_id(str(target.text.bos_token))
    assert {(len(piece), piece[0]) for piece in pieces[:-1]} == {(min(256, target.spec.max_positions), bos)}
    assert sum(map(len, pieces)) <= 12800 + len(pieces)
    file.write_text("x" + said, encoding="utf-8")
    assert from_file(file).for_target(target).name != given.name


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00", b"too short"])
def test_a_text_that_is_none_is_refused(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "text").write_bytes(content)
    with pytest.raises(UsageError, match="calibration text"):
        from_file(tmp_path / "text")


@pytest.mark.parametrize("family", ["qwen3", "gemma3", "gemma3_text", "smollm3", "muse_glimmer", "qwen3_moe"])
def test_every_layer_that_has_four_bits_is_known(family: str, tmp_path: Path) -> None:
    """Under the name that its checkpoint has; experts and routers are no linear layers."""
    target = open_target(models.write_target(tmp_path / "target", family))
    hessians, precision, fields = Hessians(target, TEXTS), precision_of("int4"), (".self_attn.", ".mlp.")
    graph = trace_target(target, (0, 1), 96)
    names = {
        ref.tensor
        for ref in graph.weights.values()
        if ref.tensor.endswith("_proj.weight") and any(field in ref.tensor for field in fields)
    }
    assert len(names) >= 4 * target.spec.layers
    for name in sorted(names):
        shape = target.tensors.shapes()[name]
        if isinstance(precision.linear(WeightRef("target", name), shape, head=False), IntGroups):
            factor = hessians.factor(name)
            assert factor is not None, name
            assert factor.shape == (shape[1], shape[1])


def test_weights_that_make_no_number_are_refused(target: TargetCheckpoint) -> None:
    class Damaged:
        def __getattr__(self, name: str) -> object:
            return getattr(target.tensors, name)

        def rows(self, name: str, start: int, stop: int) -> torch.Tensor:
            return target.tensors.rows(name, start, stop) * (float("nan") if "layers.0.mlp.up" in name else 1)

    damaged = replace(target, tensors=Damaged())  # type: ignore[arg-type]
    hessians = Hessians(damaged, TEXTS)
    with pytest.raises(BuildError, match=r"layers\.0\.mlp\.down_proj is given numbers that are not finite"):
        hessians.factor("model.layers.0.mlp.down_proj.weight")


def test_moments_that_rounding_made_indefinite_are_damped_more() -> None:
    rows = torch.ones(4, 24) + 1e-4 * torch.randn(4, 24, generator=torch.Generator().manual_seed(0))
    moments = Hessian(24)
    moments.add(rows)
    moments.panels[0] -= 0.5 * torch.eye(24)  # as far as the sums could be wrong, and much further
    factor = moments.factor()
    assert factor.isfinite().all()
    assert (factor.diagonal() > 0).all()


@pytest.mark.parametrize("width", [96, 1024, 2600])
def test_the_factor_is_that_of_the_damped_inverse(width: int) -> None:
    """Whether one panel holds it or several; by three times as much work in twice the numbers' length."""
    rows, moments = torch.randn(3000, width, generator=torch.Generator().manual_seed(0)), Hessian(width)
    for some in rows.split(700):
        moments.add(some)
    hessian = rows.double().T @ rows.double()
    hessian += 0.01 * hessian.diagonal().mean() * torch.eye(width)
    expected = torch.linalg.cholesky(torch.linalg.inv(hessian), upper=True)
    found = moments.factor()
    torch.testing.assert_close(found, expected.float(), rtol=1e-4, atol=1e-5 * float(expected.abs().max()))
    assert torch.equal(found, found.triu())


def test_a_tensor_that_does_not_fit_is_named_before_the_model_is_loaded(
    drafter: DrafterCheckpoint, target: TargetCheckpoint, tmp_path: Path
) -> None:
    class Other:
        def __getattr__(self, name: str) -> object:
            return getattr(target.tensors, name)

        def shapes(self) -> dict[str, tuple[int, ...]]:
            return dict(target.tensors.shapes()) | {"model.layers.1.mlp.up_proj.weight": (3, 5)}

    with pytest.raises(BuildError, match=r"layers\.1\.mlp\.up_proj\.weight' has shape \(3, 5\)"):
        build(replace(target, tensors=Other()), drafter, tmp_path / "b", KNOWN)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_prompts_need_a_chat_template_and_room(target: TargetCheckpoint) -> None:
    without = replace(target, text=replace(target.text, chat_template=None))
    with pytest.raises(UsageError, match="no chat template"):
        prompt_tokens(without, 100)
    with pytest.raises(UsageError, match="no prompt fits"):
        prompt_tokens(replace(target, spec=replace(target.spec, max_positions=3)), 100)
    found = prompt_tokens(target, 1000)
    assert sum(map(len, found[:-1])) < 1000 <= sum(map(len, found))
    assert found == prompt_tokens(target, 1000) != prompt_tokens(target, 1000, seed=1)
