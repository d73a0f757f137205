#ifndef GRADSYNC_WORKER_MODELS_STATISTICS_TURNS_H_
#define GRADSYNC_WORKER_MODELS_STATISTICS_TURNS_H_

#include <vector>

#include "absl/base/thread_annotations.h"
#include "core/base/mutex.h"

namespace gradsync {

// Who updates running statistics when: replicas of one model, each on a thread of its own, share
// the statistics of each BatchNorm2d, and take turns at a layer in the order of their numbers. So
// the statistics have the bits of one model that goes through the replicas' parts one after the
// other, since the same operation is applied to them in the same order. A replica waits at a layer
// until those with lower numbers have been there; replicas that are equally fast are one layer's
// normalisation apart.
//
// Thread-safe. Await() waits for threads of this process alone.
class StatisticsTurns {
 public:
  // Between Begin() and End() layers take turns, and at other times none waits. Not to be called
  // while a replica computes.
  void Begin();
  void End();

  // Blocks until it is the turn of `replica` at `layer`. Throws c10::Error after Abandon(), and
  // where the replica has been at the layer before, which is to be called once in a step.
  void Await(int layer, int replica);

  // The replica whose turn it was is done at the layer.
  void Pass(int layer);

  // A replica will not come any more: whoever waits, or would, throws. Until the next Begin().
  void Abandon();

 private:
  Mutex mutex_;
  CondVar changed_;
  bool active_ ABSL_GUARDED_BY(mutex_) = false;
  bool abandoned_ ABSL_GUARDED_BY(mutex_) = false;
  // By layer, as many as have been awaited: the replica whose turn it is.
  std::vector<int> next_ ABSL_GUARDED_BY(mutex_);
};

// A layer's place among those turns.
struct StatisticsTurn {
  StatisticsTurns* turns = nullptr;  // null: nobody shares the statistics
  int layer = 0;
  int replica = 0;
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_MODELS_STATISTICS_TURNS_H_
