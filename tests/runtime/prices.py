"""What cycles of SmolLM2-135M with the demo's drafter cost at int4, one thread, in plain steps of 9 ms, and how long
they take on a crowded machine.
"""

from __future__ import annotations

import random

BLOCK, WIDTHS, NARROWEST = 6, (2, 4, 6), 2
VERIFY = {1: 1.0, 2: 1.0, 4: 1.54, 6: 2.02}
DRAFT = {2: 0.18, 4: 0.2, 6: 0.25}
"""with its inject"""


class Crowded:
    """A core that another job takes for `share` of the time, after slices of work that last `own` on average."""

    def __init__(self, share, own, seed):
        self.noise, self.share, self.own = random.Random(seed), share, own
        self.left = self.slice()

    def slice(self):
        return self.noise.expovariate(1 / self.own)

    def __call__(self, work):
        wall = work
        while work >= self.left:
            work -= self.left
            wall += self.noise.expovariate((1 - self.share) / (self.share * self.own))
            self.left = self.slice()
        self.left -= work
        return wall
