#include "worker/trace/predicted_step.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "core/base/trace_recorder.h"
#include "core/plan/plan.h"
#include "gtest/gtest.h"
#include "proto/step_trace.pb.h"
#include "simulator/cluster.h"
#include "simulator/simulate.h"

namespace gradsync {
namespace {

constexpr int64_t kMillisecond = 1000000;

Plan PlanOf(int workers) {
  std::vector<TensorSpec> tensors = {{"a", {250000}, {1}, 0}, {"b", {250007}, {1}, 0}};
  OptimizerSpec optimizer;
  optimizer.groups.resize(1);
  return *Plan::FromBuckets(tensors, {{0}, {1}}, optimizer, workers, 0, Codec());
}

void Add(TraceSpan what, int64_t begin, int64_t end, proto::ProcessTrace* trace, int bucket = -1) {
  trace->add_what(static_cast<int>(what));
  trace->add_way(0);
  trace->add_bucket(bucket);
  trace->add_slot(-1);
  trace->add_peer(-1);
  trace->add_step(3);
  trace->add_begin_ns(begin * kMillisecond);
  trace->add_length_ns((end - begin) * kMillisecond);
  trace->add_bytes(0);
}

// Step 3 of workers that are alike: 10 ms forward, 20 ms backward, 4 ms update.
std::vector<proto::ProcessTrace> Measured(int workers) {
  std::vector<proto::ProcessTrace> traces(workers);
  for (int rank = 0; rank < workers; ++rank) {
    traces[rank].set_process(rank);
    Add(TraceSpan::kForward, 100, 110, &traces[rank]);
    Add(TraceSpan::kBackward, 110, 130, &traces[rank]);
    Add(TraceSpan::kReady, 120, 120, &traces[rank], 0);
    Add(TraceSpan::kReady, 130, 130, &traces[rank], 1);
    Add(TraceSpan::kUpdate, 150, 154, &traces[rank], 1);
  }
  return traces;
}

double MillisecondsOf(const proto::ProcessTrace& trace, TraceSpan what) {
  double sum = 0;
  for (int i = 0; i < trace.what_size(); ++i) {
    if (trace.what(i) == static_cast<int>(what)) sum += 1e-6 * trace.length_ns(i);
  }
  return sum;
}

void ExpectTheSimulatorsStep(const Cluster& cluster, int workers) {
  const Plan plan = PlanOf(workers);
  const auto predicted = PredictStep(plan, cluster, Measured(workers), 3);
  ASSERT_TRUE(predicted.ok()) << predicted.status();
  ComputeTimes times;
  times.forward = 0.01;
  times.backward = 0.02;
  times.update = 0.004;
  times.bucket_ready = {0.02, 0.03};
  const auto step = SimulateStep(plan, cluster, times, SimulationMethod::kChunks);
  ASSERT_TRUE(step.ok()) << step.status();
  const int servers = cluster.ring ? 0 : cluster.servers;
  ASSERT_EQ(predicted->size(), workers + servers);
  const proto::ProcessTrace& first = (*predicted)[0];
  EXPECT_EQ(first.name(), "predicted: worker 0");
  EXPECT_EQ(*std::min_element(first.begin_ns().begin(), first.begin_ns().end()),
            100 * kMillisecond);
  // The prediction is of the rank that ends last.
  const proto::ProcessTrace* last = &first;
  for (int rank = 1; rank < workers; ++rank) {
    const proto::ProcessTrace& other = (*predicted)[rank];
    if (MillisecondsOf(other, TraceSpan::kStep) > MillisecondsOf(*last, TraceSpan::kStep)) {
      last = &other;
    }
  }
  EXPECT_NEAR(MillisecondsOf(*last, TraceSpan::kStep), 1e3 * step->step, 1e-3);
  EXPECT_NEAR(MillisecondsOf(*last, TraceSpan::kExposed), 1e3 * step->exposed, 1e-3);
  EXPECT_NEAR(MillisecondsOf(*last, TraceSpan::kUpdate), 1e3 * step->update, 1e-3);
  // What is sent is received.
  int sent = 0, received = 0;
  double bytes = 0;
  for (const proto::ProcessTrace& trace : *predicted) {
    for (int i = 0; i < trace.what_size(); ++i) {
      const bool sends = trace.what(i) == static_cast<int>(TraceSpan::kSend);
      sent += sends;
      received += trace.what(i) == static_cast<int>(TraceSpan::kReceive);
      if (sends) bytes += static_cast<double>(trace.bytes(i));
    }
  }
  EXPECT_GT(sent, 0);
  EXPECT_EQ(sent, received);
  const double all = static_cast<double>(plan.total_bytes());
  EXPECT_EQ(bytes, cluster.ring ? 2.0 * (workers - 1) * all : 2.0 * workers * all);
}

TEST(PredictedStepTest, ARingsIsTheSimulatorsStepPieceByPiece) {
  Cluster cluster;
  cluster.bytes_per_second = 1e8;
  cluster.constants.seconds_per_step = 0;
  ExpectTheSimulatorsStep(cluster, 2);
  ExpectTheSimulatorsStep(cluster, 3);
}

// Their buckets leave after backward, while gradients are added up.
TEST(PredictedStepTest, WhatReplicasDoAfterBackwardIsAPartOfIt) {
  std::vector<proto::ProcessTrace> traces = Measured(2);
  for (proto::ProcessTrace& trace : traces) {
    const auto backward =
        std::find(trace.what().begin(), trace.what().end(), static_cast<int>(TraceSpan::kBackward));
    trace.set_length_ns(static_cast<int>(backward - trace.what().begin()), 5 * kMillisecond);
    Add(TraceSpan::kGather, 115, 116, &trace);
    Add(TraceSpan::kReduce, 116, 130, &trace);
    Add(TraceSpan::kReplicate, 90, 100, &trace);
  }
  Cluster cluster;
  cluster.bytes_per_second = 1e8;
  const auto replicas = PredictStep(PlanOf(2), cluster, traces, 3);
  const auto plain = PredictStep(PlanOf(2), cluster, Measured(2), 3);
  ASSERT_TRUE(replicas.ok()) << replicas.status();
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(MillisecondsOf((*replicas)[0], TraceSpan::kStep),
            MillisecondsOf((*plain)[0], TraceSpan::kStep));
}

TEST(PredictedStepTest, SoIsTheServers) {
  Cluster cluster;
  cluster.ring = false;
  cluster.servers = 2;
  cluster.bytes_per_second = 1e8;
  ExpectTheSimulatorsStep(cluster, 3);
}

// Columns of a peer's trace were read beyond their ends.
TEST(PredictedStepTest, OfAPeersTraceWithoutAColumnNothingIsTaken) {
  std::vector<proto::ProcessTrace> traces = Measured(2);
  proto::ProcessTrace peers;
  peers.set_process(1);
  *peers.mutable_what() = traces[1].what();
  *peers.mutable_step() = traces[1].step();
  traces[1] = peers;
  Cluster cluster;
  cluster.bytes_per_second = 1e8;
  const auto predicted = PredictStep(PlanOf(2), cluster, traces, 3);
  EXPECT_TRUE(predicted.ok()) << predicted.status();
}

TEST(PredictedStepTest, AStepThatWasNotRecordedIsRefused) {
  Cluster cluster;
  cluster.bytes_per_second = 1e8;
  EXPECT_FALSE(PredictStep(PlanOf(2), cluster, Measured(2), 4).ok());
}

}  // namespace
}  // namespace gradsync
