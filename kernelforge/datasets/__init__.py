"""Published candidates, read from CUDA-L1's JSONL and KernelBench's run folders."""

from kernelforge.datasets.published import (
    Import,
    ImportedCandidate,
    UnreadableCandidate,
    as_task,
    read_cuda_l1,
    read_kernelbench,
)

__all__ = ["Import", "ImportedCandidate", "UnreadableCandidate", "as_task", "read_cuda_l1", "read_kernelbench"]
