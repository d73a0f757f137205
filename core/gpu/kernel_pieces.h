// What kernels that take many pieces of memory in one launch are told of each piece. These structs
// lie in device or pinned memory, where the GPU reads them when the kernel's turn comes.

#ifndef GRADSYNC_CORE_GPU_KERNEL_PIECES_H_
#define GRADSYNC_CORE_GPU_KERNEL_PIECES_H_

#include <stddef.h>
#include <stdint.h>

namespace gradsync {

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

}  // namespace gradsync

#endif  // GRADSYNC_CORE_GPU_KERNEL_PIECES_H_
