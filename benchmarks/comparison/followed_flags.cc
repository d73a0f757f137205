#include "benchmarks/comparison/followed_flags.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "benchmarks/options/flag_checks.h"
#include "benchmarks/options/placed_job.h"
#include "core/base/errors.h"
#include "core/base/status_macros.h"
#include "core/plan/kinds.h"

namespace gradsync {
namespace {

constexpr char kRecorded[] = "gpt_width gpt_layers gpt_heads gpt_context";

// A step takes as long with them and sends as much, but for a percent.
constexpr char kWithoutEffect[] =
    "momentum nesterov weight_decay no_weight_decay label_smoothing lr_scaling lr_reference_batch "
    "schedule lr_milestones lr_gamma lr_final lr_power lr_warmup lr_warmup_steps lr_warmup_start "
    "allow_nonfinite sampler init_from init_key init_skip checkpoint checkpoint_every "
    "checkpoint_keep checkpoint_best evaluate evaluate_every tensorboard trace trace_steps "
    "trace_bandwidth trace_placement "
    "metrics_port metrics_host metrics_port_file log_format reflection failure_timeout run_id "
    "secret_file insecure";

bool IsOneOf(absl::string_view name, absl::string_view names) {
  const std::vector<std::string> all = absl::StrSplit(names, ' ');
  return Contains(all, name);
}

}  // namespace

void FollowedFlags::ApplyTo(PredictedJob* job) const {
  job->bucket_bytes = bucket_bytes;
  job->first_bucket_bytes = first_bucket_bytes;
  job->chunk_bytes = ChunkBytesOf(job->placed, chunk_bytes);
  job->placed.spec.connections = connections;
}

absl::StatusOr<FollowedFlags> FollowFlags(const CompareOptions& options) {
  FollowedFlags followed;
  if (options.compute.precision != Precision::kFp32) {
    followed.recorded.push_back(
        absl::StrCat("--precision=", PrecisionName(options.compute.precision)));
  }
  if (options.compute.channels_last) followed.recorded.push_back("--channels_last");
  for (const std::string& flag : options.worker_flags) {
    const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(
        absl::StripPrefix(absl::StripPrefix(flag, "-"), "-"), absl::MaxSplits('=', 1));
    const auto [name, value] = parts;
    if (name == "bucket_bytes") {
      GS_ASSIGN_OR_RETURN(followed.bucket_bytes, ParseSize(name, value));
    } else if (name == "first_bucket_bytes") {
      GS_ASSIGN_OR_RETURN(followed.first_bucket_bytes, ParseSize(name, value));
    } else if (name == "chunk_bytes") {
      GS_ASSIGN_OR_RETURN(followed.chunk_bytes, ParseChunkBytes(value));
    } else if (name == "connections") {
      if (!absl::SimpleAtoi(value, &followed.connections)) {
        return FlagError(name, "a number", value);
      }
    } else if (IsOneOf(name, kRecorded)) {
      followed.recorded.push_back(flag);
    } else if (!IsOneOf(name, kWithoutEffect)) {
      return absl::FailedPreconditionError(
          absl::StrCat("of steps of workers with ", flag, " nothing is known"));
    }
  }
  return followed;
}

}  // namespace gradsync
