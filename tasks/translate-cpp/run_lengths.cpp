#include <algorithm>

// Run-length encoding: the value and the length of each run of equal neighbours, in order, then zeros; and how many
// runs there are.
//
// x[n], value[n], length[n], runs[1]
extern "C" void run_lengths(int n, const int *x, int *value, int *length, int *runs)
{
    std::fill_n(value, n, 0);
    std::fill_n(length, n, 0);
    int run = 0;
    for (const int *first = x; first != x + n; ++run) {
        const int *last = std::find_if_not(first, x + n, [first](int other) { return other == *first; });
        value[run] = *first;
        length[run] = static_cast<int>(last - first);
        first = last;
    }
    runs[0] = run;
}
