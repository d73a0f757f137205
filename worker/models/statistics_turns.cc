#include "worker/models/statistics_turns.h"

#include <algorithm>

#include "c10/util/Exception.h"

namespace gradsync {

void StatisticsTurns::Begin() {
  MutexLock lock(&mutex_);
  active_ = true;
  abandoned_ = false;
  std::fill(next_.begin(), next_.end(), 0);
}

void StatisticsTurns::End() {
  MutexLock lock(&mutex_);
  active_ = false;
}

void StatisticsTurns::Await(int layer, int replica) {
  MutexLock lock(&mutex_);
  if (!active_) return;
  if (layer >= static_cast<int>(next_.size())) next_.resize(layer + 1, 0);
  while (!abandoned_ && next_[layer] < replica) changed_.Wait(&mutex_);
  TORCH_CHECK(!abandoned_, "running statistics: another replica failed");
  TORCH_CHECK(next_[layer] == replica, "running statistics: expected replica ", next_[layer],
              " at layer ", layer, ", found ", replica, ", which has been there in this step");
}

void StatisticsTurns::Pass(int layer) {
  MutexLock lock(&mutex_);
  if (!active_) return;
  ++next_[layer];
  changed_.SignalAll();
}

void StatisticsTurns::Abandon() {
  MutexLock lock(&mutex_);
  abandoned_ = true;
  changed_.SignalAll();
}

}  // namespace gradsync
