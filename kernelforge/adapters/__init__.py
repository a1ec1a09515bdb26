"""Thin adapters between trainers and the reward server, one module per framework.

Common rules:

- A result with the outcome ``infra_error`` is never a number. It is ``None`` if the framework drops such a sample;
  otherwise :class:`~kernelforge.errors.MissingRewardError` is raised.
- A server that refuses, or cannot be reached after all retries, raises :class:`~kernelforge.errors.ServerError`:
  that affects more than one sample.
- Only the module of a framework imports it. All else needs pydantic and httpx2, so that KernelForge can be installed
  with a trainer without further dependencies.
"""
