#include "benchmarks/peer_libraries/peer_job.h"

#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "benchmarks/exchange/exchange_job.h"
#include "benchmarks/exchange/sync_bench_options.h"
#include "benchmarks/exchange/sync_bench_report.h"
#include "benchmarks/network/measured_job.h"
#include "benchmarks/ranks/process_set.h"
#include "benchmarks/ranks/rank_spec.h"
#include "benchmarks/records/proto_json.h"
#include "plan/job_spec.h"

namespace gradsync {
namespace {

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
    const PeerLaunch launch = contestant_.launch;
    GS_ASSIGN_OR_RETURN(proto::Run run, launch == PeerLaunch::kSyncBench    ? RunOurs()
                                        : launch == PeerLaunch::kGrpcStream ? RunGrpcStreams()
                                        : launch == PeerLaunch::kStanding   ? RunAsTurn()
                                                                            : RunAsProcesses());
    run.set_library(contestant_.library);
    run.set_settings(DescribeSetting(setting_));
    return run;
  }

 private:
  // Of a library that decides by itself, a ring, whose bytes are not counted.
  SyncBenchCase Case() const {
    SyncBenchCase bench_case;
    bench_case.job.spec.topology = Topology::kRing;
    if (contestant_.spec.has_value()) bench_case.job.spec = *contestant_.spec;
    bench_case.job.workers = job_.ranks;
    if (contestant_.with_servers()) {
      bench_case.job.servers = job_.ranks;
      bench_case.job.placement = Placement::kDedicated;
    }
    bench_case.exchange.world_size = job_.ranks;
    bench_case.exchange.bytes = job_.bytes;
    bench_case.exchange.iterations = job_.iterations;
    bench_case.exchange.warmup = job_.warmup;
    bench_case.exchange.timeout = job_.timeout;
    return bench_case;
  }

  absl::StatusOr<proto::Run> RunOurs() {
    ExchangeJobOptions options;
    options.rank_binary = programs_.sync_bench_rank;
    options.server_binary = programs_.ps_server;
    options.interrupt = job_.interrupt;
    return RunExchangeJob(options, Case());
  }

  absl::StatusOr<proto::Run> RunGrpcStreams() {
    proto::RankSpec spec;
    proto::RankSpec::GrpcStreams& streams = *spec.mutable_grpc_streams();
    int64_t message_bytes = 0;
    if (!absl::SimpleAtoi(setting_.variant, &message_bytes)) {
      return absl::InternalError(absl::StrCat("expected bytes, found ", setting_.variant));
    }
    streams.set_bytes(job_.bytes);
    streams.set_message_bytes(message_bytes);
    // As many as ours has by default, since the streams are its ceiling.
    streams.set_connections(ConnectionsOf(*contestant_.spec));
    streams.set_iterations(job_.iterations);
    streams.set_warmup(job_.warmup);
    GS_ASSIGN_OR_RETURN(const std::unique_ptr<RankFiles> files,
                        RankFiles::Create(std::move(spec), job_.timeout));
    JobPrograms programs;
    programs.rank_binary = programs.server_binary = programs_.grpc_stream_rank;
    programs.interrupt = job_.interrupt;
    LocalJobOptions options = ProcessesOf(Case().job, programs, job_.timeout);
    options.worker_flags = {files->flag()};
    options.server_flags = {files->flag(), absl::StrCat("--world_size=", job_.ranks)};
    GS_ASSIGN_OR_RETURN(const LocalJobResult result, RunLocalJobOrFail(options));
    std::vector<proto::ServerMetrics> servers;
    GS_RETURN_IF_ERROR(ParseMetrics(result.server_metrics, "server", &servers));
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
    return Summarize(metrics, std::vector<proto::ServerMetrics>(Case().job.servers));
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
    std::vector<proto::ExchangeMetrics> ranks;
    GS_RETURN_IF_ERROR(ParseMetrics(metrics, "rank", &ranks));
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
