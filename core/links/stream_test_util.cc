#include "core/links/stream_test_util.h"

#include "core/base/deadline.h"

namespace gradsync {
namespace {

Deadline Patience() { return Deadline::In(absl::Minutes(1)); }

}  // namespace

std::string Flatten(const Payload& payload) {
  std::string flat;
  flat.reserve(payload.size());
  for (absl::Span<const char> part : payload.parts) flat.append(part.data(), part.size());
  return flat;
}

std::string Pattern(size_t bytes, uint32_t seed) {
  std::string pattern(bytes, '\0');
  uint32_t x = seed * 2654435761u + 1;
  for (char& c : pattern) {
    x = x * 1664525u + 1013904223u;
    c = static_cast<char>(x >> 24);
  }
  return pattern;
}

OutgoingFrame LoanBook::Lend(absl::string_view payload, uint32_t slot, bool urgent) {
  OutgoingFrame frame;
  frame.header.set_kind(proto::FrameHeader::PUSH);
  frame.header.set_slot(slot);
  frame.payload = payload;
  frame.urgent = urgent;
  {
    MutexLock lock(&state_->mutex);
    ++state_->out;
  }
  auto came_back = std::make_shared<std::atomic<bool>>(false);
  frame.released = [state = state_, came_back] {
    MutexLock lock(&state->mutex);
    ++state->back;
    if (came_back->exchange(true)) state->twice = true;
    state->changed.SignalAll();
  };
  return frame;
}

bool LoanBook::AwaitAllBack() {
  const Deadline deadline = Patience();
  MutexLock lock(&state_->mutex);
  while (state_->back < state_->out) {
    if (state_->changed.WaitWithDeadline(&state_->mutex, deadline)) return false;
  }
  return !state_->twice && state_->back == state_->out;
}

int LoanBook::out() const {
  MutexLock lock(&state_->mutex);
  return state_->out;
}

int LoanBook::back() const {
  MutexLock lock(&state_->mutex);
  return state_->back;
}

bool LoanBook::came_back_twice() const {
  MutexLock lock(&state_->mutex);
  return state_->twice;
}

void RecordingSink::OnFrame(const proto::FrameHeader& header, Payload payload) {
  if (calls_inside_.fetch_add(1) != 0 || closed()) ++misplaced_calls_;
  {
    std::string flat = Flatten(payload);
    MutexLock lock(&mutex_);
    heard_.push_back({header, std::move(flat)});
    if (keep_owners_) owners_.push_back(std::move(payload.owner));
    changed_.SignalAll();
  }
  if (on_frame_) on_frame_();
  calls_inside_.fetch_sub(1);
}

void RecordingSink::OnClosed(absl::Status status) {
  if (calls_inside_.fetch_add(1) != 0 || closed()) ++misplaced_calls_;
  {
    MutexLock lock(&mutex_);
    closed_ = std::move(status);
    changed_.SignalAll();
  }
  calls_inside_.fetch_sub(1);
}

bool RecordingSink::AwaitFrames(size_t count) {
  const Deadline deadline = Patience();
  MutexLock lock(&mutex_);
  while (heard_.size() < count) {
    if (changed_.WaitWithDeadline(&mutex_, deadline)) return false;
  }
  return true;
}

absl::Status RecordingSink::AwaitClosed() {
  const Deadline deadline = Patience();
  MutexLock lock(&mutex_);
  while (!closed_) {
    if (changed_.WaitWithDeadline(&mutex_, deadline)) {
      return absl::DeadlineExceededError("OnClosed() was not called within a minute");
    }
  }
  return *closed_;
}

std::vector<RecordingSink::Heard> RecordingSink::heard() const {
  MutexLock lock(&mutex_);
  return heard_;
}

bool RecordingSink::closed() const {
  MutexLock lock(&mutex_);
  return closed_.has_value();
}

void RecordingSink::DropOwners() {
  std::vector<std::shared_ptr<const void>> owners;
  MutexLock lock(&mutex_);
  owners.swap(owners_);
}

StreamAcceptor Host::acceptor() {
  return [state = state_](std::shared_ptr<FrameStream> stream) -> std::shared_ptr<FrameSink> {
    std::shared_ptr<RecordingSink> sink = state->new_sink();
    MutexLock lock(&state->mutex);
    state->accepted.emplace_back(std::move(stream), sink);
    state->changed.SignalAll();
    return sink;
  };
}

std::vector<std::pair<std::shared_ptr<FrameStream>, std::shared_ptr<RecordingSink>>> Host::Await(
    size_t count) {
  const Deadline deadline = Patience();
  MutexLock lock(&state_->mutex);
  while (state_->accepted.size() < count) {
    if (state_->changed.WaitWithDeadline(&state_->mutex, deadline)) break;
  }
  return state_->accepted;
}

}  // namespace gradsync
