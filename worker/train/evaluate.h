#ifndef GRADSYNC_WORKER_TRAIN_EVALUATE_H_
#define GRADSYNC_WORKER_TRAIN_EVALUATE_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/activity.h"
#include "core/base/deadline.h"
#include "core/group/side_channel.h"
#include "worker/data/dataset.h"
#include "worker/data/loader_threads.h"
#include "worker/data/tokens.h"
#include "worker/models/model.h"
#include "worker/train/training_record.h"

namespace gradsync {

// Which samples a rank evaluates, and how.
struct EvaluationShare {
  int rank = 0;
  int ranks = 1;
  int64_t batch_size = 1;
  // That read and prepare batches, in at most so much memory ahead (PrefetchDepth()).
  LoaderThreads threads;
  int64_t prefetch_bytes = 0;
  // The logits of a batch; undefined where another rank has them, which then alone counts it.
  std::function<absl::StatusOr<at::Tensor>(const at::Tensor& inputs)> logits;
  // DataLoaderOptions::while_waiting.
  std::function<absl::Status(absl::string_view what, absl::Duration reading)> while_waiting =
      nullptr;
  // Asked before each batch; an error, as of a group that has failed meanwhile, ends the evaluation.
  std::function<absl::Status()> check = nullptr;
  // All ranks call `logits` equally often, whatever their shares: one that has no samples left with
  // an undefined tensor, and makes nothing of what it returns.
  bool in_step = false;
  // If not null, a rank whose samples cannot be read tells the others, and it is set where the error that
  // is returned is such a one and all ranks return it. On all ranks or on none; not where `logits` waits
  // for other ranks that have the same samples.
  bool* failed_on_all = nullptr;
  // Each batch counts in it; may be null.
  Activity* activity = nullptr;
};

// Collective. Evaluates `model`, on its device, on every sample of `dataset` exactly once: rank r
// takes samples r, r+n, r+2n, ..., so that no sample is padded in twice. Buffers should have been
// made equal before. Leaves the model in training mode. The result is the same with any number of
// threads.
// Errors: those of the dataset, of the side channel and of own.check; INTERNAL when LibTorch throws;
// ABORTED naming the rank for another rank's.
absl::StatusOr<Evaluation> EvaluateModel(Model& model,
                                         const std::shared_ptr<const ImageDataset>& dataset,
                                         const EvaluationShare& own, SideChannel& side_channel,
                                         Deadline deadline);

// The same for sequences of tokens, where loss and accuracy are those of all positions.
absl::StatusOr<Evaluation> EvaluateModel(Model& model,
                                         const std::shared_ptr<const TokenDataset>& dataset,
                                         const EvaluationShare& own, SideChannel& side_channel,
                                         Deadline deadline);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_EVALUATE_H_
