"""CUDA C++ to cubin and PTX with NVRTC in a confined child; what it said, and whether what it made is allowed."""

from kernelforge.candidate.plan import LaunchSignature
from kernelforge.compile.artifact import Artifact
from kernelforge.compile.cache import BuildCache
from kernelforge.compile.compiler import COMPILE_LIMITS, Compiler
from kernelforge.compile.toolchain import Toolchain, installed_toolchain, supported_architectures

__all__ = [
    "COMPILE_LIMITS",
    "Artifact",
    "BuildCache",
    "Compiler",
    "LaunchSignature",
    "Toolchain",
    "installed_toolchain",
    "supported_architectures",
]
