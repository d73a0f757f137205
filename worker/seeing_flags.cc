#include "worker/seeing_flags.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "core/base/byte_sizes.h"
#include "core/base/errors.h"
#include "core/base/program_main.h"
#include "core/base/status_macros.h"
#include "core/plan/kinds.h"
#include "worker/train/kineto_trace.h"

ABSL_FLAG(std::string, trace, "",
          "file for a trace of some steps of all workers and servers on one clock, which rank 0 "
          "writes and ui.perfetto.dev opens (docs/traces.md). A name that ends in .json, with "
          "{rank} for the rank, is for each worker's own trace of LibTorch and CUDA instead, which "
          "tools/trace_check reads; needs --config=cuda");
ABSL_FLAG(std::string, trace_steps, "11:3",
          "steps that --trace records: FIRST-LAST, or FIRST:COUNT; the first step is 1");
ABSL_FLAG(std::string, trace_bandwidth, "",
          "what each host's interface carries, such as 400mbit: the trace also shows the step that "
          "the simulator predicts for such links; empty: it does not");
ABSL_FLAG(std::string, trace_placement, "dedicated",
          "with --trace_bandwidth: where the simulator is told that servers are, dedicated or "
          "colocated (beside the workers)");
ABSL_FLAG(std::string, tensorboard, "",
          "folder for an event file of rank 0's scalars by step, for TensorBoard; empty: none");

namespace gradsync {
namespace {

struct Window {
  int64_t first = 0;
  int64_t last = 0;
};

absl::StatusOr<Window> WindowFromFlag() {
  const std::string text = absl::GetFlag(FLAGS_trace_steps);
  const bool counts = absl::StrContains(text, ':');
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits(counts ? ':' : '-', 1));
  Window window;
  int64_t second = 0;
  const bool numbers = absl::SimpleAtoi(parts.first, &window.first) &&
                       absl::SimpleAtoi(parts.second, &second) && window.first >= 1;
  if (!numbers || second < (counts ? 1 : window.first)) {
    return FlagError("trace_steps",
                     "FIRST-LAST, from 1 and not falling, or FIRST:COUNT, both at least 1", text);
  }
  window.last = counts ? window.first + second - 1 : second;
  return window;
}

absl::StatusOr<StepTraceOptions> StepTraceFromFlags(const Window& window) {
  StepTraceOptions options;
  options.path = UserPath(absl::GetFlag(FLAGS_trace));
  options.first_step = window.first;
  options.last_step = window.last;
  const std::string bandwidth = absl::GetFlag(FLAGS_trace_bandwidth);
  if (!bandwidth.empty()) {
    const absl::StatusOr<double> rate = ParseBandwidth(bandwidth);
    if (!rate.ok()) return FlagError("trace_bandwidth", "a rate such as 400mbit", bandwidth);
    options.bytes_per_second = *rate;
  }
  const std::string placement = absl::GetFlag(FLAGS_trace_placement);
  if (placement != "dedicated" && placement != "colocated") {
    return FlagError("trace_placement", "dedicated or colocated", placement);
  }
  options.placement = placement == "colocated" ? Placement::kColocated : Placement::kDedicated;
  return options;
}

}  // namespace

bool TracesEachRank() {
  const std::string path = absl::GetFlag(FLAGS_trace);
  return path.empty() || absl::EndsWith(path, ".json");
}

void AddTraceFlags(FlagTexts* flags) {
  const bool together = !TracesEachRank();
  (*flags)["trace"] = together ? absl::GetFlag(FLAGS_trace) : "";
  (*flags)["trace_steps"] = together ? absl::GetFlag(FLAGS_trace_steps) : "";
}

absl::StatusOr<SeeingOptions> SeeingFromFlags(int rank) {
  SeeingOptions options;
  options.tensorboard = UserPath(absl::GetFlag(FLAGS_tensorboard));
  if (absl::GetFlag(FLAGS_trace).empty()) return options;
  GS_ASSIGN_OR_RETURN(const Window window, WindowFromFlag());
  if (!TracesEachRank()) {
    GS_ASSIGN_OR_RETURN(options.trace, StepTraceFromFlags(window));
    return options;
  }
  GS_ASSIGN_OR_RETURN(
      options.kineto,
      ParseTrace(UserPath(absl::GetFlag(FLAGS_trace)),
                 absl::StrCat(window.first, ":", window.last - window.first + 1), rank));
  return options;
}

}  // namespace gradsync
