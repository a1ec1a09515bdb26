"""Published candidates, read from the files of CUDA-L1, KernelBench and the AI CUDA Engineer."""

from kernelforge.datasets.published import (
    Import,
    ImportedCandidate,
    UnreadableCandidate,
    as_task,
    read_ai_cuda_engineer,
    read_cuda_l1,
    read_kernelbench,
)

__all__ = [
    "Import",
    "ImportedCandidate",
    "UnreadableCandidate",
    "as_task",
    "read_ai_cuda_engineer",
    "read_cuda_l1",
    "read_kernelbench",
]
