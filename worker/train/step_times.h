// Where a step's time went, and what passed between ranks in it.

#ifndef GRADSYNC_WORKER_TRAIN_STEP_TIMES_H_
#define GRADSYNC_WORKER_TRAIN_STEP_TIMES_H_

#include <cstdint>
#include <vector>

#include "absl/time/time.h"

namespace gradsync {

// Tensors that pass between ranks in forward and backward; gradients and parameters are not these.
struct ShareTraffic {
  absl::Duration waited;  // for other ranks' tensors
  int64_t tx_bytes = 0;
  int64_t rx_bytes = 0;
};

inline ShareTraffic operator-(const ShareTraffic& a, const ShareTraffic& b) {
  return {a.waited - b.waited, a.tx_bytes - b.tx_bytes, a.rx_bytes - b.rx_bytes};
}

// What a step with replicas in one process took beside what it computes (data_parallel_step.h):
// parts of `forward` and `backward` below. All zero without replicas.
struct ReplicaTimes {
  absl::Duration replicate;
  absl::Duration scatter;
  absl::Duration apply;  // forward and backward, until the last replica is done
  absl::Duration gather;
  absl::Duration reduce;
  absl::Duration busy_first;   // in apply, replica 0 alone
  absl::Duration busy_others;  // likewise, the sum of all others
  int64_t tx_bytes = 0;        // from device 0 to others, and back
  int64_t rx_bytes = 0;

  // Device 0's share of what all devices were busy for; a fair one is 1 / replicas. 0 without.
  double FirstShare() const {
    const absl::Duration first = replicate + scatter + gather + reduce + busy_first;
    const absl::Duration all = first + busy_others;
    return all > absl::ZeroDuration() ? absl::FDivDuration(first, all) : 0;
  }

  ReplicaTimes& operator+=(const ReplicaTimes& more) {
    replicate += more.replicate;
    scatter += more.scatter;
    apply += more.apply;
    gather += more.gather;
    reduce += more.reduce;
    busy_first += more.busy_first;
    busy_others += more.busy_others;
    tx_bytes += more.tx_bytes;
    rx_bytes += more.rx_bytes;
    return *this;
  }
};

// Where one step's time went, in order; the parts add up to `total`.
//
// On a GPU `total` is the device's: from the end of the step before to the end of this one, by
// events on the compute stream (training_clock.h). `exposed` is the device's too: how long its
// compute stream stood still for this step's buckets. Data, forward and update are what the host
// took to queue them, while the device was some steps behind, and `backward` is the rest of
// `total`, zero where the host took longer than that.
struct StepTimes {
  absl::Duration total;
  absl::Duration data;      // waiting for the batch
  absl::Duration forward;   // model and loss
  absl::Duration backward;  // with the launches of buckets that become ready in it
  absl::Duration exposed;   // waiting for buckets after backward: communication that nothing hid
  absl::Duration update;    // the optimizer, when the worker runs it
  ReplicaTimes replicas;
  // Forward and backward of each stage of this process (local_pipeline.h), whose `forward`,
  // `backward` and `exposed` are those of the first, its waits for others among them; else empty.
  std::vector<absl::Duration> stages;
};

// By stage of this process: its share of all steps' time in forward and backward, 0 to 1; empty
// without stages.
inline std::vector<double> StageBusyShares(const std::vector<StepTimes>& steps) {
  absl::Duration total;
  std::vector<absl::Duration> busy(steps.empty() ? 0 : steps[0].stages.size());
  for (const StepTimes& step : steps) {
    total += step.total;
    for (size_t s = 0; s < busy.size(); ++s) busy[s] += step.stages[s];
  }
  std::vector<double> shares;
  for (const absl::Duration of_stage : busy) {
    shares.push_back(total > absl::ZeroDuration() ? absl::FDivDuration(of_stage, total) : 0);
  }
  return shares;
}

// The part of their time, 0 to 1, that steps waited for their batches. On a GPU, where the host
// runs ahead of the device, it may have waited while the device did not. Pure.
inline double DataWaitShare(const std::vector<StepTimes>& steps) {
  absl::Duration data, total;
  for (const StepTimes& times : steps) {
    data += times.data;
    total += times.total;
  }
  return total > absl::ZeroDuration() ? absl::FDivDuration(data, total) : 0;
}

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_STEP_TIMES_H_
