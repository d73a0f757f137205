#include "benchmarks/peer_libraries/peer_job.h"

#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "benchmarks/exchange/sync_bench_options.h"
#include "benchmarks/exchange/sync_bench_report.h"
#include "benchmarks/ranks/process_set.h"
#include "benchmarks/records/proto_json.h"
#include "benchmarks/records/ran_as_asked.h"
#include "plan/job_spec.h"
#include "tools/local_job.h"

namespace gradsync {
namespace {

constexpr int kBadInput = 2;

absl::StatusOr<std::string> NewFolder(const std::string& parent) {
  std::string path = absl::StrCat(parent, "/peers_XXXXXX");
  if (mkdtemp(path.data()) == nullptr) return absl::ErrnoToStatus(errno, path);
  return path;
}

class Job {
 public:
  Job(const PeerPrograms& programs, const Contestant& contestant, const PeerSetting& setting,
      const PeerJob& job, std::string folder)
      : programs_(programs),
        contestant_(contestant),
        setting_(setting),
        job_(job),
        folder_(std::move(folder)),
        start_line_(folder_ + "/start_line") {}

  absl::StatusOr<proto::Run> Run() {
    std::ofstream(start_line_).close();
    const bool local = contestant_.launch == PeerLaunch::kSyncBench ||
                       contestant_.launch == PeerLaunch::kGrpcStream;
    const bool standing = contestant_.launch == PeerLaunch::kStanding;
    GS_ASSIGN_OR_RETURN(proto::Run run, local      ? RunAsLocalJob()
                                        : standing ? RunAsTurn()
                                                   : RunAsProcesses());
    run.set_library(contestant_.library);
    run.set_settings(DescribeSetting(setting_));
    return run;
  }

 private:
  SyncBenchCase Case() const {
    SyncBenchCase bench_case;
    bench_case.topology = contestant_.topology;
    bench_case.link = contestant_.link;
    bench_case.update = "worker";
    bench_case.servers = contestant_.with_servers ? job_.ranks : 0;
    if (contestant_.with_servers) bench_case.placement = "dedicated";
    bench_case.exchange.world_size = job_.ranks;
    bench_case.exchange.bytes = job_.bytes;
    bench_case.exchange.iterations = job_.iterations;
    bench_case.exchange.warmup = job_.warmup;
    bench_case.exchange.timeout = job_.timeout;
    return bench_case;
  }

  // As many connections as ours has by default, since the streams are its ceiling.
  std::vector<std::string> StreamFlags() const {
    JobSpec ours;
    ours.topology = contestant_.with_servers ? Topology::kPs : Topology::kRing;
    ours.link = Link::kGrpc;
    return {absl::StrCat("--connections=", ConnectionsOf(ours)),
            absl::StrCat("--message_bytes=", setting_.variant),
            absl::StrCat("--bytes=", job_.bytes),
            absl::StrCat("--iterations=", job_.iterations),
            absl::StrCat("--warmup=", job_.warmup),
            absl::StrCat("--timeout=", absl::FormatDuration(job_.timeout)),
            absl::StrCat("--start_line=", start_line_)};
  }

  absl::StatusOr<proto::Run> RunAsLocalJob() {
    const SyncBenchCase bench_case = Case();
    LocalJobOptions options;
    options.workers = job_.ranks;
    options.servers = bench_case.servers;
    if (contestant_.launch == PeerLaunch::kSyncBench) {
      options.worker_binary = programs_.sync_bench_rank;
      options.server_binary = programs_.ps_server;
      options.worker_flags = RankFlags(bench_case, start_line_);
      options.server_flags = {absl::StrCat("--timeout=", absl::FormatDuration(job_.timeout))};
    } else {
      options.worker_binary = programs_.grpc_stream_rank;
      options.server_binary = programs_.grpc_stream_rank;
      options.worker_flags = StreamFlags();
      options.server_flags = StreamFlags();
      options.server_flags.push_back(absl::StrCat("--world_size=", job_.ranks));
    }
    options.collect_metrics = true;
    options.start_timeout = job_.timeout;
    options.interrupt = job_.interrupt;
    GS_ASSIGN_OR_RETURN(const LocalJobResult result, RunLocalJob(options));
    if (job_.interrupt != nullptr && *job_.interrupt != 0) {
      return absl::CancelledError(result.failure);
    }
    if (result.exit_code != 0) {
      const std::string message =
          result.failure_detail.empty() ? result.failure : result.failure_detail;
      if (result.exit_code == kBadInput) return absl::InvalidArgumentError(message);
      return absl::AbortedError(message);
    }
    std::vector<proto::ServerMetrics> servers(result.server_metrics.size());
    for (size_t i = 0; i < servers.size(); ++i) {
      GS_RETURN_IF_ERROR(
          ParseJson(result.server_metrics[i], absl::StrCat("metrics of server ", i), &servers[i]));
    }
    return Summarize(result.worker_metrics, servers);
  }

  absl::StatusOr<proto::Run> RunAsProcesses() {
    std::vector<std::vector<std::string>> commands;
    if (contestant_.launch == PeerLaunch::kMpi) {
      GS_ASSIGN_OR_RETURN(commands.emplace_back(), MpiCommand());
    } else {
      for (int rank = 0; rank < job_.ranks; ++rank) {
        commands.push_back({absl::StrCat(programs_.built_folder, "/peer_", contestant_.library)});
        AddRankFlags(&commands.back());
        commands.back().push_back(absl::StrCat("--rank=", rank));
      }
    }
    GS_RETURN_IF_ERROR(RunProcesses(commands, job_.timeout, job_.interrupt));
    return ReadMetrics();
  }

  absl::StatusOr<proto::Run> RunAsTurn() {
    const std::string turn = absl::StrCat(job_.bytes, " ", job_.warmup, " ", job_.iterations, " ",
                                          setting_.variant, " ", folder_);
    GS_RETURN_IF_ERROR(job_.standing->TakeTurn(turn, job_.timeout, job_.interrupt));
    return ReadMetrics();
  }

  absl::StatusOr<proto::Run> ReadMetrics() const {
    std::vector<std::string> metrics;
    for (int rank = 0; rank < job_.ranks; ++rank) {
      std::ifstream file(absl::StrCat(folder_, "/rank.", rank, ".json"));
      metrics.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }
    // Servers of others write none: what they sent is not known.
    return Summarize(metrics, std::vector<proto::ServerMetrics>(Case().servers));
  }

  void AddRankFlags(std::vector<std::string>* command) const {
    for (const std::string& flag :
         {absl::StrCat("--world_size=", job_.ranks), absl::StrCat("--bytes=", job_.bytes),
          absl::StrCat("--iterations=", job_.iterations), absl::StrCat("--warmup=", job_.warmup),
          absl::StrCat("--variant=", setting_.variant), absl::StrCat("--start_line=", start_line_),
          absl::StrCat("--folder=", folder_),
          absl::StrCat("--huge_pages=", job_.huge_pages ? 1 : 0),
          absl::StrCat("--timeout=", absl::FormatDuration(job_.timeout))}) {
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
    command.push_back(absl::StrCat(job_.ranks));
    command.push_back(program);
    AddRankFlags(&command);
    return command;
  }

  absl::StatusOr<proto::Run> Summarize(const std::vector<std::string>& metrics,
                                       const std::vector<proto::ServerMetrics>& servers) const {
    std::vector<proto::ExchangeMetrics> ranks(metrics.size());
    for (size_t i = 0; i < ranks.size(); ++i) {
      GS_RETURN_IF_ERROR(ParseJson(metrics[i], absl::StrCat("metrics of rank ", i), &ranks[i]));
      if (contestant_.launch != PeerLaunch::kSyncBench) continue;
      GS_RETURN_IF_ERROR(
          CheckRanAsAsked({contestant_.topology, contestant_.link, Case().update}, ranks[i]));
    }
    return SummarizeExchanges(Case(), ranks, servers);
  }

  const PeerPrograms& programs_;
  const Contestant& contestant_;
  const PeerSetting& setting_;
  const PeerJob& job_;
  const std::string folder_;
  const std::string start_line_;
};

}  // namespace

absl::StatusOr<proto::Run> RunPeerJob(const PeerPrograms& programs, const Contestant& contestant,
                                      const PeerSetting& setting, const PeerJob& job) {
  GS_ASSIGN_OR_RETURN(const std::string folder, NewFolder(programs.temporary_folder));
  const auto remove = absl::MakeCleanup([&folder] {
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
  });
  return Job(programs, contestant, setting, job, folder).Run();
}

}  // namespace gradsync
