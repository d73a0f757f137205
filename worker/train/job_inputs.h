#ifndef GRADSYNC_WORKER_TRAIN_JOB_INPUTS_H_
#define GRADSYNC_WORKER_TRAIN_JOB_INPUTS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/dataset.h"
#include "worker/data/sampler.h"
#include "worker/data/tokens.h"
#include "worker/train/accumulation.h"
#include "worker/train/recipe.h"
#include "worker/train/trainer_options.h"

namespace gradsync {

// What a job reads, and how much of it: all of a trainer that needs no peer and no device.
struct JobInputs {
  // Images, or for a model of tokens these, and the others null; the test splits only if evaluated.
  // With TrainerOptions::evaluate_only there are no steps, and all are the test split.
  std::shared_ptr<const ImageDataset> train;
  std::shared_ptr<const ImageDataset> test;
  std::shared_ptr<const TokenDataset> train_tokens;
  std::shared_ptr<const TokenDataset> test_tokens;
  std::map<std::string, DataIdentity> identities;  // of splits in use: "train", "test"
  std::unique_ptr<DistributedSampler> sampler;
  Accumulation accumulation;
  int64_t steps = 0;
  int64_t steps_per_epoch = 0;
  RecipeOptions recipe;  // of a job of so many
};

// Checks the options and opens the data. Blocks while it reads. Errors: INVALID_ARGUMENT naming the
// flag, what was expected and what came; those of OpenDataset().
absl::StatusOr<JobInputs> OpenJobInputs(const TrainerOptions& options, int rank, int world_size);

// What of `options` will do nothing in a job of so many steps, though nothing is wrong with it, a line
// each that begins with the flag: an evaluation that is never due, a warm-up that never ends. Pure.
std::vector<std::string> NoticesOn(const TrainerOptions& options, const JobInputs& inputs);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_JOB_INPUTS_H_
