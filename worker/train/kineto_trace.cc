#include "worker/train/kineto_trace.h"

#include <sys/stat.h>

#include <exception>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "core/base/deadline.h"
#include "core/base/errors.h"
#include "core/base/status_macros.h"
#include "core/base/write_file.h"
#include "torch/csrc/autograd/profiler_kineto.h"

namespace gradsync {
namespace {

using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

// All of a process's recordings must ask for the same: the first decides whether Kineto knows of
// GPUs at all.
std::set<ActivityType> Activities(const GpuApi* gpu) {
  std::set<ActivityType> activities = {ActivityType::CPU};
  if (gpu != nullptr && gpu->is_cuda()) activities.insert(ActivityType::CUDA);
  return activities;
}

std::string FirstLine(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

bool IsWritten(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && info.st_size > 0;
}

}  // namespace

absl::StatusOr<TraceOptions> ParseTrace(absl::string_view path, absl::string_view steps, int rank) {
  TraceOptions options;
  if (path.empty()) return options;
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(steps, absl::MaxSplits(':', 1));
  if (!absl::SimpleAtoi(parts.first, &options.first_step) ||
      !absl::SimpleAtoi(parts.second, &options.steps) || options.first_step < 1 ||
      options.steps < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--trace_steps: expected FIRST:COUNT, both at least 1, found \"", steps, "\""));
  }
  options.path = absl::StrReplaceAll(path, {{"{rank}", absl::StrCat(rank)}});
  return options;
}

absl::StatusOr<std::unique_ptr<KinetoTrace>> KinetoTrace::Create(TraceOptions options,
                                                                 std::shared_ptr<GpuApi> gpu,
                                                                 absl::Duration timeout) {
  std::unique_ptr<KinetoTrace> trace(new KinetoTrace(std::move(options), std::move(gpu), timeout));
  if (trace->gpu_ != nullptr) {
    GS_ASSIGN_OR_RETURN(trace->idle_, ScopedEvent::Create(trace->gpu_));
  }
  // What is there is removed, and would be another's pipe or device.
  struct stat found;
  if (stat(trace->options_.path.c_str(), &found) == 0 && !S_ISREG(found.st_mode)) {
    return FlagError("trace", "an ordinary file, as LibTorch's traces are, or none yet",
                     trace->options_.path);
  }
  // Kineto would log why it cannot write, and go on.
  GS_RETURN_IF_ERROR(CheckWritable("trace", trace->options_.path));
  // No function of LibTorch's says whether it has Kineto; one that has not finds out when it saves.
  absl::Status tried = trace->Start();
  if (tried.ok()) tried = trace->StopAndWrite();
  std::remove(trace->options_.path.c_str());
  if (!tried.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--trace: expected a LibTorch with Kineto, as --config=cuda has, found: ",
                     tried.message()));
  }
  return trace;
}

// LibTorch calls back for each operation until the profiler is off.
KinetoTrace::~KinetoTrace() {
  if (!recording_) return;
  try {
    torch::autograd::profiler::disableProfiler();
  } catch (const std::exception&) {
  }
}

absl::Status KinetoTrace::BeforeStep(int64_t step) {
  if (step != options_.first_step) return absl::OkStatus();
  GS_RETURN_IF_ERROR(AwaitIdleGpu());
  return Start();
}

absl::Status KinetoTrace::AfterStep(int64_t step) {
  if (!recording_ || step != options_.first_step + options_.steps - 1) return absl::OkStatus();
  GS_RETURN_IF_ERROR(AwaitIdleGpu());
  return StopAndWrite();
}

absl::Status KinetoTrace::Start() {
  const ProfilerConfig config(ProfilerState::KINETO);
  const std::set<ActivityType> activities = Activities(gpu_.get());
  try {
    torch::autograd::profiler::prepareProfiler(config, activities);
    torch::autograd::profiler::enableProfiler(config, activities);
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("starting a trace: LibTorch: ", FirstLine(e)));
  }
  recording_ = true;
  return absl::OkStatus();
}

absl::Status KinetoTrace::StopAndWrite() {
  recording_ = false;
  std::remove(options_.path.c_str());
  try {
    torch::autograd::profiler::disableProfiler()->save(options_.path);
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("writing a trace: LibTorch: ", FirstLine(e)));
  }
  if (IsWritten(options_.path)) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("trace ", options_.path, " was not written"));
}

// What the compute stream waits for, of other streams, is done with it.
absl::Status KinetoTrace::AwaitIdleGpu() {
  if (gpu_ == nullptr) return absl::OkStatus();
  const Deadline deadline = Deadline::In(timeout_);
  GS_RETURN_IF_ERROR(gpu_->Record(idle_.get(), gpu_->ComputeStream()));
  while (true) {
    GS_ASSIGN_OR_RETURN(const bool done, gpu_->Done(idle_.get()));
    if (done) return absl::OkStatus();
    if (deadline.passed()) {
      return absl::DeadlineExceededError(absl::StrCat(
          "trace: the GPU has not done its steps within ", absl::FormatDuration(timeout_)));
    }
    absl::SleepFor(absl::Milliseconds(1));
  }
}

}  // namespace gradsync
