#ifndef GRADSYNC_WORKER_TRAIN_JOB_DATA_H_
#define GRADSYNC_WORKER_TRAIN_JOB_DATA_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/data/dataset.h"
#include "worker/data/open_dataset.h"
#include "worker/data/tokens.h"
#include "worker/models/model_options.h"

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

// Opens what `data` names (OpenDataset(), with `images`, OpenTokens()) as the kind that the model named takes.
// Blocks while it reads. Errors: INVALID_ARGUMENT, naming both flags, where the model does not take
// such data; of an unknown model CreateModel()'s; else those of OpenDataset() and OpenTokens().
absl::StatusOr<JobData> OpenJobData(const ModelOptions& model, const std::string& data, Split split,
                                    const DatasetOptions& images = {});

// `model` as it is made for `data`: with as many outputs as that has classes, or tokens in its
// vocabulary, unless it says how many, and for images of its size. Errors: INVALID_ARGUMENT naming
// --classes where it says fewer.
absl::StatusOr<ModelOptions> FitModel(ModelOptions model, const JobData& data);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_JOB_DATA_H_
