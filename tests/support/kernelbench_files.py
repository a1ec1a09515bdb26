"""Task files in KernelBench's format, written for the tests: small and large sizes, inline ones, and bad ones."""

from __future__ import annotations

from pathlib import Path

_HEAD = """import torch
import torch.nn as nn

"""
_NO_INIT = """

def get_init_inputs():
    return []
"""

DOUBLE = """
import torch
N = 64
class Model(torch.nn.Module):
    def forward(self, x):
        return x * 2
def get_inputs():
    return [torch.randn(N, N)]
def get_init_inputs():
    return []
"""

SOFTMAX = (
    _HEAD
    + '''
class Model(nn.Module):
    """Softmax over rows, at sizes as in version 0."""

    def forward(self, x):
        return torch.softmax(x, dim=1)


batch_size = 16
dim = 16384


def get_inputs():
    return [torch.randn(batch_size, dim)]
'''
    + _NO_INIT
)

RELU = (
    _HEAD
    + """
class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)


batch_size = 4096
dim = 196608 * 2


def get_inputs():
    x = torch.rand(batch_size, dim)
    return [x]
"""
    + _NO_INIT
)

GROUP_NORM = (
    _HEAD
    + """
class Model(nn.Module):
    def __init__(self, num_features, num_groups):
        super().__init__()
        self.norm = nn.GroupNorm(num_groups, num_features)

    def forward(self, x):
        return self.norm(x)


batch_size = 112
features = 64
num_groups = 8
dim1 = 512


def get_inputs():
    return [torch.rand(batch_size, features, dim1)]


def get_init_inputs():
    return [features, num_groups]
"""
)

INLINE = (
    _HEAD
    + """
class Model(nn.Module):
    def __init__(self, in_features, out_features, bias):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features, bias=bias)

    def forward(self, x):
        return self.linear(x)


def get_inputs():
    torch.manual_seed(42)
    x = torch.rand(1024, 4096, device="cuda")
    return [x]


def get_init_inputs():
    return {"in_features": 4096, "out_features": 512, "bias": True}
"""
)

LAYERS = (
    _HEAD
    + """
class Model(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(width, width) for _ in range(layers)])

    def forward(self, x):
        return self.layers(x)


BATCH = 64
WIDTH = 48
LAYERS = 9


def get_inputs():
    return [torch.randn(BATCH, WIDTH)]


def get_init_inputs():
    return [WIDTH, LAYERS]
"""
)

CROSS_ENTROPY = (
    _HEAD
    + """
class Model(nn.Module):
    def forward(self, predictions, targets):
        return nn.functional.cross_entropy(predictions, targets)


batch_size = 4096
num_classes = 10
input_shape = (10,)
dim = 1


def get_inputs():
    return [torch.rand(batch_size, *input_shape), torch.randint(0, num_classes, (batch_size,))]
"""
    + _NO_INIT
)

ARGMAX = (
    _HEAD
    + """
class Model(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        return torch.argmax(x, dim=self.dim)


def get_inputs():
    return [torch.rand(16, 256, 255)]


def get_init_inputs():
    return [1]
"""
)

BROKEN = "import torch\nclass Model(torch.nn.Module)\n    pass\n"

CASTS = INLINE.replace("self.linear(x)", "self.linear(x.float())").replace("4096", "1024").replace("512", "256")
"""In float64 its product has operands of two types."""

PACKAGE = SOFTMAX.replace("import torch.nn as nn", "import torch.nn as nn\nimport not_installed_here")

HANGS = SOFTMAX.replace("return torch.softmax(x, dim=1)", "return __import__('time').sleep(600)")

RANDOM = SOFTMAX.replace("torch.softmax(x, dim=1)", "x + torch.randn_like(x)")

RAISES = SOFTMAX.replace("torch.softmax(x, dim=1)", "x @ x.reshape(-1)")

CONSTANT = SOFTMAX.replace("torch.softmax(x, dim=1)", "torch.softmax(x, dim=1).sum(1, keepdim=True)")

HUGE = INLINE.replace("4096", "223606").replace("512", "223606")
"""Weights of 200 GB."""

FETCHES = SOFTMAX.replace("import torch.nn as nn", "import torch.nn as nn\nfrom transformers import AutoModel")

GOOD = {
    "level1/23_Softmax.py": SOFTMAX,
    "level1/35_GroupNorm_.py": GROUP_NORM,
    "level1/95_CrossEntropyLoss.py": CROSS_ENTROPY,
    "level2/1_Linear_Inline.py": INLINE,
    "level2/2_Casts.py": CASTS,
}
BAD = {
    "level1/2_Broken.py": BROKEN,
    "level1/4_Random.py": RANDOM,
    "level1/5_Raises.py": RAISES,
    "level3/1_Huge.py": HUGE,
    "level4/1_Fetches.py": FETCHES,
}


def write_checkout(folder: Path, files: dict[str, str]) -> Path:
    """A checkout with these files in its folder ``KernelBench``."""
    for name, text in files.items():
        path = folder / "KernelBench" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder
