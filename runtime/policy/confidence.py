"""How far to believe the confidence that a drafter reports of its proposals."""

from __future__ import annotations

_CLASSES = 10
"""of reported confidence, each a tenth wide"""
_TRUST = 4.0
"""proposals that a reported confidence counts as, against what came of those of its class"""
_HONEST = 2.0
"""proposals that were accepted, of as many that should have been, which are believed before any was seen"""
_FORGET = 0.98
"""weight of what came of earlier proposals: in a class per proposal of it, in all per proposal"""


class Calibration:
    """The probability that a proposal is accepted, from the confidence that the drafter reports: right from the start
    where that is the truth, and learned where not.
    """

    def __init__(self) -> None:
        self._met, self._accepted = [0.0] * _CLASSES, [0.0] * _CLASSES
        self._all_reported = self._all_accepted = _HONEST

    def of(self, reported: float) -> float:
        """The probability that a proposal of the `reported` confidence is accepted, from 0 to 1."""
        place, honest = _place(reported), min(reported * self._all_accepted / self._all_reported, 1.0)
        return (honest * _TRUST + self._accepted[place]) / (_TRUST + self._met[place])

    def note(self, reported: float, accepted: bool) -> None:
        """A proposal of the `reported` confidence was verified behind accepted ones, and was `accepted` or not."""
        place = _place(reported)
        self._met[place] = self._met[place] * _FORGET + 1
        self._accepted[place] = self._accepted[place] * _FORGET + accepted
        self._all_reported = _HONEST + (self._all_reported - _HONEST) * _FORGET + reported
        self._all_accepted = _HONEST + (self._all_accepted - _HONEST) * _FORGET + accepted


def _place(reported: float) -> int:
    return min(int(reported * _CLASSES), _CLASSES - 1)
