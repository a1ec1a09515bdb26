"""Nsight Compute: metric selection, command lines, parsing. Pure functions over text and files."""
