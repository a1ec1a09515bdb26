#include <algorithm>
#include <cmath>

namespace {

template <typename Pixel>
float gradient(Pixel pixel, int across, int down)
{
    float sum = 0.0f;
    for (int d = -1; d <= 1; ++d) {
        float weight = d == 0 ? 2.0f : 1.0f;
        sum += weight * (pixel(down + d * across, across + d * down) - pixel(-down + d * across, -across + d * down));
    }
    return sum;
}

} // namespace

// Edge strength of a colour image: its brightness, then the length of the Sobel gradient. Beyond the border the nearest
// pixel counts.
//
// rgb[height][width][3], strength[height][width]
extern "C" void sobel(int height, int width, const unsigned char *rgb, float *strength)
{
    for (int i = 0; i < height; ++i) {
        for (int j = 0; j < width; ++j) {
            auto brightness = [=](int di, int dj) {
                long long y = std::clamp(i + di, 0, height - 1), x = std::clamp(j + dj, 0, width - 1);
                const unsigned char *pixel = rgb + (y * width + x) * 3;
                return 0.299f * pixel[0] + 0.587f * pixel[1] + 0.114f * pixel[2];
            };
            strength[static_cast<long long>(i) * width + j] =
                std::hypot(gradient(brightness, 1, 0), gradient(brightness, 0, 1));
        }
    }
}
