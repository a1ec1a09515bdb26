#include <numeric>

// Offsets from counts: offset[i] is the sum of all counts before i, and offset[n] that of all. Counts may be negative.
//
// count[n], offset[n + 1]
extern "C" void exclusive_scan(int n, const int *count, int *offset)
{
    offset[0] = 0;
    std::inclusive_scan(count, count + n, offset + 1);
}
