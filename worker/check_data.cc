#include "worker/check_data.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "core/base/process_resources.h"
#include "core/base/program_main.h"
#include "core/base/status_macros.h"
#include "worker/data/check_samples.h"
#include "worker/train/job_data.h"

namespace gradsync {
namespace {

struct Tally {
  int64_t samples = 0;
  size_t unreadable = 0;
  size_t warnings = 0;
};

void Print(const std::string& line) { std::printf("%s\n", line.c_str()); }

absl::Status CheckSplit(const TrainerOptions& options, Split split, Tally* tally) {
  DatasetOptions dataset = options.dataset;
  dataset.skip_damaged = 0;
  dataset.images.list_irregular_files = true;
  const absl::StatusOr<JobData> data = OpenJobData(options.model, options.data, split, dataset);
  if (split == Split::kTest && absl::IsNotFound(data.status())) {
    Print(absl::StrCat("no test split: ", data.status().message()));
    return absl::OkStatus();
  }
  GS_RETURN_IF_ERROR(data.status());
  tally->samples += data->size();
  if (data->images == nullptr) return absl::OkStatus();  // Tokens are bytes that were mapped.
  for (const std::string& line : data->images->remarks()) Print(line);
  const int threads =
      options.loader_threads > 0 ? options.loader_threads : std::max(1, AvailableCores());
  GS_ASSIGN_OR_RETURN(const SampleReport report, CheckSamples(*data->images, threads));
  for (const std::string& line : report.warnings) {
    PrintNotice("worker", absl::StrCat("read, as Pillow reads it, with a warning: ", line));
  }
  for (const std::string& line : report.unreadable) PrintError("worker", line);
  tally->unreadable += report.unreadable.size();
  tally->warnings += report.warnings.size();
  return absl::OkStatus();
}

}  // namespace

int CheckData(const TrainerOptions& options) {
  Tally tally;
  for (const Split split : {Split::kTrain, Split::kTest}) {
    const absl::Status checked = CheckSplit(options, split, &tally);
    if (checked.ok()) continue;
    PrintError("worker", checked.ToString());
    return 2;
  }
  Print(absl::StrCat("read ", tally.samples, " samples: ", tally.unreadable, " cannot be read, ",
                     tally.warnings, " are read with a warning"));
  return tally.unreadable == 0 ? 0 : 2;
}

}  // namespace gradsync
