#include <algorithm>
#include <cstddef>

namespace {

constexpr int kValues = 256;

// An image whose channels are interleaved.
struct Image {
    const unsigned char *data;
    int channels;

    unsigned char operator()(std::size_t pixel, int channel) const { return data[pixel * channels + channel]; }
};

} // namespace

// How often each of 256 values occurs in each channel of an image.
//
// image[pixels][channels], count[channels][256]
extern "C" void channel_histogram(int pixels, int channels, const unsigned char *image, int *count)
{
    const Image view{image, channels};
    std::fill_n(count, channels * kValues, 0);
    for (int pixel = 0; pixel < pixels; ++pixel)
        for (int channel = 0; channel < channels; ++channel)
            ++count[channel * kValues + view(pixel, channel)];
}
