"""The MCP server: any coding agent as a Coder, with the same evaluator.

``service`` does what the tools say, for the clients of ``sessions``, with the ``candidates`` that they send.
``schemas`` are the results, made by ``answers`` and ``pages``; ``server`` binds the tools to the protocol, and
``transport`` to stdio or HTTP.
"""
