#include "worker/gather_trace.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/base/trace_recorder.h"
#include "core/group/process_trace.h"

namespace gradsync {
namespace {

constexpr int kQuestions = 8;

std::string ClockKey(const WorkerGroup& group, int rank, int question, const char* what) {
  return group.Key(absl::StrCat("trace/clock/", rank, "/", question, "/", what));
}

// Rank 0's part.
absl::Status TellTime(const WorkerGroup& group, int rank, Deadline deadline) {
  for (int i = 0; i < kQuestions; ++i) {
    GS_RETURN_IF_ERROR(group.store->Get(ClockKey(group, rank, i, "asked"), deadline).status());
    GS_RETURN_IF_ERROR(
        group.store->Set(ClockKey(group, rank, i, "answer"), absl::StrCat(ClockNow()), deadline));
  }
  return absl::OkStatus();
}

absl::Status AskTime(const WorkerGroup& group, proto::ProcessTrace* trace, Deadline deadline) {
  int64_t best = std::numeric_limits<int64_t>::max();
  for (int i = 0; i < kQuestions; ++i) {
    const int64_t asked = ClockNow();
    GS_RETURN_IF_ERROR(group.store->Set(ClockKey(group, group.rank, i, "asked"), "", deadline));
    GS_ASSIGN_OR_RETURN(const std::string answer,
                        group.store->Get(ClockKey(group, group.rank, i, "answer"), deadline));
    const int64_t took = ClockNow() - asked;
    int64_t rank0 = 0;
    if (!absl::SimpleAtoi(answer, &rank0)) {
      return absl::DataLossError(absl::StrCat("rank 0's clock: expected a number, found ", answer));
    }
    if (took >= best) continue;
    best = took;
    trace->set_error_ns((took + 1) / 2);
    trace->set_offset_ns(rank0 - asked - took / 2);
  }
  return absl::OkStatus();
}

absl::StatusOr<proto::ProcessTrace> Parse(const std::string& bytes) {
  proto::ProcessTrace trace;
  if (trace.ParseFromString(bytes)) return trace;
  return absl::DataLossError("what a process recorded: expected a ProcessTrace");
}

}  // namespace

absl::StatusOr<std::vector<proto::ProcessTrace>> GatherTraces(const WorkerGroup& group,
                                                              const std::string& clock,
                                                              Deadline deadline) {
  std::vector<proto::ProcessTrace> traces;
  proto::ProcessTrace own =
      TakeTrace(group.recorder.get(), group.rank, /*server=*/false, group.rank);
  GS_ASSIGN_OR_RETURN(const std::vector<std::string> clocks,
                      group.store->AllGather(group.Key("trace/clocks"), group.rank,
                                             group.world_size, clock, deadline));
  // The store holds one trace at a time, however many ranks there are.
  const auto turn = [&group](int rank) { return group.Key(absl::StrCat("trace/turn/", rank)); };
  const auto key = [&group](int rank) { return group.Key(absl::StrCat("trace/process/", rank)); };
  if (group.rank != 0) {
    GS_RETURN_IF_ERROR(group.store->Get(turn(group.rank), deadline).status());
    if (clock != clocks[0]) GS_RETURN_IF_ERROR(AskTime(group, &own, deadline));
    GS_RETURN_IF_ERROR(group.store->Set(key(group.rank), own.SerializeAsString(), deadline));
    return traces;
  }
  traces.push_back(std::move(own));
  for (int rank = 1; rank < group.world_size; ++rank) {
    GS_RETURN_IF_ERROR(group.store->Set(turn(rank), "", deadline));
    if (clocks[rank] != clock) GS_RETURN_IF_ERROR(TellTime(group, rank, deadline));
    GS_ASSIGN_OR_RETURN(const std::string bytes, group.store->Get(key(rank), deadline));
    GS_RETURN_IF_ERROR(group.store->Set(key(rank), "", deadline));  // its memory is free
    GS_ASSIGN_OR_RETURN(proto::ProcessTrace trace, Parse(bytes));
    traces.push_back(std::move(trace));
  }
  for (const std::string& bytes : group.recorder->TakeProcesses()) {
    GS_ASSIGN_OR_RETURN(proto::ProcessTrace trace, Parse(bytes));
    traces.push_back(std::move(trace));
  }
  std::sort(traces.begin(), traces.end(),
            [](const proto::ProcessTrace& a, const proto::ProcessTrace& b) {
              return a.process() < b.process();
            });
  return traces;
}

}  // namespace gradsync
