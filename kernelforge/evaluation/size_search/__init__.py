"""Search for small and hidden sizes, for tasks that come with one size only; runs the reference, confined.

``extents`` reads which module constants may change, ``search`` chooses values, ``worker`` is the child that tries
them, ``client`` its parent's side, ``chooser`` does all of it for many tasks and asks the oracle about the ``choice``,
and ``shipped`` has the sizes of published tasks.
"""

from kernelforge.evaluation.size_search.choice import SizeChoice
from kernelforge.evaluation.size_search.chooser import SizeChooser
from kernelforge.evaluation.size_search.search import Bounds

__all__ = ["Bounds", "SizeChoice", "SizeChooser"]
