// Where things lie in a window: memory that other processes of its host map. A worker's:
//
//   control words | progress | sums of squares | bucket 0: grad, param | bucket 1: grad, param ...
//
// Where the plan has slots (BucketSlots), only the first so many buckets have memory of their own,
// large enough for all who use it. Where these are of parameters, there is a shard at the end: the
// parameters of the chunks that the window's member owns.
//
// Every rank's gradient stays where it is. The owner of a chunk reads it from all windows, folds,
// and stores the result into all: one pass, and every chunk has one writer. (A ring moves the same
// chunk 2(n-1) times.)

#ifndef GRADSYNC_CORE_SHARED_MEMORY_WINDOW_LAYOUT_H_
#define GRADSYNC_CORE_SHARED_MEMORY_WINDOW_LAYOUT_H_

#include <array>
#include <cstdint>
#include <vector>

#include "core/plan/plan.h"

namespace gradsync {

// Offsets and sizes in bytes. Flat buffers begin at pages, the rest at cache lines. A value;
// thread-compatible.
class WindowLayout {
 public:
  static constexpr int64_t kProgressBytes = 128;

  WindowLayout() = default;

  // For a window whose control words take `control_bytes`, and posts so many by bucket.
  WindowLayout(const Plan& plan, int64_t control_bytes, int64_t shard_elements = 0,
               const std::vector<int64_t>& post_bytes = {});

  // The window of a parameter server that owns `chunks`: it has no flat buffers.
  static WindowLayout OfServer(const Plan& plan, int64_t chunks, int64_t control_bytes,
                               int64_t shard_elements = 0);

  // kProgressBytes per bucket: how far it is.
  int64_t progress_offset(int bucket) const;

  // One double per chunk that the window's member owns: at most this many.
  int64_t squares() const { return squares_; }
  int64_t squares_offset() const { return squares_offset_; }

  // Of a bucket that is posted (window_posts.h).
  int64_t posts_offset(int bucket) const { return posts_[bucket]; }

  int64_t grad_offset(int bucket) const { return grads_[bucket]; }
  int64_t param_offset(int bucket) const { return params_[bucket]; }

  int64_t shard_offset() const { return shard_offset_; }

  // Of the whole window.
  int64_t bytes() const { return bytes_; }

 private:
  WindowLayout(int64_t buckets, int64_t chunks, int64_t control_bytes);
  void PlaceShard(int64_t elements);

  int64_t progress_offset_ = 0;
  int64_t squares_ = 0;
  int64_t squares_offset_ = 0;
  std::vector<int64_t> posts_;   // by bucket
  std::vector<int64_t> grads_;   // by bucket
  std::vector<int64_t> params_;  // by bucket
  int64_t shard_offset_ = 0;
  int64_t bytes_ = 0;
};

// A step's options as a worker leaves them in its window for the owners (WindowControl::note), bit
// by bit. Pure functions, thread-safe.
std::array<uint64_t, 4> NoteOf(const StepOptions& step);
StepOptions StepOf(const std::array<uint64_t, 4>& note);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_SHARED_MEMORY_WINDOW_LAYOUT_H_
