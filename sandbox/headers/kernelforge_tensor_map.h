// What a kernel takes a tensor map by, with the size and the alignment that CUDA 13's cuda.h gives it. The contents are
// the hardware's: kernels pass its address to cp.async.bulk.tensor.
#pragma once
typedef struct CUtensorMap_st {
  alignas(128) unsigned long long opaque[16];
} CUtensorMap;
