// How long an allreduce of float32 takes between processes of this host, by size.
//
//   bazel run //core/collectives:collectives_bench
//   bazel run //core/collectives:collectives_bench -- --ranks=4 --link=grpc --topology=ps --bytes=65536,1048576
//
// One line per size: microseconds for a call, the median over rounds of the slowest rank's mean, then
// GB/s of algorithm bandwidth (bytes of the data by that time; 1 GB = 1e9 bytes) and how many elements
// came out wrong. Values are small integers, whose sums are exact. Ranks meet before each round.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/credentials.h"
#include "core/base/deadline.h"
#include "core/base/errors.h"
#include "core/base/monotonic_time.h"
#include "core/base/status_macros.h"
#include "core/collectives/group_collectives.h"
#include "core/group/grpc_store.h"
#include "core/links/grpc_stream.h"

ABSL_FLAG(int, ranks, 2, "how many processes");
ABSL_FLAG(std::string, link, "shm", "shm or grpc");
ABSL_FLAG(std::string, topology, "ring", "of grpc: ring or ps, where all ranks own shares");
ABSL_FLAG(std::vector<std::string>, bytes,
          std::vector<std::string>({"4096", "16384", "65536", "262144", "1048576", "4194304",
                                    "16777216", "100000000"}),
          "sizes of the data");
ABSL_FLAG(int, rounds, 9, "how often each size is measured; the median is printed");
ABSL_FLAG(double, round_seconds, 0.2, "about how long a round takes");
ABSL_FLAG(int, piece_bytes, 0, "most bytes of a message; 0: the default");
ABSL_FLAG(int, small_bytes, 0, "up to so many all ranks send all at once; 0: the default");

namespace gradsync {
namespace {

Deadline Soon() { return Deadline::In(absl::Minutes(2)); }

absl::Status Reduce(GroupCollectives& calls, std::vector<float>& data) {
  return calls.AllReduce(data.data(), static_cast<int64_t>(data.size()), ElementKind::kFloat32,
                         FoldOp::kSum, Soon());
}

// The largest of all ranks' `seconds`.
absl::StatusOr<double> Slowest(GroupCollectives& calls, double seconds) {
  GS_RETURN_IF_ERROR(calls.AllReduce(&seconds, 1, ElementKind::kFloat64, FoldOp::kMax, Soon()));
  return seconds;
}

absl::StatusOr<double> SecondsOf(GroupCollectives& calls, std::vector<float>& data, int times) {
  GS_RETURN_IF_ERROR(calls.Barrier(Soon()));
  const MonotonicTime start = MonotonicTime::Now();
  for (int i = 0; i < times; ++i) GS_RETURN_IF_ERROR(Reduce(calls, data));
  return Slowest(calls, absl::ToDoubleSeconds(MonotonicTime::Now() - start) / times);
}

// Returns how many elements were wrong.
absl::StatusOr<int64_t> Line(GroupCollectives& calls, size_t bytes) {
  const int n = calls.world_size(), rank = calls.rank();
  std::vector<float> data(bytes / sizeof(float));
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>((i + rank) % 8);
  GS_RETURN_IF_ERROR(Reduce(calls, data));
  int64_t wrong = 0;
  for (size_t i = 0; i < data.size(); ++i) {
    float expected = 0;
    for (int other = 0; other < n; ++other) expected += static_cast<float>((i + other) % 8);
    if (data[i] != expected) ++wrong;
  }
  std::fill(data.begin(), data.end(), 0.0f);  // sums of sums would grow
  GS_ASSIGN_OR_RETURN(const double once, SecondsOf(calls, data, 3));
  const double round = absl::GetFlag(FLAGS_round_seconds);
  const int times = static_cast<int>(std::clamp(round / once, 1.0, 1e6));
  std::vector<double> seconds;
  for (int i = 0; i < std::max(1, absl::GetFlag(FLAGS_rounds)); ++i) {
    GS_ASSIGN_OR_RETURN(const double mean, SecondsOf(calls, data, times));
    seconds.push_back(mean);
  }
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  if (rank == 0) {
    std::printf("%10zu %12.2f %8.2f %7lld\n", bytes, median * 1e6,
                static_cast<double>(bytes) / median / 1e9, static_cast<long long>(wrong));
    std::fflush(stdout);
  }
  return wrong;
}

absl::StatusOr<int64_t> RunRank(int rank, std::shared_ptr<KeyValueStore> store,
                                const std::vector<size_t>& sizes) {
  GroupCollectivesOptions options;
  options.group.rank = rank;
  options.group.world_size = absl::GetFlag(FLAGS_ranks);
  options.group.run_id = "collectives_bench";
  options.group.store = std::move(store);
  options.group.address = "127.0.0.1";
  options.group.credentials = InsecureCredentials();
  if (absl::GetFlag(FLAGS_link) == "grpc") options.link = NewGrpcLink();
  if (absl::GetFlag(FLAGS_topology) == "ps") options.topology = Topology::kPs;
  options.piece_bytes = static_cast<size_t>(absl::GetFlag(FLAGS_piece_bytes));
  options.small_bytes = static_cast<size_t>(absl::GetFlag(FLAGS_small_bytes));
  GS_ASSIGN_OR_RETURN(const auto calls, GroupCollectives::Open(options, Soon()));
  int64_t wrong = 0;
  for (size_t bytes : sizes) {
    GS_ASSIGN_OR_RETURN(const int64_t more, Line(*calls, bytes));
    wrong += more;
  }
  GS_RETURN_IF_ERROR(calls->Finish(Soon()));
  return wrong;
}

int Report(const absl::StatusOr<int64_t>& wrong) {
  if (!wrong.ok()) std::cerr << wrong.status() << std::endl;
  return wrong.ok() && *wrong == 0 ? 0 : 1;
}

// Rank 0 is this process, which holds the store; the others are forked before it has any thread, and
// hear the store's port through a pipe.
int Run(const std::vector<size_t>& sizes) {
  const int ranks = absl::GetFlag(FLAGS_ranks);
  int ports[2];
  if (pipe(ports) != 0) return 1;
  std::vector<pid_t> children;
  for (int rank = 1; rank < ranks; ++rank) {
    children.push_back(fork());
    if (children.back() != 0) continue;
    int port = 0;
    if (read(ports[0], &port, sizeof(port)) != sizeof(port)) _exit(1);
    auto store = ConnectStore(absl::StrCat("127.0.0.1:", port), InsecureCredentials(), Soon());
    if (!store.ok()) _exit(Report(store.status()));
    _exit(Report(RunRank(rank, *std::move(store), sizes)));
  }
  auto server = GrpcStoreServer::Start("127.0.0.1:0", InsecureCredentials());
  if (!server.ok()) return Report(server.status());
  const int port = (*server)->port();
  for (int rank = 1; rank < ranks; ++rank) {
    if (write(ports[1], &port, sizeof(port)) != sizeof(port)) return 1;
  }
  std::printf("# %d ranks, %u cores, %s\n%10s %12s %8s %7s\n", ranks,
              std::thread::hardware_concurrency(), absl::GetFlag(FLAGS_link).c_str(), "bytes", "us",
              "GB/s", "#wrong");
  int code = Report(RunRank(0, (*server)->local(), sizes));
  for (pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    if (status != 0) code = 1;
  }
  return code;
}

int Main() {
#ifndef NDEBUG
  std::cerr << "WARNING: not an optimised build" << std::endl;
#endif
  const auto refuse = [](const char* flag, const char* expected, const std::string& found) {
    std::cerr << FlagError(flag, expected, found).message() << std::endl;
    return 2;
  };
  const std::string link = absl::GetFlag(FLAGS_link), topology = absl::GetFlag(FLAGS_topology);
  if (link != "shm" && link != "grpc") return refuse("link", "shm or grpc", link);
  if (topology != "ring" && topology != "ps") return refuse("topology", "ring or ps", topology);
  if (absl::GetFlag(FLAGS_ranks) < 1) {
    return refuse("ranks", "at least 1", absl::StrCat(absl::GetFlag(FLAGS_ranks)));
  }
  std::vector<size_t> sizes;
  for (const std::string& bytes : absl::GetFlag(FLAGS_bytes)) {
    uint32_t size = 0;
    if (!absl::SimpleAtoi(bytes, &size) || size < sizeof(float)) {
      return refuse("bytes", "numbers of at least 4", bytes);
    }
    sizes.push_back(size);
  }
  return Run(sizes);
}

}  // namespace
}  // namespace gradsync

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("Measures allreduce between processes of this host.");
  absl::ParseCommandLine(argc, argv);
  return gradsync::Main();
}
