#include "benchmarks/peer_libraries/peer_job.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "benchmarks/exchange/exchange_job.h"
#include "benchmarks/exchange/sync_bench_options.h"
#include "benchmarks/exchange/sync_bench_report.h"
#include "benchmarks/network/measured_job.h"
#include "benchmarks/ranks/processes.h"
#include "benchmarks/ranks/rank_spec.h"
#include "benchmarks/records/proto_json.h"
#include "core/base/deadline.h"
#include "core/base/status_macros.h"
#include "core/base/temporary_folder.h"
#include "core/plan/job_spec.h"
#include "proto/rank_spec.pb.h"
#include "tools/local_job.h"

namespace gradsync {
namespace {

constexpr absl::Duration kGlance = absl::Milliseconds(50);  // between looks at the interrupt

class Job {
 public:
  Job(const PeerPrograms& programs, const Contestant& contestant, const PeerSetting& setting,
      const PeerJob& job, std::string folder)
      : programs_(programs),
        contestant_(contestant),
        setting_(setting),
        job_(job),
        ranks_(job.exchange.world_size),
        folder_(std::move(folder)),
        start_line_(folder_ + "/start_line") {}

  absl::StatusOr<proto::Run> Run() {
    // Programs that tools/setup --peers compiled from an earlier source do not make it.
    std::ofstream(start_line_).close();
    GS_ASSIGN_OR_RETURN(proto::Run run, RunLaunched());
    run.set_settings(DescribeSetting(setting_));
    return run;
  }

 private:
  absl::StatusOr<proto::Run> RunLaunched() {
    switch (contestant_.launch) {
      case PeerLaunch::kSyncBench:
        return RunExchangeJob(programs_, Case());
      case PeerLaunch::kGrpcStream:
        return RunGrpcStreams();
      case PeerLaunch::kStanding:
        return RunAsTurn();
      case PeerLaunch::kProcesses:
      case PeerLaunch::kMpi:
        break;
    }
    return RunAsProcesses();
  }

  // Of a library that decides by itself, a ring, whose bytes are not counted.
  SyncBenchCase Case() const {
    SyncBenchCase bench_case;
    bench_case.job.spec.topology = Topology::kRing;
    if (contestant_.spec.has_value()) bench_case.job.spec = *contestant_.spec;
    bench_case.job.workers = ranks_;
    if (contestant_.with_servers()) {
      bench_case.job.servers = ranks_;
      bench_case.job.placement = Placement::kDedicated;
    }
    bench_case.exchange = job_.exchange;
    return bench_case;
  }

  absl::StatusOr<proto::Run> RunGrpcStreams() {
    proto::RankSpec spec;
    proto::RankSpec::GrpcStreams& streams = *spec.mutable_grpc_streams();
    int64_t message_bytes = 0;
    if (!absl::SimpleAtoi(setting_.variant, &message_bytes)) {
      return absl::InternalError(absl::StrCat("expected bytes, found ", setting_.variant));
    }
    streams.set_bytes(job_.exchange.bytes);
    streams.set_message_bytes(message_bytes);
    // As many as ours has by default, since the streams are its ceiling.
    streams.set_connections(ConnectionsOf(*contestant_.spec));
    streams.set_iterations(job_.exchange.iterations);
    streams.set_warmup(job_.exchange.warmup);
    GS_ASSIGN_OR_RETURN(const std::unique_ptr<RankFiles> files,
                        RankFiles::Create(std::move(spec), job_.exchange.timeout));
    const SyncBenchCase bench_case = Case();
    LocalJobOptions processes = ProcessesOf(bench_case.job, programs_, job_.exchange.timeout);
    processes.worker_binary = processes.server_binary = programs_.grpc_stream_rank;
    processes.worker_flags = {files->flag()};
    processes.server_flags = {files->flag(), absl::StrCat("--world_size=", ranks_)};
    GS_ASSIGN_OR_RETURN(const LocalJobResult result, RunLocalJobOrFail(processes));
    std::vector<proto::ExchangeMetrics> ranks;
    std::vector<proto::ServerMetrics> servers;
    GS_RETURN_IF_ERROR(ParseMetrics(result.worker_metrics, "rank", &ranks));
    GS_RETURN_IF_ERROR(ParseMetrics(result.server_metrics, "server", &servers));
    return SummarizeExchanges(bench_case, ranks, servers);
  }

  absl::StatusOr<proto::Run> RunAsProcesses() {
    std::vector<std::vector<std::string>> commands;
    if (contestant_.launch == PeerLaunch::kMpi) {
      GS_ASSIGN_OR_RETURN(commands.emplace_back(), MpiCommand());
    } else {
      for (int rank = 0; rank < ranks_; ++rank) {
        commands.push_back({absl::StrCat(programs_.built_folder, "/peer_", contestant_.library)});
        AddRankFlags(&commands.back());
        commands.back().push_back(absl::StrCat("--rank=", rank));
      }
    }
    GS_RETURN_IF_ERROR(RunProcesses(commands, job_.exchange.timeout, programs_.interrupt));
    return ReadMetrics();
  }

  absl::StatusOr<proto::Run> RunAsTurn() {
    const std::string turn =
        absl::StrCat(job_.exchange.bytes, " ", job_.exchange.warmup, " ", job_.exchange.iterations,
                     " ", setting_.variant, " ", folder_);
    GS_RETURN_IF_ERROR(job_.standing->TakeTurn(turn, job_.exchange.timeout, programs_.interrupt));
    return ReadMetrics();
  }

  absl::StatusOr<proto::Run> ReadMetrics() const {
    std::vector<proto::ExchangeMetrics> ranks(ranks_);
    for (int rank = 0; rank < ranks_; ++rank) {
      GS_RETURN_IF_ERROR(ReadJson(absl::StrCat(folder_, "/rank.", rank, ".json"), &ranks[rank]));
    }
    // Servers of others write none: what they sent is not known.
    const SyncBenchCase bench_case = Case();
    return SummarizeExchanges(bench_case, ranks,
                              std::vector<proto::ServerMetrics>(bench_case.job.servers));
  }

  void AddRankFlags(std::vector<std::string>* command) const {
    for (const std::string& flag :
         {absl::StrCat("--world_size=", ranks_), absl::StrCat("--bytes=", job_.exchange.bytes),
          absl::StrCat("--iterations=", job_.exchange.iterations),
          absl::StrCat("--warmup=", job_.exchange.warmup),
          absl::StrCat("--variant=", setting_.variant), absl::StrCat("--start_line=", start_line_),
          absl::StrCat("--folder=", folder_),
          absl::StrCat("--huge_pages=", job_.huge_pages ? 1 : 0),
          absl::StrCat("--timeout=", absl::FormatDuration(job_.exchange.timeout))}) {
      command->push_back(flag);
    }
  }

  // oneCCL runs on Intel MPI.
  absl::StatusOr<std::vector<std::string>> MpiCommand() const {
    const std::string& root = programs_.installed_folder;
    std::string mpi(absl::StripSuffix(contestant_.library, "_window"));
    if (mpi == "oneccl") mpi = "impi";
    const std::string mpiexec =
        absl::StrCat(root, "/", mpi, "/bin/", mpi == "openmpi" ? "mpirun" : "mpiexec.hydra");
    const std::string program = absl::StrCat(root, "/programs/", contestant_.library);
    for (const std::string& file : {mpiexec, program}) {
      if (access(file.c_str(), X_OK) != 0) {
        return absl::NotFoundError("not installed; tools/setup --peers installs it");
      }
    }
    std::vector<std::string> command = {"/usr/bin/env"};
    if (mpi == "impi") command.push_back(absl::StrCat("I_MPI_ROOT=", root, "/impi"));
    if (contestant_.library == "oneccl") {
      command.push_back(absl::StrCat("CCL_ROOT=", root, "/oneccl"));
      command.push_back("CCL_LOG_LEVEL=error");
      command.push_back(absl::StrCat("LD_LIBRARY_PATH=", root, "/oneccl/lib:", root, "/impi/lib"));
    }
    if (mpi == "openmpi") {
      // It does not start without a HOME, and settings that a user keeps there would be in force
      // without being in the table.
      command.push_back(absl::StrCat("HOME=", folder_));
      // Its launcher refuses root unless told twice that this is meant.
      command.push_back("OMPI_ALLOW_RUN_AS_ROOT=1");
      command.push_back("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1");
    }
    command.insert(command.end(), setting_.environment.begin(), setting_.environment.end());
    command.push_back(mpiexec);
    command.insert(command.end(), setting_.launcher.begin(), setting_.launcher.end());
    command.push_back("-n");
    command.push_back(absl::StrCat(ranks_));
    command.push_back(program);
    AddRankFlags(&command);
    return command;
  }

  const PeerPrograms& programs_;
  const Contestant& contestant_;
  const PeerSetting& setting_;
  const PeerJob& job_;
  const int ranks_;
  const std::string folder_;
  const std::string start_line_;
};

}  // namespace

absl::Status StandingPeer::TakeTurn(const std::string& turn, absl::Duration timeout,
                                    const std::atomic<int>* interrupt) {
  auto end = absl::MakeCleanup([this] {
    if (process_ != nullptr) process_->Kill();
    process_.reset();
  });
  if (process_ == nullptr) GS_RETURN_IF_ERROR(Start(timeout, interrupt));
  GS_RETURN_IF_ERROR(process_->WriteLine(turn));
  GS_RETURN_IF_ERROR(Await("done", timeout, interrupt));
  std::move(end).Cancel();
  return absl::OkStatus();
}

absl::Status StandingPeer::Start(absl::Duration timeout, const std::atomic<int>* interrupt) {
  if (access(installed_.c_str(), R_OK) != 0) {
    return absl::NotFoundError("not installed; tools/setup --peers installs it");
  }
  GS_ASSIGN_OR_RETURN(process_, InteractiveProcess::Start(command_, environment_));
  return Await("ready", timeout, interrupt);
}

absl::Status StandingPeer::Await(const std::string& answer, absl::Duration timeout,
                                 const std::atomic<int>* interrupt) {
  const Deadline deadline = Deadline::In(timeout);
  while (true) {
    const absl::StatusOr<std::string> line =
        process_->ReadLine(std::min(deadline, Deadline::In(kGlance)));
    if (interrupt != nullptr && *interrupt != 0) return absl::CancelledError("interrupted");
    if (line.ok()) {
      if (*line == answer) return absl::OkStatus();
      if (absl::StartsWith(*line, "cannot run")) return absl::AbortedError(*line);
      continue;
    }
    if (!absl::IsDeadlineExceeded(line.status()))
      return absl::AbortedError(line.status().message());
    if (deadline.passed()) {
      return absl::DeadlineExceededError(
          absl::StrCat("did not end within ", absl::FormatDuration(timeout)));
    }
  }
}

absl::StatusOr<proto::Run> RunPeerJob(const PeerPrograms& programs, const Contestant& contestant,
                                      const PeerSetting& setting, const PeerJob& job) {
  GS_ASSIGN_OR_RETURN(const TemporaryFolder folder, TemporaryFolder::Create("peers_"));
  return Job(programs, contestant, setting, job, folder.path()).Run();
}

}  // namespace gradsync
