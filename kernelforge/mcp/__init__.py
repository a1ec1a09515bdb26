"""The MCP server: any coding agent as a Coder, with the same evaluator.

``catalogue`` has the tasks that are offered, ``bench`` judges candidates with warm evaluators, ``service`` does what
the tools say, ``answers`` are their results, ``server`` binds them to the protocol, and ``serving`` to a transport.
"""
