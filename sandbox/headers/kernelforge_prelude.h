// Included before every candidate: what CUDA programs expect to be there and NVRTC leaves out.
#pragma once
#include "stdint.h"
#include "limits.h"
#include "float.h"
#include "math.h"
#include "kernelforge_tensor_map.h"
