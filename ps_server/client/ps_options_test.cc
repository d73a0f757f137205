#include "ps_server/client/ps_options.h"

#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/group/key_value_store.h"
#include "core/plan/codec.h"
#include "core/plan/kinds.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Deadline Soon() { return Deadline::In(absl::Seconds(60)); }

Plan OneTensor(int64_t numel, const std::string& codec = "none") {
  OptimizerSpec optimizer;
  optimizer.groups.resize(1);
  return *Plan::FromBuckets({{"a", {numel}, {1}, 0}}, {{0}}, optimizer, 2, /*chunk_bytes=*/64,
                            *ParseCodec(codec));
}

PsOptions TwoServers() {
  PsOptions options;
  options.group.rank = 1;
  options.group.world_size = 2;
  options.group.run_id = "terms";
  options.group.attempt = 3;
  options.group.address = "10.0.0.2";
  options.group.store_address = "10.0.0.1:4000";
  options.servers = {"10.0.0.3:1", "10.0.0.4:1"};
  options.weights = {1, 2};
  options.connections = 5;
  return options;
}

TEST(PsTermsTest, AHelloSaysWhoTheWorkerIsAndWhatItTakesForGranted) {
  const Plan plan = OneTensor(100);
  const proto::Hello hello = MakeHello(TwoServers(), plan).value();
  EXPECT_EQ(hello.run_id(), "terms");
  EXPECT_EQ(hello.attempt(), 3);
  EXPECT_EQ(hello.rank(), 1);
  EXPECT_EQ(hello.address(), "10.0.0.2");
  EXPECT_EQ(hello.store(), "10.0.0.1:4000");
  EXPECT_EQ(hello.terms().world_size(), 2);
  EXPECT_EQ(hello.terms().connections(), 5);
  EXPECT_THAT(hello.terms().weights(), ElementsAre(1, 2));
  EXPECT_EQ(hello.terms().update_site(), proto::WORKER);
  EXPECT_EQ(hello.terms().fingerprint(), plan.fingerprint());
  EXPECT_THAT(hello.terms().consistency(), IsEmpty());
}

TEST(PsTermsTest, UpdateAtTheServersAndAnotherConsistencyAreTerms) {
  PsOptions options = TwoServers();
  options.update_site = UpdateSite::kOwner;
  options.consistency = *ParseConsistency("ssp:2");
  const proto::Hello hello = MakeHello(options, OneTensor(100)).value();
  EXPECT_EQ(hello.terms().update_site(), proto::OWNER);
  EXPECT_EQ(hello.terms().consistency(), "ssp:2");
}

TEST(PsTermsTest, OnlyWhoSharesMemorySaysWhereItRunsAndNamesAllServers) {
  PsOptions options = TwoServers();
  const proto::Hello without = MakeHello(options, OneTensor(100)).value();
  EXPECT_FALSE(without.terms().windows());
  EXPECT_FALSE(without.has_host());
  EXPECT_THAT(without.servers(), IsEmpty());
  options.windows = true;
  const proto::Hello with = MakeHello(options, OneTensor(100)).value();
  EXPECT_TRUE(with.terms().windows());
  EXPECT_NE(with.host().key(), "");
  EXPECT_THAT(with.servers(), ElementsAre("10.0.0.3:1", "10.0.0.4:1"));
}

// What both ranks of a group say of terms that may differ.
std::vector<absl::Status> Agree(const std::vector<Plan>& plans,
                                const std::vector<std::string>& consistencies) {
  const auto store = NewInMemoryStore();
  std::vector<absl::Status> agreed(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      PsOptions options = TwoServers();
      options.group.rank = rank;
      options.group.store = store;
      options.consistency = *ParseConsistency(consistencies[rank]);
      SideChannel side_channel(options.group, "ps");
      agreed[rank] = AgreeOnTerms(options, plans[rank], side_channel, Soon());
    });
  }
  for (std::thread& thread : threads) thread.join();
  return agreed;
}

TEST(PsTermsTest, RanksThatDifferAreToldInWhat) {
  const Plan plan = OneTensor(100);
  EXPECT_THAT(Agree({plan, plan}, {"asp", "asp"}), ElementsAre(absl::OkStatus(), absl::OkStatus()));
  for (const absl::Status& status : Agree({plan, plan}, {"bsp", "ssp:4"})) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(status.message(), "consistency differs: rank 0 has bsp, rank 1 has ssp:4");
  }
  const Plan other = OneTensor(101);
  for (const absl::Status& status : Agree({plan, other}, {"bsp", "asp"})) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr(plan.fingerprint()), HasSubstr(other.fingerprint())));
  }
}

TEST(PsTermsTest, CompressionNeedsStreamsAndAMean) {
  PsOptions options = TwoServers();
  EXPECT_TRUE(CheckCodec(options, OneTensor(100, "fp16")).ok());
  options.consistency = *ParseConsistency("asp");
  EXPECT_TRUE(CheckCodec(options, OneTensor(100)).ok());
  const absl::Status unrounded = CheckCodec(options, OneTensor(100, "fp16"));
  EXPECT_EQ(unrounded.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(unrounded.message(), HasSubstr("under asp"));
  options.consistency = Consistency();
  options.windows = true;
  EXPECT_TRUE(CheckCodec(options, OneTensor(100)).ok());
  EXPECT_EQ(CheckCodec(options, OneTensor(100, "bf16")).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace gradsync
