"""Answers decoded again on recorded tokens, proposals and prices: the session's own loop and controller, a clock that
only they move.
"""
