// What a stranger's hello does to a job that trains: nothing.

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/sha256.h"
#include "core/links/grpc_stream.h"
#include "core/links/in_process_stream.h"
#include "core/links/tcp_stream.h"
#include "gtest/gtest.h"
#include "ps_server/raw_worker.h"
#include "ps_server/server.h"
#include "tests/ps_group.h"
#include "tests/rank_threads.h"
#include "tests/reference.h"
#include "tests/run_step.h"

namespace gradsync {
namespace {

constexpr int kWorkers = 3;
constexpr int kSteps = 6;

PsOptions At(UpdateSite site) {
  PsOptions options;
  options.update_site = site;
  return options;
}

// Of what the last exchange left: parameters from their owners, or means.
std::string Hash(const std::vector<GradBucket>& buckets, UpdateSite site) {
  std::string bytes;
  for (const std::vector<float>& flat :
       Read(buckets, site == UpdateSite::kOwner ? &GradBucket::param : &GradBucket::grad)) {
    bytes.append(reinterpret_cast<const char*>(flat.data()), flat.size() * sizeof(float));
  }
  return Sha256Hex(bytes);
}

// Trains, with `between` called by rank 0 after each step, and returns what rank 0 ends with.
std::string Train(PsGroup& group, UpdateSite site, const std::function<void(int64_t)>& between) {
  const Plan plan = UnevenPlan(kWorkers);
  std::string hash;
  RunRanks(kWorkers, [&](int rank) {
    const std::unique_ptr<GradientSync> sync = group.Worker(rank);
    const auto buckets = sync->Bind(plan, Soon());
    ASSERT_TRUE(buckets.ok()) << buckets.status();
    if (rank == 0) Write(RandomValues(plan, 7), *buckets, &GradBucket::param);
    ASSERT_EQ(sync->BroadcastParameters(Soon()), absl::OkStatus());
    for (int64_t s = 1; s <= kSteps; ++s) {
      Write(RandomValues(plan, 100 * s + rank), *buckets, &GradBucket::grad);
      ASSERT_EQ(RunStep(*sync, plan, s), absl::OkStatus());
      if (rank == 0) between(s);
    }
    ASSERT_EQ(sync->Shutdown(Soon()), absl::OkStatus());
    if (rank == 0) hash = Hash(*buckets, site);
  });
  return hash;
}

// The server read its workers' names out of bounds, and the job ended, when somebody said a hello
// of another world size with a rank that this job does not have.
TEST(StrayHelloTest, AnotherWorldSizeIsRefusedAloneAndTheJobEndsWithItsHash) {
  const std::pair<int, int> strangers[] = {{-1, 8}, {0, 8}, {2, 8}, {kWorkers, 8}, {65535, 65536}};
  for (const auto& link : {NewInProcessLink(), NewGrpcLink(), NewTcpLink()}) {
    for (const UpdateSite site : {UpdateSite::kWorker, UpdateSite::kOwner}) {
      PsGroup undisturbed(link, kWorkers, 2, At(site));
      const std::string expected = Train(undisturbed, site, [](int64_t) {});
      PsGroup group(link, kWorkers, 2, At(site));
      const std::string found = Train(group, site, [&](int64_t step) {
        if (step > 5) return;
        const auto& [rank, world_size] = strangers[step - 1];
        proto::Hello hello = RawStream::HelloFor(UnevenPlan(kWorkers), rank);
        hello.mutable_terms()->set_world_size(world_size);
        for (int server : {0, 1}) {
          RawStream stranger(*link, group.address(server));
          stranger.SayHello(hello);
          stranger.Push({0, 0}, StepOptions(), 64);
          const absl::Status refused = stranger.AwaitFailure();
          EXPECT_TRUE(absl::IsFailedPrecondition(refused) || absl::IsInvalidArgument(refused))
              << refused;
          EXPECT_TRUE(absl::StrContains(refused.message(), absl::StrCat(rank))) << refused;
        }
      });
      EXPECT_EQ(found, expected);
      for (int server : {0, 1}) EXPECT_EQ(group.server(server).Wait(), absl::OkStatus());
    }
  }
}

// A server that was told of no job took the run from the hello, and let in who had named another one
// where it is looked at first: then all workers of the job were strangers to it.
TEST(StrayHelloTest, AHelloOfAnotherRunThanItsStreamIsRefusedAloneByAServerThatWasToldNothing) {
  GrpcLinkOptions as_worker;
  as_worker.proof.run = "test";
  const std::shared_ptr<StreamLink> link = NewGrpcLink(as_worker);
  ServerOptions options;
  options.link = link;
  options.limits.proof = true;
  const std::unique_ptr<ParameterServer> server = *ParameterServer::Start(options);
  const Plan plan = UnevenPlan(1);
  proto::Hello other = RawStream::HelloFor(plan, 0);
  other.set_run_id("another");
  RawStream stranger(*link, server->address());
  stranger.SayHello(other);
  EXPECT_EQ(stranger.AwaitFailure(),
            absl::InvalidArgumentError(
                "hello: expected the run that the stream's metadata name, found another"));
  RawStream worker(*link, server->address());
  worker.SayHello(RawStream::HelloFor(plan, 0));
  EXPECT_TRUE(worker.Await(proto::FrameHeader::HELLO).has_value());
}

}  // namespace
}  // namespace gradsync
