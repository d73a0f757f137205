#include "benchmarks/options/job_sweep.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

SweepRules OnHosts() {
  SweepRules rules;
  rules.topologies = {Topology::kRing, Topology::kPs, Topology::kLocal};
  rules.links = {Link::kAuto, Link::kGrpc, Link::kTcp,    Link::kShm,
                 Link::kGloo, Link::kNccl, Link::kCudaIpc};
  rules.on_hosts = true;
  return rules;
}

SweepRules OnThisHost() {
  SweepRules rules = OnHosts();
  rules.on_hosts = false;
  return rules;
}

std::vector<PlacedJob> JobsOf(const JobSweep& sweep) {
  std::vector<PlacedJob> all;
  for (int workers : sweep.workers) {
    for (const PlacedJob& job : ListJobs(sweep, workers, "")) all.push_back(job);
  }
  return all;
}

std::vector<std::string> Described(const SweepFlags& flags, const SweepRules& rules) {
  const absl::StatusOr<JobSweep> sweep = ParseJobSweep(flags, rules);
  EXPECT_TRUE(sweep.ok()) << sweep.status();
  std::vector<std::string> described;
  if (!sweep.ok()) return described;
  for (const PlacedJob& job : JobsOf(*sweep)) {
    described.push_back(DescribeKind(job.spec) + DescribeServers(job));
  }
  return described;
}

// Of flags or, if these are right each by itself, of the jobs.
std::string ErrorOf(const SweepFlags& flags, const SweepRules& rules) {
  const absl::StatusOr<JobSweep> sweep = ParseJobSweep(flags, rules);
  const absl::Status status = sweep.ok() ? CheckAllOccur(*sweep, JobsOf(*sweep)) : sweep.status();
  EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
  return std::string(status.message());
}

TEST(JobSweepTest, JobsAreAllThatCanBeByTopologyLinkUpdateServersCodecAndConsistency) {
  SweepFlags flags;
  flags.topologies = {"ring", "ps", "local"};
  flags.links = {"grpc", "gloo"};
  flags.updates = {"worker", "owner"};
  flags.servers = {"2"};
  flags.compressions = {"none", "topk:0.1"};
  flags.consistencies = {"bsp", "asp"};
  EXPECT_THAT(Described(flags, OnThisHost()),
              ElementsAre("ring over grpc", "ring over grpc, update at owner", "ring over gloo",
                          "ps over grpc, servers 2", "ps over grpc, topk:0.1, servers 2",
                          "ps over grpc, update at owner, servers 2",
                          "ps over grpc, update at owner, asp, servers 2",
                          "ps over grpc, update at owner, topk:0.1, servers 2", "local",
                          "local, update at owner"));
}

TEST(JobSweepTest, OwnersThatKeepThingsForAllUpdateWhateverWasAskedFor) {
  SweepFlags flags;
  flags.topologies = {"ring", "local"};
  flags.links = {"grpc"};
  flags.updates = {"worker", "owner"};
  flags.zeros = {"0", "2", "3"};
  const absl::StatusOr<JobSweep> sweep = ParseJobSweep(flags, OnHosts());
  ASSERT_TRUE(sweep.ok()) << sweep.status();
  std::vector<std::string> jobs;
  for (const PlacedJob& job : JobsOf(*sweep)) {
    jobs.push_back(DescribeKind(job.spec) + ", " + std::to_string(job.zero));
  }
  EXPECT_THAT(
      jobs, ElementsAre("ring over grpc, 0", "ring over grpc, update at owner, 0",
                        "ring over grpc, update at owner, 2", "ring over grpc, update at owner, 3",
                        "local, 0", "local, update at owner, 0", "local, update at owner, 2"));
  EXPECT_EQ(ErrorOf(flags, OnHosts()), "");
  flags.topologies = {"local"};
  flags.links = {"auto"};
  EXPECT_THAT(ErrorOf(flags, OnHosts()),
              HasSubstr("--zero: expected 0 to 2 with --topology=local"));
  flags.zeros = {"x"};
  EXPECT_THAT(ErrorOf(flags, OnHosts()), HasSubstr("--zero: expected some of 0 to 3, found \"x\""));
  flags.topologies = {"ps"};
  flags.updates = {"worker"};
  flags.zeros = {"2"};
  flags.consistencies = {"asp"};
  EXPECT_THAT(ErrorOf(flags, OnHosts()), HasSubstr("--zero: expected 0 or 1 with --consistency"));
}

TEST(JobSweepTest, OnlyParameterServersArePlacedEachPlacementWithEachCountThatFits) {
  SweepFlags flags;
  flags.servers = {"1", "3"};
  flags.placements = {"dedicated", "colocated", "mixed"};
  EXPECT_THAT(Described(flags, OnHosts()),
              ElementsAre("ring", "ps, servers 1", "ps, servers 3", "ps, servers 1 colocated",
                          "ps, servers 1 mixed"));
}

TEST(JobSweepTest, ServersThatAreRanksAreMeasuredWhereTheProgramCan) {
  SweepFlags flags;
  flags.links = {"nccl"};
  flags.servers = {"1", "3"};
  SweepRules rules = OnThisHost();
  EXPECT_THAT(Described(flags, rules), ElementsAre("ring over nccl"));
  rules.ranks_own = true;
  EXPECT_THAT(Described(flags, rules),
              ElementsAre("ring over nccl", "ps over nccl, servers 1 colocated"));
  EXPECT_EQ(ErrorOf(flags, rules), "");
  flags.topologies = {"ps"};
  flags.servers = {"3"};
  EXPECT_EQ(ErrorOf(flags, rules),
            "--servers: expected a number that fits --placement and --workers, found none");
}

TEST(JobSweepTest, WhereNoneOfTheConsistenciesCanBeBulkIsTakenIfTheProgramSaysSo) {
  SweepFlags flags;
  flags.updates = {"owner"};
  flags.consistencies = {"ssp:2", "asp"};
  SweepRules rules = OnThisHost();
  EXPECT_EQ(ErrorOf(flags, rules),
            "--consistency: expected bsp too, for --topology=ring, found \"ssp:2,asp\"");
  rules.bulk_elsewhere = true;
  EXPECT_EQ(ErrorOf(flags, rules), "");
  EXPECT_THAT(Described(flags, rules),
              ElementsAre("ring, update at owner", "ps, update at owner, ssp:2, servers 1",
                          "ps, update at owner, asp, servers 1"));
}

TEST(JobSweepTest, ConsistencyOtherThanBspNeedsServersThatUpdateOverGrpc) {
  using Names = std::vector<std::string>;
  const auto error = [](const Names& values, const Names& topologies, const Names& updates,
                        const Names& links, const Names& compressions) {
    SweepFlags flags;
    flags.consistencies = values;
    flags.topologies = topologies;
    flags.updates = updates;
    flags.links = links;
    flags.compressions = compressions;
    return ErrorOf(flags, OnThisHost());
  };
  const Names all = {"bsp", "ssp:2", "asp"};
  EXPECT_EQ(error(all, {"ring", "ps"}, {"worker", "owner"}, {"shm", "grpc"}, {"none"}), "");
  EXPECT_EQ(error(all, {"ps"}, {"owner"}, {"auto"}, {"bf16", "none"}), "");
  EXPECT_EQ(error({"bsp"}, {"ring"}, {"worker"}, {"gloo"}, {"none"}), "");
  EXPECT_EQ(error({}, {"ps"}, {"owner"}, {"grpc"}, {"none"}),
            "--consistency: expected some of bsp, ssp:S, asp, found \"\"");
  EXPECT_EQ(error({"asp"}, {"ring"}, {"owner"}, {"grpc"}, {"none"}),
            "--consistency: expected bsp without ps among --topology, found \"asp\"");
  EXPECT_EQ(error({"asp"}, {"ps"}, {"worker"}, {"grpc"}, {"none"}),
            "--consistency: expected bsp without owner among --update, found \"asp\"");
  EXPECT_EQ(error({"ssp:2"}, {"ps"}, {"owner"}, {"shm"}, {"none"}),
            "--consistency: expected bsp without grpc among --link, found \"ssp:2\"");
  EXPECT_EQ(error({"asp"}, {"ps"}, {"owner"}, {"grpc"}, {"bf16"}),
            "--consistency: expected bsp without none among --compression, found \"asp\"");
}

TEST(JobSweepTest, WhatOccursInNoJobIsAnErrorThatSaysWhatItLacks) {
  SweepFlags flags;
  flags.topologies = {"ps"};
  flags.links = {"grpc", "gloo"};
  EXPECT_EQ(ErrorOf(flags, OnThisHost()),
            "--link: expected grpc, or ring among --topology, found \"gloo\"");
  flags.topologies = {"ring", "ps"};
  flags.links = {"gloo"};
  EXPECT_EQ(ErrorOf(flags, OnThisHost()),
            "--link: expected grpc too, for --topology=ps, found \"gloo\"");
  flags.topologies = {"ring"};
  flags.updates = {"worker", "owner"};
  EXPECT_EQ(ErrorOf(flags, OnThisHost()),
            "--update: expected worker with --link=gloo, which has no reduce-scatter, found "
            "\"owner\"");
  flags = SweepFlags();
  flags.topologies = {"ring"};
  flags.compressions = {"bf16", "topk:0.5"};
  EXPECT_EQ(ErrorOf(flags, OnThisHost()),
            "--compression: expected ps among --topology for topk:0.5, found \"topk:0.5\"");
  flags.compressions = {"none", "bf16"};
  flags.links = {"shm"};
  EXPECT_EQ(ErrorOf(flags, OnThisHost()),
            "--compression: expected grpc among --link for bf16, found \"bf16\"");
}

TEST(JobSweepTest, EachPlacementThatWasAskedForOccurs) {
  SweepFlags flags;
  flags.placements = {"dedicated", "mixed"};
  flags.servers = {"2"};
  EXPECT_EQ(ErrorOf(flags, OnHosts()),
            "--placement: expected at most as many --servers as --workers for colocated, fewer for "
            "mixed, found \"mixed\"");
  SweepRules spare = OnHosts();
  spare.spare_placements = true;
  EXPECT_EQ(ErrorOf(flags, spare), "");
  flags.topologies = {"ring"};
  EXPECT_EQ(ErrorOf(flags, OnHosts()), "");
}

TEST(JobSweepTest, OtherSpellingsAreThePluralTheSingularAndThoseOfNcclTests) {
  const std::map<std::string, std::string> aliases = SweepAliases();
  EXPECT_EQ(aliases.at("topologies"), "topology");
  EXPECT_EQ(aliases.at("links"), "link");
  EXPECT_EQ(aliases.at("ranks"), "workers");
  EXPECT_EQ(aliases.at("bandwidths"), "bandwidth");
  EXPECT_EQ(aliases.at("b"), "min_bytes");
  for (const auto& [alias, flag] : aliases) EXPECT_EQ(aliases.count(flag), 0u) << flag;
}

TEST(JobSweepTest, ValuesThatAreNoneNameTheirFlag) {
  const auto error = [](auto change, const SweepRules& rules) {
    SweepFlags flags;
    change(&flags);
    return ErrorOf(flags, rules);
  };
  EXPECT_EQ(error([](SweepFlags* f) { f->topologies = {"star"}; }, OnHosts()),
            "--topology: expected some of ring, ps, local, found \"star\"");
  EXPECT_THAT(error([](SweepFlags* f) { f->links = {}; }, OnHosts()), HasSubstr("--link: "));
  EXPECT_THAT(error([](SweepFlags* f) { f->workers = {"0"}; }, OnHosts()),
              HasSubstr("--workers: "));
  EXPECT_THAT(error([](SweepFlags* f) { f->placements = {"mixed"}; }, OnThisHost()),
              HasSubstr("--placement: expected dedicated, or --bandwidth"));
  EXPECT_THAT(
      error(
          [](SweepFlags* f) {
            f->links = {"grpc", "shm"};
          },
          OnHosts()),
      HasSubstr("--link: expected grpc, tcp, gloo or auto with --bandwidth, whose hosts share"));
  SweepRules dense = OnHosts();
  dense.sparse = false;
  EXPECT_THAT(error([](SweepFlags* f) { f->compressions = {"topk:0.1"}; }, dense),
              HasSubstr("--compression: expected some of none, fp16, bf16 (compare"));
}

}  // namespace
}  // namespace gradsync
