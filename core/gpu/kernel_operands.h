// What kernels are told of the memory that they work on, and what the host computes of it alike.

#ifndef GRADSYNC_CORE_GPU_KERNEL_OPERANDS_H_
#define GRADSYNC_CORE_GPU_KERNEL_OPERANDS_H_

#include <stddef.h>
#include <stdint.h>

// For functions that kernels call and the host can run too.
#ifdef __CUDACC__
#define GRADSYNC_HOST_DEVICE __host__ __device__
#else
#define GRADSYNC_HOST_DEVICE
#endif

namespace gradsync {

// What kernels that take many pieces of memory in one launch are told of each piece. These structs
// lie in device or pinned memory, where the GPU reads them when the kernel's turn comes.

// Elements [offset, offset + count) of every source and destination of a fold. The sources are
// added in the order first, first + 1, ... (mod their number); for chunk c of a plan that is
// FoldRank(c, 0, n), core/plan/stripes.h.
struct FoldPiece {
  int64_t offset = 0;
  int64_t count = 0;
  int first = 0;
};

// The most sources, and the most destinations, of a fold: they travel with the launch.
constexpr size_t kMostFoldOperands = 64;

// A run of floats whose squares are summed.
struct SquaresPiece {
  const float* x = nullptr;
  int64_t count = 0;
};

// How a batch of images lies in memory, as bytes and as a model's input.

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

// How kernels cut a run of floats so that most of it is read and written in 16 bytes at a time.

constexpr int kVectorFloats = 4;

// Floats by which an address is past a multiple of 16 bytes. Pointers of one kernel whose phases
// differ cannot be read in vectors together: kNoPhase.
constexpr int kNoPhase = -1;
inline int VectorPhase(const void* address) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(address) / sizeof(float) % kVectorFloats);
}
inline int CommonPhase(int phase, const void* other) {
  return phase == VectorPhase(other) ? phase : kNoPhase;
}

// `head` floats, then `vectors` times 4 floats, which are aligned, then what is left.
struct VectorSplit {
  size_t head;
  size_t vectors;

  // The index of the i-th float that is in no vector.
  GRADSYNC_HOST_DEVICE size_t Single(size_t i) const {
    return i < head ? i : i + vectors * kVectorFloats;
  }
  GRADSYNC_HOST_DEVICE size_t singles(size_t n) const { return n - vectors * kVectorFloats; }
};

// Of n floats from `offset` on after an address of `phase`.
GRADSYNC_HOST_DEVICE inline VectorSplit SplitVectors(int phase, size_t offset, size_t n) {
  if (phase < 0) return {n, 0};
  const size_t past = (static_cast<size_t>(phase) + offset) % kVectorFloats;
  const size_t gap = past == 0 ? 0 : kVectorFloats - past;
  if (gap >= n) return {n, 0};
  return {gap, (n - gap) / kVectorFloats};
}

}  // namespace gradsync

#endif  // GRADSYNC_CORE_GPU_KERNEL_OPERANDS_H_
