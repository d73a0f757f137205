#include "worker/train/describe_job.h"

#include <exception>
#include <memory>

#include "ATen/ops/zeros.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/errors.h"
#include "core/base/status_macros.h"
#include "worker/models/create_model.h"
#include "worker/models/describe_model.h"
#include "worker/train/job_data.h"

namespace gradsync {
namespace {

at::Tensor ExampleOf(const JobData& data) {
  if (data.tokens != nullptr) return at::zeros({1, data.tokens->context()}, at::kLong);
  const ImageShape shape = data.images->shape();
  return at::zeros({1, shape.channels, shape.height, shape.width}, at::kFloat);
}

}  // namespace

absl::StatusOr<std::string> DescribeJob(const TrainerOptions& options) {
  GS_ASSIGN_OR_RETURN(const JobData data,
                      OpenJobData(options.model, options.data, Split::kTrain, options.dataset));
  GS_ASSIGN_OR_RETURN(const ModelOptions fitting, FitModel(options.model, data));
  GS_ASSIGN_OR_RETURN(const std::shared_ptr<Model> model, CreateModel(fitting));
  try {
    return DescribeModel(options.model.name, *model, ExampleOf(data));
  } catch (const std::exception& e) {
    return absl::InternalError(
        absl::StrCat("describing the model: LibTorch: ", FirstLine(e.what())));
  }
}

}  // namespace gradsync
