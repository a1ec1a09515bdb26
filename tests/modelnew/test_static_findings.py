"""Static findings name what is there, at its line, and are not misled by strings, comments and aliases."""

from __future__ import annotations

import pytest

from kernelforge.modelnew.static_checks import static_findings

HONEST = '''
"""Bypass with pass, try: and open() in a docstring."""
import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

CUDA = """
// try to pass torch.matmul( through
__global__ void k(const float* x, float* y, int n) {}
torch::Tensor run(torch::Tensor x) { return x; }
"""
built = load_inline(name="k", cpp_sources="", cuda_sources=CUDA, functions=["run"])

class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return built.run(x)
'''


def rules(text: str) -> set[tuple[str, int]]:
    return {(finding.rule, finding.line) for finding in static_findings(text)}


def test_an_honest_candidate_shows_nothing() -> None:
    assert static_findings(HONEST) == ()


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("return torch.matmul(x, x)", "torch_computation_ops"),
        ("return x @ x", "torch_computation_ops"),
        ("return F.softmax(x, 1)", "torch_computation_ops"),
        ("return x.softmax(1)", "torch_computation_ops"),
        ("return self.fc(x)", "pytorch_wrap"),
        ("return x.half()", "precision_downgrade"),
        ("return x.to(torch.bfloat16)", "precision_downgrade"),
        ("torch.backends.cuda.matmul.allow_tf32 = True", "precision_downgrade"),
        ("torch.cuda.synchronize = print", "timing_event_patch"),
        ("time.perf_counter = print", "timing_event_patch"),
        ("torch.allclose = print", "harness_patch"),
        ("setattr(torch, 'equal', print)", "harness_patch"),
        ("f = sys._getframe()", "harness_patch"),
        ("s = torch.cuda.Stream()", "stream_injection"),
        ("t = Thread(target=print)", "thread_injection"),
        ("return self.kept[x.data_ptr()]", "result_cache"),
        ("if id(x) == self.last: return x", "result_cache"),
        ("exec('x = 1')", "dynamic_code"),
        ("open('/etc/passwd')", "file_access"),
        ("socket.socket()", "network_access"),
        ("os.environ['KEY']", "environment_access"),
        ("os._exit(0)", "process_access"),
        ("subprocess.run(['ls'])", "process_access"),
    ],
)
def test_each_rule_is_found_at_its_line(line: str, rule: str) -> None:
    text = f"""import os, sys, socket, subprocess, time
import torch
import torch.nn as nn
import torch.nn.functional as F
from threading import Thread
class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
    def forward(self, x):
        {line}
"""
    assert (rule, 11) in rules(text)


def test_fallbacks_inheritance_and_lazy_tensors_are_found() -> None:
    text = """
import torch
from contextlib import suppress
class Lazy(torch.Tensor):
    @classmethod
    def __torch_function__(cls, f, t, a=(), k=None): return f(*a)
class ModelNew(Model):
    def build(self):
        pass
    def forward(self, x):
        try:
            return fast(x)
        except Exception:
            return slow(x)
        with suppress(Exception):
            return x
"""
    assert {
        ("lazy_eval", 4), ("lazy_eval", 6), ("inherits_reference", 7), ("code_bypass", 8), ("code_bypass", 11),
        ("code_bypass", 15),
    } <= rules(text)  # fmt: skip


def test_text_that_is_not_python_has_no_findings() -> None:
    assert static_findings("def f(:") == ()
    assert static_findings("(" * 100_000) == ()
