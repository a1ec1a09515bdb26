"""The MCP server: any coding agent as a Coder, under the same judge.

``catalogue`` has the tasks that are offered, ``bench`` judges candidates with warm evaluators, ``service`` does what
the tools say, ``answers`` are their results, ``server`` binds them to the protocol, and ``serving`` to a transport.
"""
