// How a batch of images lies in memory, as bytes and as a model's input.

#ifndef GRADSYNC_CORE_GPU_IMAGE_LAYOUT_H_
#define GRADSYNC_CORE_GPU_IMAGE_LAYOUT_H_

#include <stddef.h>

#include "core/gpu/host_device.h"

namespace gradsync {

// Bytes lie plane by plane (NCHW). So do the values made of them, or, with channels_last, pixel by
// pixel (NHWC). Sizes of 0 are allowed.
struct ImageLayout {
  static constexpr size_t kMostChannels = 4;

  size_t images = 0;
  size_t channels = 3;       // at most kMostChannels
  size_t pixels = 0;         // height * width
  size_t element_bytes = 4;  // of a value: 4 or 2
  bool channels_last = false;

  // Values of all images, which are as many as bytes.
  GRADSYNC_HOST_DEVICE size_t values() const { return images * channels * pixels; }

  GRADSYNC_HOST_DEVICE size_t ByteIndex(size_t image, size_t channel, size_t pixel) const {
    return (image * channels + channel) * pixels + pixel;
  }
  GRADSYNC_HOST_DEVICE size_t ValueIndex(size_t image, size_t channel, size_t pixel) const {
    return channels_last ? (image * pixels + pixel) * channels + channel
                         : ByteIndex(image, channel, pixel);
  }
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_GPU_IMAGE_LAYOUT_H_
