"""The MCP server: any coding agent as a Coder, with the same evaluator.

``service`` does what the tools say, ``schemas`` are their results, ``server`` binds them to the protocol, and
``transport`` to stdio or HTTP.
"""
