// Copies of tiny buckets, which every worker leaves for all others.

#ifndef GRADSYNC_CORE_SHARED_MEMORY_WINDOW_POSTS_H_
#define GRADSYNC_CORE_SHARED_MEMORY_WINDOW_POSTS_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

namespace gradsync {

// What a worker has of a bucket that is posted: two posts, for launches in turns. A post is lines of the
// step's note and then the gradient, each with a mark of its own, written in order. So who reads finds in a
// line what came with its mark, one way between cores, while the next is still written; a bucket that one
// worker does for all takes three ways, one after the other (who is there, its gradient, done). After
// NCCL's protocols LL and LL128, which put flags beside the data.
//
// Two are enough: who writes a post has completed the launch before it, for which all others had
// posted, and those had read what is overwritten now.
//
// Constant and thread-safe, but for a post that is written: one thread writes, and before it all
// others have read. Nothing blocks or allocates.
class WindowPosts {
 public:
  using Note = std::array<uint64_t, 4>;

  // What a bucket of so many floats takes in a worker's window, from a cache line on; zeros at first.
  static int64_t BytesOf(int64_t floats);

  // `begins` by worker: where each has its posts of a bucket of so many floats.
  WindowPosts(std::vector<char*> begins, int64_t floats, int self);

  // Copies the own gradient. `launch` of the bucket counts from 1.
  void Write(int64_t launch, const Note& note, const float* grad) const;

  // Whether all have written theirs. If each that has written stores nothing but looks again after a
  // fence, one at least is told so.
  bool AllThere(int64_t launch) const;

  // Of a worker whose post is there; copies its gradient.
  Note note(int worker, int64_t launch) const;
  void Read(int worker, int64_t launch, float* grad) const;

  // Gets the lines that the next Write() writes, which the others have read.
  void FetchNext(int64_t launch) const;

 private:
  static constexpr int64_t kWords = 15;  // of a line
  static constexpr int64_t kNoteWords = 8;

  struct Line {
    alignas(64) std::array<uint32_t, kWords> words;
    std::atomic<uint32_t> mark;  // the launch, when the line is written
  };
  static_assert(sizeof(Line) == 64);

  static int64_t LinesOf(int64_t floats) { return (kNoteWords + floats + kWords - 1) / kWords; }
  Line* Post(int worker, int64_t launch) const {
    return reinterpret_cast<Line*>(begins_[worker]) + (launch & 1) * lines_;
  }

  const std::vector<char*> begins_;
  const int64_t floats_;
  const int64_t lines_;
  const int self_;
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_SHARED_MEMORY_WINDOW_POSTS_H_
