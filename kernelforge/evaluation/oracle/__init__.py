"""The oracle as its parent sees it: a confined child that runs the reference."""
