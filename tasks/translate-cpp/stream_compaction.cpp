#include <algorithm>

// Move the values above a threshold to the front, in their order, fill the rest with zeros, and count them.
//
// x[n], packed[n], kept[1]
extern "C" void stream_compaction(int n, float threshold, const float *x, float *packed, int *kept)
{
    float *end = std::copy_if(x, x + n, packed, [threshold](float value) { return value > threshold; });
    kept[0] = static_cast<int>(end - packed);
    std::fill(end, packed + n, 0.0f);
}
