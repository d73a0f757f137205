#include "benchmarks/comparison/replica_comparison.h"

#include "absl/strings/str_cat.h"
#include "benchmarks/comparison/compare_rounds.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::SizeIs;

using Kind = ReplicaJob::Kind;

proto::WorkerMetrics Metrics(int rank, const ReplicaJob& job, double step_ms) {
  proto::WorkerMetrics metrics;
  metrics.set_rank(rank);
  metrics.set_topology(job.kind == Kind::kRing ? "ring" : "local");
  metrics.set_link(job.kind == Kind::kRing ? "shm" : "");
  metrics.set_update("worker");
  metrics.set_consistency("bsp");
  metrics.set_batch_size(job.kind == Kind::kDataParallel ? 4 * job.parts : 4);
  metrics.set_accumulate(job.kind == Kind::kAccumulate ? job.parts : 1);
  metrics.set_data_parallel(job.kind == Kind::kDataParallel ? job.parts : 1);
  metrics.set_params_sha256(job.kind == Kind::kRing ? "ring" : "one");
  for (int i = 0; i < 3; ++i) {
    metrics.add_step_ms(step_ms);
    metrics.add_data_ms(1);
    metrics.add_forward_ms(step_ms / 4);
    metrics.add_backward_ms(step_ms / 4);
    metrics.add_exposed_ms(2);
    metrics.add_update_ms(step_ms / 2);
    if (job.kind != Kind::kDataParallel) continue;
    metrics.add_replicate_ms(30 + i);
    metrics.add_scatter_ms(0.5);
    metrics.add_apply_ms(50);
    metrics.add_gather_ms(0.25);
    metrics.add_reduce_ms(20);
  }
  metrics.set_device0_share(0.7);
  metrics.set_device0_tx_bytes_per_step(5e6);
  metrics.set_device0_rx_bytes_per_step(4e6);
  metrics.set_wire_tx_bytes_per_step(2e6);
  return metrics;
}

absl::StatusOr<proto::Run> RunOf(const ReplicaJob& job, double step_ms) {
  std::vector<proto::WorkerMetrics> workers;
  for (int r = 0; r < job.workers(); ++r) workers.push_back(Metrics(r, job, step_ms));
  return ReplicaRun(job, workers);
}

const ReplicaJob kTurns = {Kind::kAccumulate, 2};
const ReplicaJob kReplicas = {Kind::kDataParallel, 2};
const ReplicaJob kRanks = {Kind::kRing, 2};

proto::Run Merged(const ReplicaJob& job, double step_ms, const std::string& hash = "") {
  proto::Run run = RunOf(job, step_ms).value();
  if (!hash.empty()) run.set_params_sha256(hash);
  return MergeRounds({run, run}).value();
}

TEST(ReplicaComparisonTest, JobsOfEqualPartsHaveEqualSamplesAndThreads) {
  ReplicaComparison comparison;
  comparison.model = "mlp";
  comparison.replicas = {"4", "2", "4"};
  comparison.batch_size = 3;
  comparison.threads = 2;
  const auto jobs = ListReplicaJobs(comparison);
  ASSERT_TRUE(jobs.ok()) << jobs.status();
  EXPECT_THAT(*jobs, SizeIs(6));
  EXPECT_EQ((*jobs)[3].parts, 4);
  EXPECT_THAT(FlagsOf(comparison, {Kind::kDataParallel, 4}),
              AllOf(Contains("--batch_size=12"), Contains("--threads=8"),
                    Contains("--data_parallel=4"), Contains("--topology=local")));
  EXPECT_THAT(
      FlagsOf(comparison, {Kind::kAccumulate, 4}),
      AllOf(Contains("--batch_size=3"), Contains("--threads=2"), Contains("--accumulate=4")));
  EXPECT_THAT(FlagsOf(comparison, {Kind::kRing, 4}),
              AllOf(Contains("--batch_size=3"), Contains("--threads=2"),
                    Contains("--topology=ring"), Contains("--link=shm")));
}

TEST(ReplicaComparisonTest, BadNumbersAreRefusedByFlag) {
  const auto refused = [](const ReplicaComparison& comparison, const std::string& words) {
    const auto jobs = ListReplicaJobs(comparison);
    EXPECT_EQ(jobs.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(jobs.status().message()), HasSubstr(words));
  };
  ReplicaComparison comparison;
  comparison.replicas = {"1"};
  refused(comparison, "--replicas: expected at least 2");
  comparison.replicas = {"2", "many"};
  refused(comparison, "--replicas");
  comparison = ReplicaComparison();
  comparison.steps = comparison.warmup_steps;
  refused(comparison, "--steps: expected at least 3");
  comparison = ReplicaComparison();
  comparison.model = "resnet19";
  refused(comparison, "--model");
}

TEST(ReplicaComparisonTest, ARunHasTheSplitAndTheLoadOfDevice0) {
  const auto replicas = RunOf(kReplicas, 100);
  ASSERT_TRUE(replicas.ok()) << replicas.status();
  EXPECT_EQ(replicas->replicate_ms_p50(), 31);
  EXPECT_EQ(replicas->reduce_ms_p50(), 20);
  EXPECT_EQ(replicas->device0_share(), 0.7);
  EXPECT_EQ(replicas->device0_tx_bytes(), 5e6);
  EXPECT_EQ(replicas->samples_per_s(), 80);
  const auto ring = RunOf(kRanks, 80);
  ASSERT_TRUE(ring.ok()) << ring.status();
  EXPECT_EQ(ring->device0_share(), 0.5);
  EXPECT_EQ(ring->device0_tx_bytes(), 2e6);
  EXPECT_EQ(ring->samples_per_s(), 100);
  const auto turns = RunOf(kTurns, 100);
  ASSERT_TRUE(turns.ok()) << turns.status();
  EXPECT_EQ(turns->samples_per_s(), 80);
  // A worker that did not do what it was asked for.
  EXPECT_EQ(ReplicaRun(kReplicas, {Metrics(0, kTurns, 100)}).status().code(),
            absl::StatusCode::kDataLoss);
}

TEST(ReplicaComparisonTest, TheTableSaysWhereTheTimeIs) {
  const std::string table =
      ReplicaTable({kReplicas, kRanks}, {RunOf(kReplicas, 100).value(), RunOf(kRanks, 80).value()});
  EXPECT_THAT(table, AllOf(HasSubstr("replicate"), HasSubstr("2 replicas in one process"),
                           HasSubstr("70%"), HasSubstr("ring of 2 ranks"), HasSubstr("50%")));
}

TEST(ReplicaComparisonTest, TheVerdictIsAboutBitsAndSpeed) {
  const std::vector<ReplicaJob> jobs = {kTurns, kReplicas, kRanks};
  const ReplicaVerdict good =
      JudgeReplicas(jobs, {Merged(kTurns, 150), Merged(kReplicas, 100), Merged(kRanks, 80)});
  EXPECT_TRUE(good.bits_agree) << good.text;
  EXPECT_THAT(good.text, HasSubstr("a ring of 2 ranks was 25 % faster than"));
  const ReplicaVerdict bad = JudgeReplicas(
      jobs, {Merged(kTurns, 150), Merged(kReplicas, 100, "other"), Merged(kRanks, 80)});
  EXPECT_FALSE(bad.bits_agree);
  EXPECT_THAT(bad.text, HasSubstr("2 replicas in one process ended with other parameters than"));
  proto::Run unsteady = Merged(kRanks, 80);
  unsteady.set_round_params_sha256(1, "other");
  const ReplicaVerdict drifting =
      JudgeReplicas(jobs, {Merged(kTurns, 150), Merged(kReplicas, 100), unsteady});
  EXPECT_FALSE(drifting.bits_agree);
  EXPECT_THAT(drifting.text, HasSubstr("ring of 2 ranks ended with other parameters in another"));
}

}  // namespace
}  // namespace gradsync
