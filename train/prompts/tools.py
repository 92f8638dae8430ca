"""Requests to answer with a function call, put together from many small parts, so that no two name the same tools in
the same words.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass

from .data import read


@dataclass(frozen=True)
class Parameter:
    """A parameter of a tool, its JSON type, and values a user might ask for."""

    name: str
    type: str
    values: tuple[str | int | float | bool, ...]


@dataclass(frozen=True)
class Tool:
    """A function, what it does, its parameters, and requests that name all of them."""

    name: str
    about: str
    parameters: tuple[Parameter, ...]
    requests: tuple[str, ...]


_DATA = read("tools")
_PARAMETERS = {
    name: Parameter(name, type_, tuple(values))
    for type_, named in _DATA["parameters"].items()
    for name, values in named.items()
}
TOOLS = tuple(
    Tool(it["name"], it["about"], tuple(_PARAMETERS[name] for name in it["parameters"]), tuple(it["requests"]))
    for it in _DATA["tools"]
)


def tool_prompt(rng: random.Random) -> str:
    """A user message: one to three tools in one of four notations, a request, and how to answer; the order varies."""
    tool, *others = rng.sample(TOOLS, rng.choice([1, 1, 2, 3]))
    tools = [tool, *others]
    rng.shuffle(tools)
    notation = rng.choice([_signature, _signature, _described, _schema, _listed])
    heading = rng.choice(
        ["Tools:", "You can use these functions:", "Functions you may call:", "The following tools exist."]
    )
    offered = (
        "\n".join([heading, *map(notation, tools)])
        if others
        else f"{rng.choice(['Here is a tool.', 'The only function is', 'A function to use:'])} {notation(tool)}"
    )
    values = {parameter.name: rng.choice(parameter.values) for parameter in tool.parameters}
    said = {name: str(value).lower() if isinstance(value, bool) else value for name, value in values.items()}
    request = rng.choice(tool.requests).format(**said)
    asked = f"{rng.choice(['User:', 'Request:', 'The user says:', 'Question:', 'Task:'])} {request}"
    how = rng.choice(_DATA["which"] if others and rng.random() < 0.5 else _DATA["how"])
    return rng.choice(["\n", "\n", " ", "\n\n"]).join(
        [offered, how, asked] if rng.random() < 0.4 else [offered, asked, how]
    )


def _signature(tool: Tool) -> str:
    return f"{tool.name}({', '.join(f'{p.name}: {p.type}' for p in tool.parameters)})"


def _described(tool: Tool) -> str:
    return f"{tool.name}({', '.join(p.name for p in tool.parameters)}) - {tool.about}"


def _schema(tool: Tool) -> str:
    properties = {p.name: {"type": p.type} for p in tool.parameters}
    return json.dumps(
        {"name": tool.name, "description": tool.about, "parameters": {"type": "object", "properties": properties}}
    )


def _listed(tool: Tool) -> str:
    return "\n".join([f"- {tool.name}: {tool.about}", *(f"  - {p.name} ({p.type})" for p in tool.parameters)])
