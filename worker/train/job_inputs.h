// What a job reads, how much of it, and what model that gives: all of a trainer that needs no peer
// and no device.

#ifndef GRADSYNC_WORKER_TRAIN_JOB_INPUTS_H_
#define GRADSYNC_WORKER_TRAIN_JOB_INPUTS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/data/dataset.h"
#include "worker/data/open_dataset.h"
#include "worker/data/sampler.h"
#include "worker/data/tokens.h"
#include "worker/models/model.h"
#include "worker/models/model_options.h"
#include "worker/train/recipe.h"
#include "worker/train/trainer_options.h"

namespace gradsync {

// One split of what a job trains on: images or tokens, the other null.
struct JobData {
  std::shared_ptr<const ImageDataset> images;
  std::shared_ptr<const TokenDataset> tokens;

  int64_t size() const { return images != nullptr ? images->size() : tokens->size(); }
  // As ImageDataset::identity(): may read, to be asked once.
  DataIdentity identity() const {
    return images != nullptr ? images->identity() : tokens->identity();
  }
};

// Opens what `data` names (OpenDataset(), with `images`, OpenTokens()) as the kind that the model
// named takes. Blocks while it reads. Errors: INVALID_ARGUMENT, naming both flags, where the model
// does not take such data; of an unknown model CreateModel()'s; else those of OpenDataset() and
// OpenTokens().
absl::StatusOr<JobData> OpenJobData(const ModelOptions& model, const std::string& data, Split split,
                                    const DatasetOptions& images = {});

// `model` as it is made for `data`: with as many outputs as that has classes, or tokens in its
// vocabulary, unless it says how many, and for images of its size. Errors: INVALID_ARGUMENT naming
// --classes where it says fewer.
absl::StatusOr<ModelOptions> FitModel(ModelOptions model, const JobData& data);

// What a job reads, and how much of it: all of a trainer that needs no peer and no device.
struct JobInputs {
  // Images, or for a model of tokens these, and the others null; the test splits only if evaluated.
  // With TrainerOptions::evaluate_only there are no steps, and all are the test split.
  std::shared_ptr<const ImageDataset> train;
  std::shared_ptr<const ImageDataset> test;
  std::shared_ptr<const TokenDataset> train_tokens;
  std::shared_ptr<const TokenDataset> test_tokens;
  std::map<std::string, DataIdentity> identities;  // of splits in use: "train", "test"
  std::unique_ptr<RankSampler> sampler;
  Accumulation accumulation;
  int64_t steps = 0;
  int64_t steps_per_epoch = 0;
  RecipeOptions recipe;  // of a job of so many
};

// Checks the options and opens the data. Blocks while it reads. Errors: INVALID_ARGUMENT naming the
// flag, what was expected and what came; those of OpenDataset().
absl::StatusOr<JobInputs> OpenJobInputs(const TrainerOptions& options, int rank, int world_size);

// What of `options` will do nothing in a job of so many steps, though nothing is wrong with it, a
// line each that begins with the flag: an evaluation that is never due, a warm-up that never ends.
// Pure.
std::vector<std::string> NoticesOn(const TrainerOptions& options, const JobInputs& inputs);

// Refuses a job that would come to a batch, or a replica's part of one, of a single image, if a
// BatchNorm of `model` has one value per channel then, of which there is no variance: an epoch's
// last batch has what is left of a rank's share. Only where there would be such a batch it runs the
// model, which must be new, on the CPU and in training mode: forward, once or twice, without a
// graph. The model is as before. Errors: INVALID_ARGUMENT naming --batch_size, what was expected
// and what came.
absl::Status CheckBatchOfOne(const TrainerOptions& options, const JobInputs& inputs, Model& model);

// DescribeModel() of the model that the job would train, on the CPU, for a sample of its data.
// Reads the data and trains nothing. Errors: those of OpenJobData() and CreateModel(); INTERNAL
// when LibTorch throws.
absl::StatusOr<std::string> DescribeJob(const TrainerOptions& options);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_JOB_INPUTS_H_
