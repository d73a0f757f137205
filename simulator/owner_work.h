#ifndef GRADSYNC_SIMULATOR_OWNER_WORK_H_
#define GRADSYNC_SIMULATOR_OWNER_WORK_H_

#include <functional>
#include <utility>
#include <vector>

#include "simulator/event_queue.h"

namespace gradsync {

// Processes that update parameters, each one chunk after another. Not thread-safe; nothing blocks.
class OwnerWork : private EventHandler {
 public:
  // `seconds`: of updating all parameters. `done(chunk)` is told when a chunk has been updated.
  OwnerWork(int owners, double seconds, EventQueue* queue, std::function<void(int)> done)
      : seconds_(seconds), queue_(queue), done_(std::move(done)), idle_from_(owners, 0) {}

  // Told of each update, when it is known; may be null. Seconds.
  using Observer = std::function<void(int owner, int chunk, double begin, double end)>;
  void Observe(Observer observer) { observer_ = std::move(observer); }

  // `share` is the chunk's part of all parameters. At once if there is nothing to do.
  void Update(int owner, int chunk, double share) {
    if (seconds_ == 0) return done_(chunk);
    double& idle_from = idle_from_[owner];
    const double begin = idle_from > queue_->now() ? idle_from : queue_->now();
    idle_from = begin + share * seconds_;
    if (observer_ != nullptr) observer_(owner, chunk, begin, idle_from);
    queue_->At(idle_from, this, chunk);
  }

 private:
  void OnEvent(int64_t tag) override { done_(static_cast<int>(tag)); }

  const double seconds_;
  EventQueue* const queue_;
  const std::function<void(int)> done_;
  std::vector<double> idle_from_;
  Observer observer_;
};

}  // namespace gradsync

#endif  // GRADSYNC_SIMULATOR_OWNER_WORK_H_
