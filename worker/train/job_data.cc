#include "worker/train/job_data.h"

#include "absl/strings/str_cat.h"
#include "core/base/errors.h"
#include "core/base/status_macros.h"
#include "worker/data/open_dataset.h"
#include "worker/data/open_tokens.h"
#include "worker/models/create_model.h"
#include "worker/models/model_table.h"

namespace gradsync {

absl::StatusOr<JobData> OpenJobData(const ModelOptions& model, const std::string& data, Split split,
                                    const DatasetOptions& images) {
  JobData opened;
  const ModelEntry* const entry = FindModel(model.name);
  // An unknown model is CreateModel()'s to name.
  if (entry == nullptr) return CreateModel(model).status();
  const bool tokens = entry->input == InputKind::kTokens;
  if (!tokens && IsText(data)) {
    return FlagError("data",
                     absl::StrCat("images with --model=", model.name, " (text is for --model=gpt)"),
                     data);
  }
  if (tokens && !IsText(data) && data != "synthetic") {
    return FlagError("data", absl::StrCat("text:FILE or synthetic with --model=", model.name),
                     data);
  }
  if (tokens) {
    GS_ASSIGN_OR_RETURN(opened.tokens, OpenTokens(data, split, model.gpt_context));
  } else {
    GS_ASSIGN_OR_RETURN(opened.images, OpenDataset(data, split, images));
  }
  return opened;
}

absl::StatusOr<ModelOptions> FitModel(ModelOptions model, const JobData& data) {
  const int64_t needed =
      data.tokens != nullptr ? data.tokens->vocabulary() : int64_t{data.images->classes()};
  if (model.classes == 0) model.classes = needed;
  if (model.classes < needed) {
    return FlagError("classes",
                     absl::StrCat("at least ", needed, ", as many as the data has, or 0"),
                     absl::StrCat(model.classes));
  }
  if (data.images != nullptr) model.image_size = data.images->shape().height;
  return model;
}

}  // namespace gradsync
