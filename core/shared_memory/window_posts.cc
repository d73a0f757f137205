#include "core/shared_memory/window_posts.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/prefetch.h"

namespace gradsync {

int64_t WindowPosts::BytesOf(int64_t floats) {
  return 2 * LinesOf(floats) * static_cast<int64_t>(sizeof(Line));
}

WindowPosts::WindowPosts(std::vector<char*> begins, int64_t floats, int self)
    : begins_(std::move(begins)), floats_(floats), lines_(LinesOf(floats)), self_(self) {}

void WindowPosts::Write(int64_t launch, const Note& note, const float* grad) const {
  static_assert(sizeof(Note) == kNoteWords * sizeof(uint32_t));
  Line* line = Post(self_, launch);
  std::memcpy(line->words.data(), note.data(), sizeof(Note));
  const int64_t beside = std::min(floats_, kWords - kNoteWords);
  std::memcpy(line->words.data() + kNoteWords, grad, static_cast<size_t>(beside) * sizeof(float));
  line->mark.store(static_cast<uint32_t>(launch), std::memory_order_release);
  int64_t at = beside;
  for (; at + kWords <= floats_; at += kWords) {
    ++line;
    std::memcpy(line->words.data(), grad + at, kWords * sizeof(float));
    line->mark.store(static_cast<uint32_t>(launch), std::memory_order_release);
  }
  if (at == floats_) return;
  ++line;
  std::memcpy(line->words.data(), grad + at, static_cast<size_t>(floats_ - at) * sizeof(float));
  line->mark.store(static_cast<uint32_t>(launch), std::memory_order_release);
}

bool WindowPosts::AllThere(int64_t launch) const {
  for (int worker = 0; worker < static_cast<int>(begins_.size()); ++worker) {
    if (worker == self_) continue;
    const Line* const post = Post(worker, launch);
    for (int64_t line = 0; line < lines_; ++line) {
      const uint32_t mark = post[line].mark.load(std::memory_order_acquire);
      if (mark != static_cast<uint32_t>(launch)) return false;
    }
  }
  return Post(self_, launch)[lines_ - 1].mark.load(std::memory_order_relaxed) ==
         static_cast<uint32_t>(launch);
}

WindowPosts::Note WindowPosts::note(int worker, int64_t launch) const {
  Note note;
  std::memcpy(note.data(), Post(worker, launch)->words.data(), sizeof(note));
  return note;
}

void WindowPosts::Read(int worker, int64_t launch, float* grad) const {
  const Line* line = Post(worker, launch);
  const int64_t beside = std::min(floats_, kWords - kNoteWords);
  std::memcpy(grad, line->words.data() + kNoteWords, static_cast<size_t>(beside) * sizeof(float));
  int64_t at = beside;
  for (; at + kWords <= floats_; at += kWords) {
    ++line;
    std::memcpy(grad + at, line->words.data(), kWords * sizeof(float));
  }
  if (at == floats_) return;
  ++line;
  std::memcpy(grad + at, line->words.data(), static_cast<size_t>(floats_ - at) * sizeof(float));
}

void WindowPosts::FetchNext(int64_t launch) const {
  const Line* const next = Post(self_, launch + 1);
  for (int64_t line = 0; line < lines_; ++line) PrefetchToWrite(next + line);
}

}  // namespace gradsync
