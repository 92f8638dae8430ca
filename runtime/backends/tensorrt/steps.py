"""Runs of engines, each with the memory it reads and writes, and how many of them make up what a cycle calls.

A program of an engine may be run by several steps, each over memory of its own: addresses are given before every run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from .plan import Runner


class Step:
    """One run of a program."""

    def __init__(self, plan: Callable[[], Runner], addresses: Mapping[str, int]) -> None:
        """`plan` is asked at every run, because the context behind it may be replaced."""
        self._plan, self.addresses = plan, addresses

    @property
    def capturable(self) -> bool:
        return self._plan().capturable

    def enqueue(self) -> None:
        """Put the run on the device's stream."""
        plan = self._plan()
        for port, address in self.addresses.items():
            plan.bind(port, address)
        plan.enqueue()


class Chain:
    """Steps one after the other."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = steps

    @property
    def capturable(self) -> bool:
        return all(step.capturable for step in self.steps)

    def enqueue(self) -> None:
        """Put all of them on the device's stream."""
        for step in self.steps:
            step.enqueue()
