// How kernels cut a run of floats so that most of it is read and written in 16 bytes at a time.

#ifndef GRADSYNC_CORE_GPU_VECTOR_SPLIT_H_
#define GRADSYNC_CORE_GPU_VECTOR_SPLIT_H_

#include <stddef.h>
#include <stdint.h>

#include "core/gpu/host_device.h"

namespace gradsync {

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

#endif  // GRADSYNC_CORE_GPU_VECTOR_SPLIT_H_
