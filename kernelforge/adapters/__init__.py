"""Thin adapters between trainers and the reward server, one module per framework.

What every one of them keeps to:

- A result with the outcome ``infra_error`` is never a number. It is ``None`` where the framework drops such a sample,
  else :class:`~kernelforge.errors.MissingRewardError` is raised.
- A server that refuses, or cannot be reached however often it is tried, raises
  :class:`~kernelforge.errors.ServerError`: that is no single sample's trouble.
- A framework is imported by its own module only. All else needs pydantic and httpx2, so that KernelForge can be put
  beside a trainer without its own dependencies.
"""
