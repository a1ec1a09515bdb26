#include <algorithm>
#include <vector>

// Score of the best local alignment of each pair of sequences (Smith-Waterman): 3 for equal letters, -2 for different
// ones, -gap for each letter that is left out.
//
// first[pairs][m], second[pairs][n], best[pairs]
extern "C" void smith_waterman(
    int pairs, int m, int n, int gap, const signed char *first, const signed char *second, int *best)
{
    std::vector<int> above(n + 1), row(n + 1);
    for (int pair = 0; pair < pairs; ++pair) {
        const signed char *a = first + static_cast<long long>(pair) * m;
        const signed char *b = second + static_cast<long long>(pair) * n;
        std::fill(above.begin(), above.end(), 0);
        best[pair] = 0;
        for (int i = 0; i < m; ++i) {
            for (int j = 1; j <= n; ++j) {
                int equal = above[j - 1] + (a[i] == b[j - 1] ? 3 : -2);
                row[j] = std::max({0, equal, above[j] - gap, row[j - 1] - gap});
            }
            best[pair] = std::max(best[pair], *std::max_element(row.begin(), row.end()));
            std::swap(above, row);
        }
    }
}
