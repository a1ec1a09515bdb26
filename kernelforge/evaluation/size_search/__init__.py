"""Search for small and hidden sizes, for tasks that come with one size only; runs the reference, confined.

``extents`` reads which module constants may change, ``search`` chooses values, ``worker`` is the child that tries
them, ``prober`` its parent's side, ``judging`` asks the oracle about what was chosen; ``shrinker`` does all of it for
one task, ``importing`` for many.
"""

from kernelforge.evaluation.size_search.chooser import SizeChoice, SizeChooser
from kernelforge.evaluation.size_search.search import Bounds

__all__ = ["Bounds", "SizeChoice", "SizeChooser"]
