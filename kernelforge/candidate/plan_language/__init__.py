"""The launch-plan language: text to syntax tree, syntax tree to closures, closures to a list of launches.

No text of a plan is ever compiled or executed by Python. :mod:`text` bounds and parses it, :mod:`statements` and
:mod:`expressions` turn the syntax tree into closures of ours, and :mod:`machine` holds what one resolution made.
"""
