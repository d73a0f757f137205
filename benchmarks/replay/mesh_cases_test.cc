#include "benchmarks/replay/mesh_cases.h"

#include <string>

#include "core/base/write_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;

// Two blocks, each 1 ms forward and 2 ms backward.
constexpr char kBlocks[] = R"(, "blocks": [
  {"name": "x", "forward_us": 1000, "backward_us": 2000, "output_bytes": 64, "tensors": ["a"]},
  {"name": "y", "forward_us": 1000, "backward_us": 2000, "output_bytes": 4, "tensors": ["b"]}])";

std::string Write(const std::string& name, int batch_size, const std::string& blocks = kBlocks) {
  const std::string path = testing::TempDir() + "/" + name;
  const std::string json = R"({"model": "two", "forward_us": 2000, "backward_us": 4000,
    "tensors": [{"name": "b", "numel": 16, "ready_us": 4000},
                {"name": "a", "numel": 16, "ready_us": 6000}], "batch_size": )" +
                           std::to_string(batch_size) + blocks + "}";
  EXPECT_TRUE(WriteFileAtomically(path, json).ok());
  return path;
}

ReplaySweepOptions Ring(const std::vector<std::string>& profiles) {
  ReplaySweepOptions options;
  options.profiles = profiles;
  options.topologies = {"ring"};
  return options;
}

MeshFlags Flags(const std::string& meshes) {
  MeshFlags flags;
  flags.meshes = meshes;
  return flags;
}

TEST(MeshCasesTest, BandwidthsAreOutermostAndEachCaseSaysWhatItsRanksDo) {
  ReplaySweepOptions options = Ring({Write("two.json", 8)});
  options.bandwidths = {"400mbit", "1gbit"};
  options.compute_scales = {"1", "2"};
  const auto cases = ListMeshCases(options, Flags("pipeline=2;data=2,pipeline=2"));
  ASSERT_TRUE(cases.ok()) << cases.status();
  ASSERT_EQ(cases->size(), 8);
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ((*cases)[i].replay.job.bandwidth, i < 4 ? "400mbit" : "1gbit");
  }
  const MeshCase& last = cases->back();
  EXPECT_EQ(last.replay.job.workers, 4);
  EXPECT_EQ(last.replay.spec.mesh(), "data=2,pipeline=2");
  EXPECT_EQ(last.replay.spec.split(), "1");
  EXPECT_EQ(last.replay.spec.step_samples(), 4 * 8);
  EXPECT_EQ(last.replay.one_worker_us, 4 * 6000);
  EXPECT_THAT(Describe(last.replay), HasSubstr("4 micro-batches of 32 samples, cut before 1"));
  const auto predicted = PredictMeshCase(last, LinkConstants());
  ASSERT_TRUE(predicted.ok()) << predicted.status();
  EXPECT_NEAR((*predicted)->step_ms_p50(), 2 * 5 * 3, 1);
}

TEST(MeshCasesTest, AGlobalBatchTakesTheProfileNearestToEachMicroBatch) {
  ReplaySweepOptions options = Ring({Write("eight.json", 8), Write("one.json", 1)});
  options.global_batch_size = 8;
  MeshFlags flags = Flags("pipeline=2");
  flags.micro_batches = {"1", "8"};
  const auto cases = ListMeshCases(options, flags);
  ASSERT_TRUE(cases.ok()) << cases.status();
  ASSERT_EQ(cases->size(), 2);
  EXPECT_EQ((*cases)[0].replay.one_worker_us, 6000);
  EXPECT_EQ((*cases)[1].replay.one_worker_us, 8 * 6000);
  // Without a network nothing is predicted.
  EXPECT_FALSE(PredictMeshCase((*cases)[0], LinkConstants())->has_value());
  const auto stages = StagesOfSpec((*cases)[1].replay.spec, (*cases)[1].predicted.mesh);
  ASSERT_TRUE(stages.ok()) << stages.status();
  EXPECT_EQ((*stages)[1].each.input_bytes, 64);
  EXPECT_EQ((*stages)[0].each.forward_us, 1000);
}

// One layer, of a width of 8 and 4 tokens: slice 0 of two takes 1 ms forward and 2 ms backward in
// each of three blocks.
std::string WriteSlice(const std::string& name, bool split_sequence) {
  const std::string path = testing::TempDir() + "/" + name;
  std::string blocks;
  for (const char* block : {"a", "b", "c"}) {
    blocks += std::string(blocks.empty() ? "" : ", ") + R"({"name": ")" + block +
              R"(", "forward_us": 1000, "backward_us": 2000, "tensors": [")" + block + "\"]}";
  }
  const std::string json = R"({"model": "two", "forward_us": 3000, "backward_us": 6000,
    "batch_size": 8, "slices": 2, "split_sequence": )" +
                           std::string(split_sequence ? "true" : "false") +
                           R"(, "gpt": {"layers": 1, "width": 8, "context": 4},
    "tensors": [{"name": "c", "numel": 16, "ready_us": 5000},
                {"name": "b", "numel": 16, "ready_us": 7000},
                {"name": "a", "numel": 16, "ready_us": 9000}], "blocks": [)" +
                           blocks + "]}";
  EXPECT_TRUE(WriteFileAtomically(path, json).ok());
  return path;
}

TEST(MeshCasesTest, SlicesReplayWhatWasRecordedOfOne) {
  ReplaySweepOptions options = Ring(
      {Write("whole.json", 8), WriteSlice("slice.json", false), WriteSlice("sequence.json", true)});
  options.bandwidths = {"1gbit"};
  MeshFlags flags = Flags("tensor=2;data=2");
  flags.micro_batches = {"2"};
  const auto cases = ListMeshCases(options, flags);
  ASSERT_TRUE(cases.ok()) << cases.status();
  ASSERT_EQ(cases->size(), 2);
  const MeshCase& slices = (*cases)[0];
  EXPECT_EQ(slices.replay.spec.profile().slices(), 2);
  EXPECT_FALSE(slices.replay.spec.profile().split_sequence());
  EXPECT_EQ(slices.replay.spec.other_profiles_size(), 0);
  EXPECT_EQ(slices.replay.one_worker_us, 2 * 2 * 9000);
  EXPECT_EQ((*cases)[1].replay.spec.profile().slices(), 0);
  const auto stages = StagesOfSpec(slices.replay.spec, slices.predicted.mesh);
  ASSERT_TRUE(stages.ok()) << stages.status();
  EXPECT_EQ(stages->size(), 1);
  EXPECT_EQ((*stages)[0].each.forward_meetings.size(), 1 + 2 + 2);
  const auto predicted = PredictMeshCase(slices, LinkConstants());
  ASSERT_TRUE(predicted.ok()) << predicted.status();
  EXPECT_GT((*predicted)->step_ms_p50(), 2 * 9);
  flags.split_sequence = true;
  EXPECT_TRUE(ListMeshCases(options, flags)->front().replay.spec.profile().split_sequence());
}

TEST(MeshCasesTest, MistakesAreNamed) {
  const std::string old = Write("old.json", 8, "");
  EXPECT_THAT(std::string(ListMeshCases(Ring({old}), Flags("pipeline=2")).status().message()),
              HasSubstr("record it again"));
  const std::string good = Write("good.json", 8);
  EXPECT_THAT(std::string(ListMeshCases(Ring({good}), Flags("pipeline=3")).status().message()),
              HasSubstr("--mesh"));
  ReplaySweepOptions steps = Ring({good});
  steps.steps = 1;
  EXPECT_THAT(std::string(ListMeshCases(steps, Flags("pipeline=2")).status().message()),
              HasSubstr("--steps"));
  ReplaySweepOptions scale = Ring({good});
  scale.compute_scales = {"x"};
  EXPECT_THAT(std::string(ListMeshCases(scale, Flags("pipeline=2")).status().message()),
              HasSubstr("--compute_scale"));
  ReplaySweepOptions link = Ring({good});
  link.links = {"grpc", "gloo"};
  EXPECT_THAT(std::string(ListMeshCases(link, Flags("pipeline=2")).status().message()),
              HasSubstr("--link: expected auto or grpc with --replay of a mesh"));
  ReplaySweepOptions compression = Ring({good});
  compression.compressions = {"fp16"};
  EXPECT_THAT(std::string(ListMeshCases(compression, Flags("pipeline=2")).status().message()),
              HasSubstr("--compression: expected none with --replay of a mesh"));
  EXPECT_FALSE(ListMeshCases(Ring({"/nowhere.json"}), Flags("pipeline=2")).ok());
  EXPECT_THAT(std::string(ListMeshCases(Ring({good}), Flags("tensor=2")).status().message()),
              HasSubstr("--profile: expected one recorded with --mesh=tensor=2"));
  MeshFlags sequence = Flags("data=2");
  sequence.split_sequence = true;
  EXPECT_THAT(std::string(ListMeshCases(Ring({good}), sequence).status().message()),
              HasSubstr("--sequence_parallel: expected false without slices"));
}

}  // namespace
}  // namespace gradsync
