// Jobs whose gradients go over plain TCP, by real processes: the bits of gRPC, whatever guards them.
// Killed, stopped and leaving processes: kill_test.cc, stopped_process_test.cc, early_leave_test.cc.

#include <fstream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "core/base/credentials.h"
#include "core/base/temporary_folder.h"
#include "core/links/raw_connection.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/run_record.pb.h"
#include "tests/job_processes.h"

namespace gradsync {
namespace {

using ::testing::SizeIs;

using Flags = std::vector<std::string>;

// The hash with which a job ends that says that it went over `link`. `guards`: of all processes.
std::string HashOver(const std::string& link, int workers, int servers, const Flags& flags,
                     const Flags& guards = {}) {
  LocalJobOptions job = SmallJob(workers, servers, With(With(flags, {"--link=" + link}), guards));
  job.server_flags = With(job.server_flags, guards);
  const std::vector<proto::WorkerMetrics> metrics = MetricsOf(job);
  EXPECT_THAT(metrics, SizeIs(workers));
  std::string hash;
  for (const proto::WorkerMetrics& worker : metrics) {
    EXPECT_EQ(worker.link(), link);
    EXPECT_TRUE(hash.empty() || hash == worker.params_sha256()) << "ranks differ";
    hash = worker.params_sha256();
  }
  EXPECT_THAT(hash, SizeIs(64));
  return hash;
}

class TcpJobTest : public ::testing::TestWithParam<int> {};

TEST_P(TcpJobTest, RingsAndServersEndWithTheBitsOfGrpc) {
  const int workers = GetParam();
  const std::string expected = HashOver("grpc", workers, 0, {"--topology=ring"});
  EXPECT_EQ(HashOver("tcp", workers, 0, {"--topology=ring"}), expected);
  EXPECT_EQ(HashOver("tcp", workers, 0, {"--topology=ps"}), expected) << "servers within workers";
  EXPECT_EQ(HashOver("tcp", workers, 2, {"--topology=ps"}), expected);
}

INSTANTIATE_TEST_SUITE_P(Workers, TcpJobTest, ::testing::Values(2, 3));

TEST(TcpJobOptionsTest, WhatGoesOverGrpcGoesOverTcp) {
  for (const Flags& flags :
       std::vector<Flags>{{"--topology=ring", "--compression=bf16"},
                          {"--topology=ps", "--update=owner", "--connections=3"},
                          {"--topology=ps", "--zero=3"}}) {
    const int servers = flags[0] == "--topology=ps" ? 1 : 0;
    EXPECT_EQ(HashOver("tcp", 2, servers, flags), HashOver("grpc", 2, servers, flags)) << flags[1];
  }
}

TEST(TcpJobOptionsTest, TlsAndTheSecretChangeNoBit) {
  const absl::StatusOr<TemporaryFolder> folder = TemporaryFolder::Create("tcp-job-");
  ASSERT_TRUE(folder.ok()) << folder.status();
  const auto file = [&folder](const std::string& name, const std::string& text) {
    std::ofstream(absl::StrCat(folder->path(), "/", name)) << text;
    return absl::StrCat(folder->path(), "/", name);
  };
  const TlsTexts texts = NewTlsTexts();
  const Flags tls = {"--tls_cert=" + file("cert.pem", texts.certificate),
                     "--tls_key=" + file("key.pem", texts.key)};
  const Flags mutual = With(tls, {"--tls_ca=" + file("ca.pem", texts.certificate),
                                  "--secret_file=" + file("secret", "a secret of this test")});
  const std::string expected = HashOver("tcp", 2, 0, {"--topology=ring"});
  EXPECT_EQ(HashOver("tcp", 2, 0, {"--topology=ring"}, tls), expected);
  EXPECT_EQ(HashOver("tcp", 2, 1, {"--topology=ps"}, mutual), expected);
  EXPECT_EQ(HashOver("grpc", 2, 1, {"--topology=ps"}, mutual), expected);
}

}  // namespace
}  // namespace gradsync
