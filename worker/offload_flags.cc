#include "worker/offload_flags.h"

#include <string>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/errors.h"
#include "core/base/status_macros.h"
#include "core/plan/job_spec.h"
#include "core/plan/kinds.h"
#include "worker/sharding_flags.h"

ABSL_DECLARE_FLAG(int, zero);

ABSL_FLAG(
    std::string, offload, "none",
    "with a GPU, what is kept and done on the host instead, by owners over a link of the host: "
    "none; optimizer: its state and the update (as --update=owner); parameters: these too, "
    "which a worker gathers block by block (as --zero=3)");

namespace gradsync {
namespace {

constexpr char kNone[] = "none";
constexpr char kOptimizer[] = "optimizer";
constexpr char kParameters[] = "parameters";

absl::Status Refuse(absl::string_view expected, absl::string_view found) {
  return FlagError("offload", expected, found);
}

// Whether there can be owners on the host for what is on a GPU.
absl::Status CheckOwners(const std::string& offload, const JobOptions& job) {
  if (job.join.device.device == "cpu") {
    return Refuse("none with --device=cpu, where all is on the host", offload);
  }
  const Link link = job.join.sync.job.link;
  if (BetweenGpus(link)) {
    return Refuse(absl::StrCat("none with --link=", LinkName(link),
                               ", whose owners update on GPUs (or --link=grpc or shm)"),
                  offload);
  }
  if (link == Link::kGloo) {
    return Refuse("none with --link=gloo, which has no reduce-scatter, and so no owners", offload);
  }
  return absl::OkStatus();
}

absl::Status OffloadParameters(JobOptions* job) {
  const int zero = absl::GetFlag(FLAGS_zero);
  if (zero == 1 || zero == 2) {
    return FlagError("zero", "3 or nothing with --offload=parameters", absl::StrCat(zero));
  }
  const absl::Status sharded = ShardJob(3, job);
  if (sharded.ok()) return sharded;
  return Refuse(absl::StrCat("none or optimizer where --zero=3, which parameters on the host are, "
                             "is refused (",
                             sharded.message(), ")"),
                kParameters);
}

}  // namespace

absl::Status OffloadFromFlags(JobOptions* job) {
  const std::string offload = absl::GetFlag(FLAGS_offload);
  if (offload == kNone) return absl::OkStatus();
  if (offload != kOptimizer && offload != kParameters) {
    return Refuse("none, optimizer or parameters", offload);
  }
  GS_RETURN_IF_ERROR(CheckOwners(offload, *job));
  if (offload == kParameters) GS_RETURN_IF_ERROR(OffloadParameters(job));
  job->join.sync.job.update = UpdateSite::kOwner;
  job->offload = offload;
  return absl::OkStatus();
}

absl::Status CheckOffload(const JobOptions& job) {
  if (job.offload.empty() || job.join.sync.gpu != nullptr) return absl::OkStatus();
  return Refuse(absl::StrCat("none where --device=", job.join.device.device, " finds no GPU"),
                job.offload);
}

}  // namespace gradsync
