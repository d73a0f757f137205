// The lines are made by the formats in the sources of NCCL 2.28.9 (enqueue.cc, symmetric_sched.cc
// and debug.cc there); no log of a GPU was at hand.

#include "benchmarks/records/nccl_log.h"

#include <fstream>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

std::string Info(const std::string& text) {
  return absl::StrFormat("%s:%d:%d [%d] NCCL INFO %s\n", "node-1", 1234, 5678, 0, text);
}

std::string Line(const std::string& collective, int64_t bytes, const std::string& algorithm,
                 const std::string& protocol) {
  return Info(absl::StrFormat("%s: %d Bytes -> Algo %s proto %s channel{Lo..Hi}={%d..%d}",
                              collective, bytes, algorithm, protocol, 0, 23));
}

TEST(NcclLogTest, AlgorithmAndProtocolOfEveryCollectiveThoseWithMostBytesFirst) {
  EXPECT_EQ(NcclChosen(Line("AllReduce", 26214400, "RING", "SIMPLE")), "AllReduce RING/SIMPLE");
  const std::string log = absl::StrCat(
      "NCCL version 2.28.9+cuda13.0\n", Line("Broadcast", 26214400, "RING", "SIMPLE"),
      Info("NCCL_ALGO set by environment to Ring"), Line("AllReduce", 26214400, "RING", "SIMPLE"),
      Line("AllReduce", 8192, "RING", "LL"), Line("AllReduce", 26214400, "RING", "SIMPLE"),
      Line("AllGather", 32, "RING", "LL128"));
  EXPECT_EQ(NcclChosen(log),
            "AllReduce RING/LL RING/SIMPLE, Broadcast RING/SIMPLE, AllGather RING/LL128");
}

TEST(NcclLogTest, OtherAlgorithmsThanARingShow) {
  EXPECT_EQ(NcclChosen(Line("AllReduce", 4096, "TREE", "LL") +
                       Line("AllReduce", 1 << 20, "NVLS_TREE", "SIMPLE")),
            "AllReduce NVLS_TREE/SIMPLE TREE/LL");
  EXPECT_EQ(
      NcclChosen(Info("AllReduce [Symmetric]: 4096 Bytes -> Kernel AllReduce_AGxLL_R nchannels "
                      "8 nthreads 512 nWorks 1")),
      "AllReduce symmetric/AllReduce_AGxLL_R");
}

TEST(NcclLogTest, WhatIsNotUnderstoodIsUnknownAndNotGuessed) {
  const std::string good = Line("AllReduce", 4096, "RING", "LL");
  for (const std::string& line :
       {Info("4096 Bytes -> Algo 1 proto 2 time 12.5"),  // before 2.24
        Info("AllReduce: 4096 Bytes -> Algo 1 proto 2 channel{Lo..Hi}={0..1}"),
        Info("AllReduce: 4096 Bytes -> Algo Unknown proto LL channel{Lo..Hi}={0..1}"),
        Info("AllReduce: many Bytes -> Algo RING proto LL"),
        Info("AllReduce: 4096 Bytes -> Algo RING"),
        Info("AllReduce [Symmetric]: 4096 Bytes -> Algo RING proto LL"),
        Info("Bytes: 1 Bytes -> ")}) {
    EXPECT_EQ(NcclChosen(good + line), "unknown") << line;
  }
  EXPECT_EQ(NcclChosen(""), "unknown");
  EXPECT_EQ(NcclChosen("NCCL version 2.28.9+cuda13.0\n" + Info("comm 0x1 rank 0 nranks 2")),
            "unknown");
}

absl::optional<std::string> Nothing(absl::string_view) { return absl::nullopt; }

TEST(NcclLogTest, Rank0IsToLogIntoAFileThatIsReadAndRemoved) {
  std::string path;
  {
    const absl::StatusOr<NcclLog> log = NcclLog::ForLink(Link::kNccl, Nothing);
    ASSERT_TRUE(log.ok()) << log.status();
    const std::vector<std::string> environment = log->environment();
    ASSERT_THAT(environment, testing::SizeIs(3));
    EXPECT_EQ(environment[0], "NCCL_DEBUG=INFO");
    EXPECT_EQ(environment[1], "NCCL_DEBUG_SUBSYS=TUNING");
    path = std::string(absl::StripPrefix(environment[2], "NCCL_DEBUG_FILE="));
    EXPECT_EQ(log->Chosen(), "unknown");
    std::ofstream(path) << Line("AllReduce", 4096, "RING", "LL");
    EXPECT_EQ(log->Chosen(), "AllReduce RING/LL");
  }
  EXPECT_FALSE(std::ifstream(path).good());
}

TEST(NcclLogTest, OtherLinksAskForNothingAndTheUsersOwnLogIsLeftAlone) {
  const absl::StatusOr<NcclLog> other = NcclLog::ForLink(Link::kGrpc, Nothing);
  EXPECT_THAT(other->environment(), testing::IsEmpty());
  EXPECT_EQ(other->Chosen(), "");
  for (const char* variable : {"NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"}) {
    const absl::StatusOr<NcclLog> users =
        NcclLog::ForLink(Link::kNccl, [&](absl::string_view name) -> absl::optional<std::string> {
          if (name == variable) return "anything";
          return absl::nullopt;
        });
    EXPECT_THAT(users->environment(), testing::IsEmpty()) << variable;
    EXPECT_EQ(users->Chosen(), "unknown");
  }
}

}  // namespace
}  // namespace gradsync
