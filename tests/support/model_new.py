"""A reply as KernelBench asks for it: the right kernel of :mod:`tests.support.axpy` in a ``ModelNew``."""

from __future__ import annotations

from tests.support.axpy import KERNEL

HOST = """torch::Tensor axpy_cuda(torch::Tensor x, torch::Tensor y) {
    auto out = torch::empty_like(x);
    int n = x.numel();
    axpy<<<(n + 127) / 128, 128>>>(x.data_ptr<float>(), y.data_ptr<float>(), out.data_ptr<float>(), n);
    return out;
}
"""


def model_new(kernel: str = KERNEL, host: str = HOST) -> str:
    """The Python file."""
    return f'''import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = r"""
{kernel}
{host}"""
declared = "torch::Tensor axpy_cuda(torch::Tensor x, torch::Tensor y);"
extension = load_inline(name="axpy", cpp_sources=declared, cuda_sources=source, functions=["axpy_cuda"])


class ModelNew(nn.Module):
    def forward(self, x, y):
        return extension.axpy_cuda(x, y)
'''


def reply_of(file: str) -> str:
    """A completion that ends with the file."""
    return f"<think>\n```python\nclass ModelNew: draft\n```\n</think>\nHere it is.\n\n```python\n{file}```\n"
