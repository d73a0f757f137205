#include "worker/offload_flags.h"

#include <string>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/flag_error.h"
#include "plan/job_spec.h"
#include "plan/update_site.h"

ABSL_FLAG(std::string, offload, "none",
          "with a GPU, what is kept and done on the host instead: none; optimizer: its state and "
          "the update, by owners (as --update=owner), over a link of the host; parameters: is not "
          "there yet");

namespace gradsync {
namespace {

constexpr char kOptimizer[] = "optimizer";

absl::Status Refuse(absl::string_view expected, absl::string_view found) {
  return FlagError("offload", expected, found);
}

}  // namespace

absl::Status OffloadFromFlags(JobOptions* job) {
  const std::string offload = absl::GetFlag(FLAGS_offload);
  if (offload == "none") return absl::OkStatus();
  if (offload == "parameters") {
    return Refuse(
        "none or optimizer (parameters on the host need --zero=3 with a GPU, to which buckets are "
        "not gathered yet)",
        offload);
  }
  if (offload != kOptimizer) return Refuse("none, optimizer or parameters", offload);
  if (job->join.device.device == "cpu") {
    return Refuse("none with --device=cpu, where all is on the host", offload);
  }
  JobSpec& spec = job->join.sync.job;
  if (BetweenGpus(spec.link)) {
    return Refuse(absl::StrCat("none with --link=", LinkName(spec.link),
                               ", whose owners update on GPUs (or --link=grpc or shm)"),
                  offload);
  }
  if (spec.link == Link::kGloo) {
    return Refuse("none with --link=gloo, which has no reduce-scatter, and so no owners", offload);
  }
  spec.update = UpdateSite::kOwner;
  job->offload_optimizer = true;
  return absl::OkStatus();
}

absl::Status CheckOffload(const JobOptions& job) {
  if (!job.offload_optimizer || job.join.sync.gpu != nullptr) return absl::OkStatus();
  return Refuse(absl::StrCat("none where --device=", job.join.device.device, " finds no GPU"),
                kOptimizer);
}

}  // namespace gradsync
