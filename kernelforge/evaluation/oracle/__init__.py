"""The oracle as its parent sees it: a confined child that runs the reference."""

from typing import Final

GPU_SHARE: Final = 0.6
"""Part of a GPU's memory that torch may take in the oracle's process; the rest is for the candidate's runner. Here,
for parent and child read it: the child must not import what the parent needs, which would double its start."""
