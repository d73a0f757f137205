#include "gradsync/join/join.h"

#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/credentials.h"
#include "core/base/deadline.h"
#include "core/group/grpc_store.h"
#include "core/plan/job_spec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr absl::Duration kPatience = absl::Seconds(60);

using Joined = absl::StatusOr<std::unique_ptr<Member>>;

JoinOptions Ring() {
  JoinOptions options;
  options.sync.job.topology = Topology::kRing;
  return options;
}

// Ranks as threads, each with its own options; rank 0's store has any port.
std::vector<Joined> JoinAll(std::vector<JoinOptions> ranks) {
  std::promise<std::string> store;
  std::shared_future<std::string> address = store.get_future().share();
  std::vector<Joined> joined(ranks.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    threads.emplace_back([&, rank] {
      JoinOptions& options = ranks[rank];
      options.meet.rank = static_cast<int>(rank);
      options.meet.world_size = static_cast<int>(ranks.size());
      options.meet.master = rank == 0 ? "127.0.0.1:0" : address.get();
      options.meet.on_store = [&store](const std::string& at) {
        store.set_value(at);
        return absl::OkStatus();
      };
      joined[rank] = Join(options);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return joined;
}

TEST(JoinTest, RanksGetTheBackendThatWasAskedForAndTalk) {
  std::vector<JoinOptions> ranks(3, Ring());
  for (JoinOptions& options : ranks) options.sync.job.link = Link::kGrpc;
  const std::vector<Joined> members = JoinAll(ranks);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < members.size(); ++rank) {
    threads.emplace_back([&, rank] {
      ASSERT_TRUE(members[rank].ok()) << members[rank].status();
      Member& member = **members[rank];
      EXPECT_EQ(member.sync().identity().backend, Backend::kRingOverGrpc);
      const auto sum =
          member.side_channel().SumDoubles({static_cast<double>(rank)}, Deadline::In(kPatience));
      ASSERT_TRUE(sum.ok()) << sum.status();
      EXPECT_EQ(sum->at(0), 3);
      EXPECT_EQ(member.Leave(), absl::OkStatus());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(JoinTest, RanksOfOneHostShareMemoryUnlessTheySayOtherwise) {
  for (const Joined& member : JoinAll({Ring(), Ring()})) {
    ASSERT_TRUE(member.ok()) << member.status();
    EXPECT_EQ((*member)->sync().identity().backend, Backend::kRingOverShm);
    EXPECT_EQ((*member)->options().job.link, Link::kShm);
  }
}

TEST(JoinTest, WithoutServersTheFirstWorkersAreTheServers) {
  JoinOptions options;
  options.sync.job.topology = Topology::kPs;
  options.sync.job.link = Link::kGrpc;
  options.sync.job.owners = 2;
  std::vector<Joined> members = JoinAll(std::vector<JoinOptions>(3, options));
  for (const Joined& member : members) {
    ASSERT_TRUE(member.ok()) << member.status();
    EXPECT_EQ((*member)->sync().identity().backend, Backend::kPsOverGrpc);
    EXPECT_EQ((*member)->options().servers.size(), 2u);
    EXPECT_EQ((*member)->options().servers, (*members[0])->options().servers);
  }
  for (Joined& member : members) member->reset();
  options.sync.job.owners = 4;
  options.meet.master = "127.0.0.1:0";
  EXPECT_THAT(std::string(Join(options).status().message()),
              HasSubstr("--owners: expected at most 1"));
}

TEST(JoinTest, RanksThatAskForDifferentJobsAreToldSo) {
  JoinOptions other = Ring();
  other.sync.job.update = UpdateSite::kOwner;
  for (const Joined& member : JoinAll({Ring(), other})) {
    EXPECT_EQ(member.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(member.status().message()),
                HasSubstr("--update: expected the same on all ranks; rank 0 has worker, rank 1 has "
                          "owner"));
  }
}

TEST(JoinTest, ARankThatFailsBeforeItsBackendIsBoundEndsTheWaitOfOthers) {
  const std::vector<Joined> members = JoinAll({Ring(), Ring()});
  ASSERT_TRUE(members[0].ok() && members[1].ok());
  EXPECT_EQ((*members[1])->Fail(absl::DataLossError("no data here")).code(),
            absl::StatusCode::kDataLoss);
  const absl::Status told = (*members[0])->side_channel().Barrier(Deadline::In(kPatience));
  EXPECT_EQ(told.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(told.message()),
              HasSubstr("rank 1 failed first: DATA_LOSS: no data here"));
}

// Rank 0 waited five seconds for it, and ended as if all were well.
TEST(JoinTest, ARankThatEndsBeforeItHasLeftIsNamed) {
  std::vector<Joined> members = JoinAll({Ring(), Ring()});
  ASSERT_TRUE(members[0].ok() && members[1].ok());
  members[1]->reset();
  const absl::Status left = (*members[0])->Leave();
  EXPECT_EQ(left.code(), absl::StatusCode::kAborted) << left;
  EXPECT_THAT(std::string(left.message()), StartsWith("rank 1 left without"));
}

// One from another job took the place of server 0 in the judge's eyes, and ended this one when it left.
TEST(JoinTest, WhereServersAreGivenByAddressNoneComesByItself) {
  JoinOptions options;
  options.sync.job.topology = Topology::kPs;
  options.sync.job.link = Link::kGrpc;
  options.sync.servers = {"127.0.0.1:1"};
  options.sync.server_weights.by_host = false;
  options.meet.world_size = 1;
  options.meet.master = "127.0.0.1:0";
  std::string address;
  options.meet.on_store = [&address](const std::string& at) {
    address = at;
    return absl::OkStatus();
  };
  const Joined member = Join(options);
  ASSERT_TRUE(member.ok()) << member.status();
  StorePass pass;
  pass.server = true;
  pass.run_id = options.meet.run_id;
  const absl::Status stray =
      EnterStore(address, InsecureCredentials(), &pass, Deadline::In(kPatience), absl::Seconds(10))
          .status();
  EXPECT_EQ(stray.code(), absl::StatusCode::kResourceExhausted) << stray;
  EXPECT_THAT(std::string((*member)->NewGroup("second").status().message()),
              HasSubstr("servers with processes of their own"));
}

TEST(JoinTest, ANewGroupHasServersAndASideChannelOfItsOwn) {
  JoinOptions options;
  options.sync.job.topology = Topology::kPs;
  options.sync.job.link = Link::kGrpc;
  const std::vector<Joined> members = JoinAll(std::vector<JoinOptions>(2, options));
  std::vector<Joined> made(members.size());  // until all are done: one that just goes fails the job
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < members.size(); ++rank) {
    threads.emplace_back([&, rank] {
      ASSERT_TRUE(members[rank].ok()) << members[rank].status();
      Member& first = **members[rank];
      made[rank] = first.NewGroup("second");
      ASSERT_TRUE(made[rank].ok()) << made[rank].status();
      Member& second = **made[rank];
      EXPECT_EQ(second.sync().identity().backend, Backend::kPsOverGrpc);
      EXPECT_EQ(second.options().servers.size(), 2u);
      EXPECT_NE(second.options().servers, first.options().servers);
      for (const Member* member : {&second, &first}) {
        const auto sum =
            member->side_channel().SumDoubles({static_cast<double>(rank)}, Deadline::In(kPatience));
        ASSERT_TRUE(sum.ok()) << sum.status();
        EXPECT_EQ(sum->at(0), 1);
      }
      EXPECT_EQ(first.NewGroup("second").status().code(), absl::StatusCode::kInvalidArgument);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(JoinTest, ARankAloneNeedsNobody) {
  const Joined member = Join(JoinOptions());
  ASSERT_TRUE(member.ok()) << member.status();
  EXPECT_EQ((*member)->sync().identity().backend, Backend::kLocal);
  EXPECT_TRUE((*member)->side_channel().Barrier(Deadline::In(kPatience)).ok());
  EXPECT_EQ((*member)->Leave(), absl::OkStatus());
}

TEST(JoinTest, WhatCannotBeIsRefusedBeforeAnybodyIsMet) {
  const auto refusal = [](JoinOptions options) {
    options.meet.on_store = [](const std::string&) {
      ADD_FAILURE() << "reached the store";
      return absl::OkStatus();
    };
    const absl::Status status = Join(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  JoinOptions options = Ring();
  options.meet.world_size = 2;
  EXPECT_THAT(refusal(options), HasSubstr("--master: expected host:port"));
  options.meet.master = "here";
  EXPECT_THAT(refusal(options), HasSubstr("found \"here\""));
  options.meet.master = "127.0.0.1:0";
  options.meet.rank = 2;
  EXPECT_THAT(refusal(options), HasSubstr("--rank: expected 0 to 1"));
  options.meet.rank = 0;
  options.sync.servers = {"nobody"};
  EXPECT_THAT(refusal(options), HasSubstr("--servers: expected host:port"));
  options.sync.servers.clear();
  options.sync.job.link = Link::kGloo;
  EXPECT_THAT(refusal(options), HasSubstr("--link=gloo: this program links no Gloo"));
  options.sync.job.link = Link::kNccl;
  EXPECT_THAT(refusal(options), HasSubstr("--link=nccl: this build has no NCCL"));
  options.sync.job.topology = Topology::kLocal;
  EXPECT_THAT(refusal(options), HasSubstr("--link: "));
  options = JoinOptions();
  options.device.device = "cuda";
  EXPECT_THAT(Join(options).status().message(),
              HasSubstr("--device=cuda: this program links no GPU"));
}

}  // namespace
}  // namespace gradsync
