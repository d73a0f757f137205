#include "core/group/mesh.h"

#include <set>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr MeshDimension kData = MeshDimension::kData;
constexpr MeshDimension kPipeline = MeshDimension::kPipeline;

Mesh Parsed(const std::string& text, int world_size) {
  const auto mesh = Mesh::Parse(text, world_size);
  EXPECT_TRUE(mesh.ok()) << mesh.status();
  return mesh.value_or(Mesh());
}

TEST(MeshTest, TheFirstDimensionIsTheSlowest) {
  const Mesh mesh = Parsed("data=2,pipeline=3", 6);
  EXPECT_EQ(mesh.size(kData), 2);
  EXPECT_EQ(mesh.size(kPipeline), 3);
  EXPECT_EQ(mesh.size(MeshDimension::kTensor), 1);
  EXPECT_EQ(mesh.Coordinate(4, kData), 1);
  EXPECT_EQ(mesh.Coordinate(4, kPipeline), 1);
  EXPECT_EQ(mesh.Coordinate(4, MeshDimension::kShard), 0);
  EXPECT_THAT(mesh.RanksAlong(4, kData), ElementsAre(1, 4));
  EXPECT_THAT(mesh.RanksAlong(4, kPipeline), ElementsAre(3, 4, 5));
  EXPECT_THAT(mesh.RanksAlong(4, MeshDimension::kTensor), ElementsAre(4));
  EXPECT_EQ(mesh.Describe(4), "data=1,pipeline=1");
  EXPECT_EQ(mesh.ToString(), "data=2,pipeline=3");
}

TEST(MeshTest, TheOrderOfNamesIsTheOrderOfRanks) {
  const Mesh mesh = Parsed("pipeline=3,data=2", 6);
  EXPECT_EQ(mesh.Coordinate(4, kData), 0);
  EXPECT_EQ(mesh.Coordinate(4, kPipeline), 2);
  EXPECT_THAT(mesh.RanksAlong(4, kData), ElementsAre(4, 5));
  EXPECT_THAT(mesh.RanksAlong(4, kPipeline), ElementsAre(0, 2, 4));
}

TEST(MeshTest, EveryRankIsInOneGroupOfEachDimensionAndNamesTellThemApart) {
  for (const char* text : {"data=2,pipeline=3", "pipeline=2,data=3", "data=6", "pipeline=6",
                           "tensor=1,data=2,pipeline=3"}) {
    const Mesh mesh = Parsed(text, 6);
    for (MeshDimension dimension : {kData, kPipeline}) {
      std::set<std::string> names;
      int members = 0;
      for (int rank = 0; rank < 6; ++rank) {
        const auto ranks = mesh.RanksAlong(rank, dimension);
        EXPECT_EQ(ranks[mesh.Coordinate(rank, dimension)], rank) << text;
        for (int other : ranks) {
          EXPECT_EQ(mesh.GroupName(other, dimension), mesh.GroupName(rank, dimension)) << text;
        }
        if (mesh.Coordinate(rank, dimension) != 0) continue;
        EXPECT_TRUE(names.insert(mesh.GroupName(rank, dimension)).second) << text;
        members += static_cast<int>(ranks.size());
      }
      EXPECT_EQ(members, 6) << text;
    }
  }
}

TEST(MeshTest, WithoutATextAllRanksAreAlongData) {
  EXPECT_EQ(Parsed("", 3).size(kData), 3);
  EXPECT_FALSE(Parsed("", 3).has_pipeline());
  EXPECT_FALSE(Parsed("data=3,pipeline=1", 3).has_pipeline());
  EXPECT_TRUE(Parsed("pipeline=3", 3).has_pipeline());
  EXPECT_EQ(Mesh().world_size(), 1);
  EXPECT_EQ(Mesh().Coordinate(0, kPipeline), 0);
}

TEST(MeshTest, RanksHaveSamplesOfTheirOwnAlongShardWhereThereIsOne) {
  EXPECT_EQ(Parsed("data=3,pipeline=2", 6).samples(), kData);
  EXPECT_EQ(Parsed("data=3,pipeline=2", 6).replicas(), 3);
  EXPECT_EQ(Parsed("data=1,shard=1", 1).samples(), kData);
  const Mesh mesh = Parsed("data=1,tensor=2,shard=3", 6);
  EXPECT_EQ(mesh.samples(), MeshDimension::kShard);
  EXPECT_EQ(mesh.replicas(), 3);
  EXPECT_FALSE(Parsed("shard=3", 3).cuts_model());
}

TEST(MeshTest, RefusesWhatIsNoMeshOfTheWorldInOneLine) {
  for (const char* text : {"data", "data=", "data=0", "data=-2,pipeline=-1", "data=1,data=2", "x=2",
                           "data=2,", ",data=2", "data=2=1", "data=two", "data=99999999999"}) {
    const auto mesh = Mesh::Parse(text, 2);
    ASSERT_FALSE(mesh.ok()) << text;
    EXPECT_EQ(mesh.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(mesh.status().message()), HasSubstr("--mesh: expected dimensions"));
  }
  EXPECT_THAT(std::string(Mesh::Parse("data=2,pipeline=2", 3).status().message()),
              HasSubstr("--mesh: expected sizes whose product is the world size, 3"));
  EXPECT_THAT(std::string(Mesh::Parse("data=65536,pipeline=65536", 3).status().message()),
              HasSubstr("product is the world size, 3"));
  EXPECT_THAT(std::string(Mesh::Parse("data=2,shard=2", 4).status().message()),
              HasSubstr("--mesh: expected data=1 with shard"));
}

TEST(MeshTest, ASubGroupHasItsOwnKeysAndRanksOfTheJob) {
  const Mesh mesh = Parsed("data=2,pipeline=2", 4);
  WorkerGroup all;
  all.rank = 3;
  all.world_size = 4;
  all.run_id = "run";
  const WorkerGroup stage = SubGroup(all, mesh, kData);
  EXPECT_EQ(stage.rank, 1);
  EXPECT_EQ(stage.world_size, 2);
  EXPECT_EQ(stage.RankOfJob(0), 1);
  EXPECT_EQ(stage.RankOfJob(1), 3);
  EXPECT_NE(stage.Key("x"), all.Key("x"));
  EXPECT_NE(stage.Key("x"), SubGroup(all, mesh, kPipeline).Key("x"));
  EXPECT_EQ(stage.JobKey("x"), all.Key("x"));
  EXPECT_EQ(all.RankOfJob(3), 3);
}

}  // namespace
}  // namespace gradsync
