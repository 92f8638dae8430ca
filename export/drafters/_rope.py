"""The rotary embedding of a drafter, from the two forms in which configurations of transformers give it."""

from __future__ import annotations

from collections.abc import Mapping

from ..checkpoints.files import section
from ._reader import Reader, mapping, positive


def read_rope(reader: Reader) -> tuple[float, Mapping[str, object] | None]:
    """(theta, scaling): `rope_parameters` as transformers 5 writes it, or `rope_theta` and `rope_scaling` as before."""
    for key in ("rope_parameters", "rope_scaling"):
        if reader.raw.get(key) is not None:
            reader.parsed(key, reader.raw[key], mapping)
    parameters = section(reader.raw.get("rope_parameters"))
    scaling = dict(section(reader.raw.get("rope_scaling")) or parameters)
    inner = scaling.pop("rope_theta", None)
    top = reader.raw.get("rope_theta")
    nested = parameters.get("rope_theta", inner)
    if None not in (top, nested) and top != nested:
        raise reader.fault(
            "rope_theta",
            "rope_theta is given twice and differs",
            f"rope_theta = {top}, rope_parameters = {nested}",
            "keep the value the drafter was trained with",
        )
    theta = nested if top is None else top
    if theta is None:
        raise reader.fault(
            "rope_theta",
            "the drafter's configuration lacks rope_theta",
            "a guess would shift every position",
            "add rope_theta to config.json as its authors publish it",
        )
    reader.evidence["rope_theta"] = "rope_theta" if top is not None else "rope_parameters.rope_theta"
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    plain = kind == "default"
    reader.evidence["rope_scaling"] = (
        "rope_scaling" if reader.raw.get("rope_scaling") else "rope_parameters" if parameters else "no rope_scaling"
    )
    return reader.parsed("rope_theta", theta, positive), None if plain else {**scaling, "rope_type": kind}
