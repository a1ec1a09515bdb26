// NVRTC has the device side of the CUDA runtime built in; the host side is not part of a candidate.
#pragma once
