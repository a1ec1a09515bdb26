"""Mutation testing of the check itself: faults injected into the reference, each of which the comparator must reject.

``outcome``, ``equivalents`` and ``suite`` are the parent's side and import no torch; all else runs in the oracle's
confined child.
"""
