"""Finds the golden run, which lies with the store's tests, and the parser of pages."""
