"""What a drafter says of its own proposals, and how far to believe it."""

from __future__ import annotations

_CLASSES = 10
"""of chances, each a tenth wide"""
_TRUST = 4.0
"""proposals that what the drafter says counts as, against what came of those it said as much of"""
_HONEST = 2.0
"""proposals that stood, of as many that should have, which are believed before any was seen"""
_FORGET = 0.98
"""weight of what came of earlier proposals: in a class per proposal of it, in all per proposal"""


class Calibration:
    """The chance that a proposal stands, from the one that the drafter gives it: right from the start where that is the
    truth, and learned where not.
    """

    def __init__(self) -> None:
        self._met, self._stood = [0.0] * _CLASSES, [0.0] * _CLASSES
        self._all_said = self._all_stood = _HONEST

    def of(self, said: float) -> float:
        """The chance of a proposal that the drafter gives the chance `said`, from 0 to 1."""
        place, honest = _place(said), min(said * self._all_stood / self._all_said, 1.0)
        return (honest * _TRUST + self._stood[place]) / (_TRUST + self._met[place])

    def note(self, said: float, stood: bool) -> None:
        """A proposal of the chance `said` was verified behind others that stood, and it `stood`, or did not."""
        place = _place(said)
        self._met[place] = self._met[place] * _FORGET + 1
        self._stood[place] = self._stood[place] * _FORGET + stood
        self._all_said = _HONEST + (self._all_said - _HONEST) * _FORGET + said
        self._all_stood = _HONEST + (self._all_stood - _HONEST) * _FORGET + stood


def _place(said: float) -> int:
    return min(int(said * _CLASSES), _CLASSES - 1)
