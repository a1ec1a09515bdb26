"""Describe an exception of a candidate, and where in its file it happened. Child process."""

from __future__ import annotations

import subprocess
import traceback
from typing import Any

import torch

MAX_TEXT = 6000

_BUILD_TEXT = ("error building extension", "ninja: build stopped", "failed to compile", "nvrtc compilation error")
_BUILD_TYPES = ("CompileException", "CompilationError", "NVRTCError", "InductorError")
_GPU_TEXT = (
    "torch not compiled with cuda enabled",
    "found no nvidia driver",
    "no cuda gpus are available",
    "cuda_home environment variable is not set",
    "cannot access accelerator device when none is available",
    "active drivers ([]). there should only be one",
    "cpu tensor?",
    "cudaerrorinsufficientdriver",
    "cudaerrornodevice",
    "cuda driver version is insufficient",
    "failed to dlopen libcuda",
    "libcuda.so.1: cannot open",
)


def describe_exception(error: BaseException, filename: str, on_gpu: bool) -> dict[str, Any]:
    """A failure as data: ``kind`` (``crash build memory missing gpu``), type, text, line of the candidate's file."""
    text = str(error)
    shortened = text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT // 3]}\n[...]\n{text[-2 * MAX_TEXT // 3 :]}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == filename]
    return {
        "kind": _kind(error, text.lower(), on_gpu),
        "type": type(error).__name__,
        "text": shortened,
        "line": lines[-1] if lines else None,
    }


def _kind(error: BaseException, text: str, on_gpu: bool) -> str:
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in text:
        return "memory"
    if not on_gpu and any(words in text for words in _GPU_TEXT):
        return "gpu"
    if isinstance(error, ModuleNotFoundError):
        return "missing"
    built = isinstance(error, subprocess.CalledProcessError) or type(error).__name__ in _BUILD_TYPES
    return "build" if built or any(words in text for words in _BUILD_TEXT) else "crash"
