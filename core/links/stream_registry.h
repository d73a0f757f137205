#ifndef GRADSYNC_CORE_LINKS_STREAM_REGISTRY_H_
#define GRADSYNC_CORE_LINKS_STREAM_REGISTRY_H_

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "core/base/mutex.h"
#include "core/links/frame_stream.h"

namespace gradsync {

// The open streams of a listener, which may go before the last reference to a stream. Thread-safe.
class StreamRegistry {
 public:
  // False when the listener is closing.
  bool Add(const std::shared_ptr<FrameStream>& stream) {
    MutexLock lock(&mutex_);
    if (closing_) return false;
    ++open_;
    streams_.erase(std::remove_if(streams_.begin(), streams_.end(),
                                  [](const auto& stream) { return stream.expired(); }),
                   streams_.end());
    streams_.push_back(stream);
    return true;
  }

  // The stream has closed.
  void Remove() {
    MutexLock lock(&mutex_);
    --open_;
    changed_.SignalAll();
  }

  // Must not run on a thread of the link.
  void CancelAllAndWait(const absl::Status& reason) {
    std::vector<std::weak_ptr<FrameStream>> streams;
    {
      MutexLock lock(&mutex_);
      closing_ = true;
      streams.swap(streams_);
    }
    for (const auto& weak : streams) {
      if (auto stream = weak.lock()) stream->Cancel(reason);
    }
    MutexLock lock(&mutex_);
    while (open_ > 0) changed_.Wait(&mutex_);
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  int open_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::weak_ptr<FrameStream>> streams_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_LINKS_STREAM_REGISTRY_H_
