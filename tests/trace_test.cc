// The trace of a job, by real processes under every backend that a host without GPUs has: it can be
// read, every chunk that was sent was received, and its sums are those that the job printed.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/temporary_folder.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"
#include "proto/run_record.pb.h"
#include "tests/job_processes.h"
#include "tools/local_job.h"
#include "worker/trace/trace_reader.h"

namespace gradsync {
namespace {

using ::testing::IsEmpty;
using ::testing::Not;

constexpr int kFirst = 3, kLast = 9, kSteps = 10;

struct Traced {
  std::vector<ReadSlice> slices;
  std::vector<proto::WorkerMetrics> workers;
};

// Rank 1 is slow, so that rank 0 waits for it much longer than clocks and threads are wrong.
Traced Trace(int servers, const std::vector<std::string>& flags) {
  Traced traced;
  const auto folder = TemporaryFolder::Create("trace_test");
  EXPECT_TRUE(folder.ok()) << folder.status();
  const std::string path = folder->path() + "/job.pftrace";
  LocalJobOptions options;
  options.worker_binary = "worker/worker";
  options.server_binary = "ps_server/ps_server";
  options.workers = 2;
  options.servers = servers;
  options.worker_flags =
      With({"--model=mlp", "--batch_size=16", "--timeout=60s", absl::StrCat("--steps=", kSteps),
            "--straggler=1:10", absl::StrCat("--trace=", path),
            absl::StrCat("--trace_steps=", kFirst, "-", kLast)},
           flags);
  options.collect_metrics = true;
  const auto result = RunLocalJob(options);
  EXPECT_TRUE(result.ok()) << result.status();
  if (!result.ok()) return traced;
  EXPECT_EQ(result->exit_code, 0) << DescribeFailure(*result);
  for (const std::string& text : result->worker_metrics) {
    traced.workers.emplace_back();
    EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(text, &traced.workers.back()).ok());
  }
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  absl::StatusOr<std::vector<ReadSlice>> slices = ReadTrace(bytes);
  EXPECT_TRUE(slices.ok()) << slices.status();
  if (slices.ok()) traced.slices = *std::move(slices);
  return traced;
}

std::set<std::string> ProcessesOf(const Traced& traced) {
  std::set<std::string> processes;
  for (const ReadSlice& slice : traced.slices) processes.insert(slice.process);
  return processes;
}

// How long the slices of a process are whose lane and name begin so, milliseconds; of one step, or of
// all with 0.
double Sum(const Traced& traced, const std::string& process, const std::string& lane,
           const std::string& name = "", int step = 0) {
  double sum = 0;
  for (const ReadSlice& slice : traced.slices) {
    if (slice.process != process || !absl::StartsWith(slice.lane, lane)) continue;
    if (step != 0 && slice.step != step) continue;
    if (absl::StartsWith(slice.name, name))
      sum += 1e-6 * static_cast<double>(slice.end - slice.begin);
  }
  return sum;
}

int Count(const Traced& traced, const std::string& process, const std::string& lane) {
  int count = 0;
  for (const ReadSlice& slice : traced.slices) {
    count += absl::StartsWith(slice.process, process) && absl::StartsWith(slice.lane, lane);
  }
  return count;
}

// How far sums of single steps are from what was expected, as a part of that, in the middle one: a
// thread that the machine takes off its core between two slices makes any one step an outlier.
double MedianError(const std::vector<std::pair<double, double>>& found_and_expected) {
  std::vector<double> errors;
  for (const auto& [found, expected] : found_and_expected) {
    errors.push_back(std::abs(found - expected) / expected);
  }
  std::sort(errors.begin(), errors.end());
  return errors[errors.size() / 2];
}

// The gaps between what is computed in a step add up to the exposed time that was measured and
// printed; so do the slices that fill them.
void ExpectTheSumsOfMetrics(const Traced& traced) {
  ASSERT_EQ(traced.workers.size(), 2);
  for (int rank = 0; rank < 2; ++rank) {
    const std::string worker = absl::StrCat("worker ", rank);
    ASSERT_EQ(traced.workers[rank].exposed_ms_size(), kSteps);
    std::vector<std::pair<double, double>> steps, waits, gaps;
    for (int step = kFirst; step <= kLast; ++step) {
      const double traced_step = Sum(traced, worker, "steps", "", step);
      const double exposed = traced.workers[rank].exposed_ms(step - 1);
      steps.emplace_back(traced_step, traced.workers[rank].step_ms(step - 1));
      waits.emplace_back(Sum(traced, worker, "exposed", "", step), exposed);
      gaps.emplace_back(traced_step - Sum(traced, worker, "compute", "", step), exposed);
      if (rank == 0) {
        EXPECT_GT(exposed, 0.25);
      }
    }
    EXPECT_LT(MedianError(steps), 0.02) << worker;
    if (rank == 1) continue;  // nobody keeps it waiting
    EXPECT_LT(MedianError(waits), 0.02);
    EXPECT_LT(MedianError(gaps), 0.02);
  }
}

// Each arrow has two ends, of which the later is the receiver's.
void ExpectEveryChunkAtBothEnds(const Traced& traced) {
  std::map<uint64_t, std::vector<ReadSlice>> flows;
  for (const ReadSlice& slice : traced.slices) {
    if (slice.flow != 0) flows[slice.flow].push_back(slice);
  }
  EXPECT_THAT(flows, Not(IsEmpty()));
  for (const auto& [flow, ends] : flows) {
    ASSERT_EQ(ends.size(), 2) << ends[0].process << ", " << ends[0].lane << ", " << ends[0].name;
    EXPECT_EQ(ends[0].name, ends[1].name);
    EXPECT_EQ(ends[0].step, ends[1].step);
    EXPECT_NE(ends[0].process, ends[1].process);
  }
}

void ExpectStepsOfTheWindow(const Traced& traced) {
  for (const ReadSlice& slice : traced.slices) {
    if (slice.name == "clock") continue;
    EXPECT_GE(slice.step, kFirst) << slice.lane << " " << slice.name;
    EXPECT_LE(slice.step, kLast) << slice.lane << " " << slice.name;
  }
  const int steps = kLast - kFirst + 1;
  for (const char* worker : {"worker 0", "worker 1"}) {
    EXPECT_EQ(Count(traced, worker, "steps"), steps);
    EXPECT_EQ(Count(traced, worker, "buckets"), Count(traced, worker, "ready"));
    EXPECT_EQ(Count(traced, worker, "buckets"), Count(traced, worker, "exposed"));
    EXPECT_GE(Count(traced, worker, "buckets"), steps);
  }
}

TEST(TraceTest, ARingOverGrpc) {
  const Traced traced = Trace(0, {"--topology=ring", "--link=grpc", "--trace_bandwidth=1gbit"});
  EXPECT_EQ(ProcessesOf(traced),
            (std::set<std::string>{"worker 0", "worker 1", "predicted: worker 0",
                                   "predicted: worker 1"}));
  ExpectStepsOfTheWindow(traced);
  ExpectTheSumsOfMetrics(traced);
  ExpectEveryChunkAtBothEnds(traced);
  EXPECT_GT(Count(traced, "worker 0", "to worker 1"), 0);
  EXPECT_GT(Count(traced, "worker 0", "folds"), 0);
  EXPECT_GT(Count(traced, "worker 0", "copies"), 0);
  EXPECT_EQ(Count(traced, "worker 0", "updates"), 0);
}

TEST(TraceTest, ServersOverGrpcThatUpdate) {
  const Traced traced =
      Trace(2, {"--topology=ps", "--link=grpc", "--update=owner", "--trace_bandwidth=1gbit"});
  EXPECT_EQ(
      ProcessesOf(traced),
      (std::set<std::string>{"worker 0", "worker 1", "server 0", "server 1", "predicted: worker 0",
                             "predicted: worker 1", "predicted: server 0", "predicted: server 1"}));
  ExpectStepsOfTheWindow(traced);
  ExpectTheSumsOfMetrics(traced);
  ExpectEveryChunkAtBothEnds(traced);
  for (const char* lane : {"folds", "updates", "from worker 0", "to worker 1"}) {
    EXPECT_GT(Count(traced, "server 0", lane), 0) << lane;
  }
  EXPECT_GT(Count(traced, "predicted: server 0", "updates"), 0);
}

TEST(TraceTest, ARingInSharedMemoryFoldsAndUpdates) {
  const Traced traced = Trace(0, {"--topology=ring", "--link=shm", "--update=owner"});
  EXPECT_EQ(ProcessesOf(traced), (std::set<std::string>{"worker 0", "worker 1"}));
  ExpectStepsOfTheWindow(traced);
  ExpectTheSumsOfMetrics(traced);
  EXPECT_GT(Count(traced, "worker", "folds"), 0);
  EXPECT_EQ(Count(traced, "worker", "folds"), Count(traced, "worker", "updates"));
}

TEST(TraceTest, ServersInSharedMemory) {
  const Traced traced = Trace(1, {"--topology=ps", "--link=shm", "--update=owner"});
  ExpectStepsOfTheWindow(traced);
  ExpectTheSumsOfMetrics(traced);
  EXPECT_GT(Count(traced, "server 0", "folds"), 0);
  EXPECT_EQ(Count(traced, "worker", "folds"), 0);
}

TEST(TraceTest, WorkersFoldSmallBucketsOfServersInSharedMemory) {
  const Traced traced = Trace(1, {"--topology=ps", "--link=shm", "--update=worker"});
  ExpectStepsOfTheWindow(traced);
  EXPECT_GT(Count(traced, "worker", "folds"), 0);
}

TEST(TraceTest, ReplicasInOneProcessShowWhatTheyCost) {
  const Traced traced =
      Trace(0, {"--topology=ring", "--link=grpc", "--data_parallel=2", "--trace_bandwidth=1gbit"});
  ExpectStepsOfTheWindow(traced);
  ExpectTheSumsOfMetrics(traced);
  ASSERT_EQ(traced.workers.size(), 2);
  for (int rank = 0; rank < 2; ++rank) {
    const std::string worker = absl::StrCat("worker ", rank);
    const proto::WorkerMetrics& metrics = traced.workers[rank];
    const auto expect = [&](const std::string& name, const auto& ms) {
      double sum = 0;
      for (int step = kFirst; step <= kLast; ++step) sum += ms.Get(step - 1);
      EXPECT_GT(sum, 0) << name;
      EXPECT_NEAR(Sum(traced, worker, "compute", name), sum, 1e-3) << name;
    };
    expect("replicate", metrics.replicate_ms());
    expect("scatter", metrics.scatter_ms());
    expect("gather", metrics.gather_ms());
    expect("reduce", metrics.reduce_ms());
  }
}

TEST(TraceTest, GlooHasBuckets) {
  const Traced traced = Trace(0, {"--topology=ring", "--link=gloo"});
  ExpectStepsOfTheWindow(traced);
  ExpectTheSumsOfMetrics(traced);
}

TEST(TraceTest, ServersThatWaitForNobody) {
  const Traced traced = Trace(1, {"--topology=ps", "--update=owner", "--consistency=asp"});
  EXPECT_GT(Count(traced, "server 0", "updates"), 0);
  ExpectEveryChunkAtBothEnds(traced);
}

// It had no step to predict, and failed after its last step.
TEST(TraceTest, AJobThatIsResumedBehindTheWindowGoesWellWithoutAPrediction) {
  const auto folder = TemporaryFolder::Create("trace_test");
  ASSERT_TRUE(folder.ok()) << folder.status();
  const std::vector<std::string> job = {"--topology=ring", "--link=grpc", "--trace_bandwidth=1gbit",
                                        "--checkpoint=" + folder->path()};
  EXPECT_THAT(ProcessesOf(Trace(0, job)), Not(IsEmpty()));
  const std::string steps = absl::StrCat("--steps=", kSteps + 4);
  EXPECT_THAT(ProcessesOf(Trace(0, With(job, {steps, "--resume=auto"}))), IsEmpty());
}

TEST(TraceTest, WithoutOneServersAreToldOfNone) {
  LocalJobOptions options;
  options.worker_binary = "worker/worker";
  options.server_binary = "ps_server/ps_server";
  options.workers = options.servers = 1;
  options.worker_flags = {"--model=mlp", "--batch_size=4", "--steps=2", "--topology=ps"};
  const auto result = RunLocalJob(options);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->exit_code, 0) << DescribeFailure(*result);
}

}  // namespace
}  // namespace gradsync
