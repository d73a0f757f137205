#include "benchmarks/replay/replay_job.h"

#include <unistd.h>

#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "benchmarks/options/placement.h"
#include "benchmarks/ranks/start_line.h"
#include "benchmarks/records/proto_json.h"
#include "benchmarks/records/ran_as_asked.h"
#include "benchmarks/replay/replay_report.h"
#include "tools/local_job.h"

namespace gradsync {
namespace {

constexpr int kBadInput = 2;

template <typename Metrics>
absl::Status ParseAll(const std::vector<std::string>& texts, absl::string_view what,
                      std::vector<Metrics>* parsed) {
  for (size_t i = 0; i < texts.size(); ++i) {
    GS_RETURN_IF_ERROR(
        ParseJson(texts[i], absl::StrCat("metrics of ", what, " ", i), &parsed->emplace_back()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<proto::Run> RunReplayJob(const ReplayCase& replay, const ReplayPrograms& programs) {
  GS_ASSIGN_OR_RETURN(const std::string start_line, NewStartLineFile());
  const auto remove = absl::MakeCleanup([&start_line] { unlink(start_line.c_str()); });
  LocalJobOptions job;
  job.worker_binary = programs.rank_binary;
  job.server_binary = programs.server_binary;
  job.workers = replay.workers;
  job.servers = ServerProcesses(replay.placement, replay.workers, replay.servers);
  job.worker_flags = ReplayRankFlags(replay, start_line);
  job.server_flags = {absl::StrCat("--timeout=", absl::FormatDuration(replay.timeout))};
  if (programs.network != nullptr) {
    job.lab = &programs.network->lab();
    job.hosts = HostsOf(replay.placement, replay.workers, replay.servers);
  }
  job.collect_metrics = true;
  job.start_timeout = replay.timeout;
  job.interrupt = programs.interrupt;
  GS_ASSIGN_OR_RETURN(const LocalJobResult result, RunLocalJob(job));
  if (programs.interrupt != nullptr && *programs.interrupt != 0) {
    return absl::CancelledError(result.failure);
  }
  if (result.exit_code == kBadInput) return absl::InvalidArgumentError(DescribeFailure(result));
  if (result.exit_code != 0) return absl::AbortedError(DescribeFailure(result));
  std::vector<proto::WorkerMetrics> workers;
  std::vector<proto::ServerMetrics> servers;
  GS_RETURN_IF_ERROR(ParseAll(result.worker_metrics, "rank", &workers));
  GS_RETURN_IF_ERROR(ParseAll(result.server_metrics, "server", &servers));
  for (const proto::WorkerMetrics& worker : workers) {
    GS_RETURN_IF_ERROR(CheckRanAsAsked({replay.topology, replay.link, replay.update}, worker));
  }
  return SummarizeReplay(replay, workers, servers);
}

}  // namespace gradsync
