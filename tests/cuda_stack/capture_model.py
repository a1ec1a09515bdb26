"""Captures ``model.py`` on an imitated GPU whose runner is one in software, and prints how that ends."""

from __future__ import annotations

import sys
from pathlib import Path
from unittest.mock import patch

from kernelforge.capture import client
from kernelforge.devices.cuda.device import CudaDevice
from kernelforge.errors import KernelForgeError

MODEL = Path(__file__).with_name("model.py")


class Gpu(CudaDevice):
    """Its runner needs no CUDA; other children see the imitated GPU, by the UUID that the driver gives it."""

    def __init__(self) -> None:
        super().__init__(0, driver="tests.profiling.ncu.light_driver:create")
        self.environment = {"CUDA_VISIBLE_DEVICES": "GPU-11111111-1111-1111-1111-111111111111"}


def main() -> int:
    model, inputs = (client.Source.of(f"{MODEL}:{name}", "--inputs") for name in ("make_model", "make_inputs"))
    with patch.object(client, "make_device", lambda name, **options: Gpu()):
        try:
            print(client.capture_on_gpu(model, inputs, "cuda:0"))
        except KernelForgeError as error:
            print(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
