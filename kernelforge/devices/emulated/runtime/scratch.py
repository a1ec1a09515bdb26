"""Areas of the context's scratch that are used inside one runtime call; generated code uses the areas before these.

An area is 512 bytes: 64 values of 8 bytes.
"""

from __future__ import annotations

from kernelforge.devices.emulated import layout as lay

EFFECTIVE = 16 * lay.SCRATCH_AREA  # address of each lane in its state space
HOST = 17 * lay.SCRATCH_AREA  # host address of each lane
STRIDE = 18 * lay.SCRATCH_AREA  # distance between consecutive words of each lane
UNITS = 19 * lay.SCRATCH_AREA  # distinct sectors of one request, up to 128 entries of 8 bytes
TABLE = 21 * lay.SCRATCH_AREA  # 128-entry hash table, also 1 KiB
