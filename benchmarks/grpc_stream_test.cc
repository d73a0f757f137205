// Runs the program itself, with real ranks and servers.

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "benchmarks/ranks/rank_spec.h"
#include "benchmarks/records/proto_json.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "proto/run_record.pb.h"
#include "tools/local_job.h"

namespace gradsync {
namespace {

constexpr char kProgram[] = "benchmarks/grpc_stream_rank";

LocalJobResult RunStreams(int workers, int servers, const std::string& streams) {
  proto::RankSpec spec;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(streams, spec.mutable_grpc_streams()));
  const std::unique_ptr<RankFiles> files = RankFiles::Create(spec, absl::Seconds(60)).value();
  LocalJobOptions job;
  job.worker_binary = job.server_binary = kProgram;
  job.workers = workers;
  job.servers = servers;
  job.worker_flags = {files->flag()};
  job.server_flags = {files->flag(), "--world_size=" + std::to_string(workers)};
  job.collect_metrics = true;
  auto result = RunLocalJob(job);
  EXPECT_TRUE(result.ok()) << result.status();
  return *result;
}

void ExpectMeasured(const LocalJobResult& result, int iterations, double tx_bytes) {
  ASSERT_EQ(result.exit_code, 0) << result.failure << ": " << result.failure_detail;
  for (const std::string& json : result.worker_metrics) {
    proto::ExchangeMetrics metrics;
    ASSERT_TRUE(ParseJson(json, "metrics", &metrics).ok()) << json;
    EXPECT_EQ(metrics.wire_tx_bytes_per_step(), tx_bytes);
    ASSERT_EQ(metrics.begin_us_size(), iterations);
    ASSERT_EQ(metrics.end_us_size(), iterations);
    for (int i = 0; i < iterations; ++i) EXPECT_GT(metrics.end_us(i), metrics.begin_us(i));
  }
}

TEST(GrpcStreamTest, ARingOfRanksSendsWhatARingAllreduceWould) {
  ExpectMeasured(
      RunStreams(2, 0,
                 "connections: 4 bytes: 1000003 message_bytes: 65536 warmup: 2 iterations: 20"),
      20, 1000003);
  ExpectMeasured(
      RunStreams(3, 0, "connections: 4 bytes: 300000 message_bytes: 1000000 iterations: 3"), 3,
      400000);
}

TEST(GrpcStreamTest, RanksAndServersSendAsMuchToEachOther) {
  ExpectMeasured(
      RunStreams(2, 2,
                 "connections: 2 bytes: 1000003 message_bytes: 65536 warmup: 2 iterations: 20"),
      20, 1000003);
  ExpectMeasured(RunStreams(3, 1, "connections: 4 bytes: 4097 message_bytes: 4096 iterations: 50"),
                 50, 4097);
}

TEST(GrpcStreamTest, TooFewBytesForTheStreamsAreRefused) {
  const LocalJobResult result =
      RunStreams(2, 0, "connections: 4 bytes: 3 message_bytes: 1048576 iterations: 1");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.failure_detail, testing::HasSubstr("at least 1 for each of 4 streams"));
}

}  // namespace
}  // namespace gradsync
