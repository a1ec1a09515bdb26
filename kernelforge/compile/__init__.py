"""Compilation of CUDA C++ to cubin and PTX with NVRTC in a confined child; diagnostics, and the policy gate."""

from kernelforge.candidate.plan import LaunchSignature
from kernelforge.compile.cache import Artifact, BuildCache
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
