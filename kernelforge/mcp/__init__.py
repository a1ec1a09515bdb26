"""The MCP server: any coding agent as a Coder, with the same evaluator.

``service`` does what the tools say, for the clients of ``sessions``; ``schemas`` are their results, ``code_pages``
those of PTX and machine code; ``server`` binds them to the protocol, and ``transport`` to stdio or HTTP.
"""
