#include <algorithm>
#include <array>

// The middle of the nine values around each pixel. Beyond the border the nearest pixel counts.
//
// image[height][width], filtered[height][width]
extern "C" void median_filter(int height, int width, const float *image, float *filtered)
{
    for (int i = 0; i < height; ++i) {
        for (int j = 0; j < width; ++j) {
            std::array<float, 9> around;
            auto next = around.begin();
            for (int y = i - 1; y <= i + 1; ++y)
                for (int x = j - 1; x <= j + 1; ++x)
                    *next++ = image[static_cast<long long>(std::clamp(y, 0, height - 1)) * width
                                    + std::clamp(x, 0, width - 1)];
            std::nth_element(around.begin(), around.begin() + 4, around.end());
            filtered[static_cast<long long>(i) * width + j] = around[4];
        }
    }
}
