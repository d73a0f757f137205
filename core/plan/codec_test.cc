#include "core/plan/codec.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/plan/plan.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using Kind = ChunkForm::Kind;

TEST(CodecTest, NamesAreReadBack) {
  for (const char* name : {"none", "fp16", "bf16", "topk:0.01", "topk:1", "topk:0.333333"}) {
    const absl::StatusOr<Codec> codec = ParseCodec(name);
    ASSERT_TRUE(codec.ok()) << codec.status();
    EXPECT_EQ(CodecName(*codec), name);
  }
  EXPECT_EQ(*ParseCodec(""), Codec());
  const Codec third = {Codec::Kind::kTopK, 1.0 / 3};
  EXPECT_EQ(*ParseCodec(CodecName(third)), third);
}

TEST(CodecTest, OtherNamesAreRefused) {
  for (const char* name : {"fp8", "FP16", "topk", "topk:", "topk:0", "topk:-0.1", "topk:1.1",
                           "topk:nan", "topk:inf", "topk:1%", " none"}) {
    const absl::Status status = ParseCodec(name).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_TRUE(absl::StrContains(status.message(), "0 < R <= 1")) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), name)) << status;
  }
}

TEST(CodecTest, BytesPerChunkAreTheFormulas) {
  const auto up = [](const char* codec, int64_t elements) {
    return GradientForm(*ParseCodec(codec), elements).bytes();
  };
  const auto down = [](const char* codec, int64_t elements, int n) {
    return ReturnedForm(*ParseCodec(codec), elements, n, Returned::kMean).bytes();
  };
  EXPECT_EQ(up("none", 160), 640);
  EXPECT_EQ(up("fp16", 160), 320);
  EXPECT_EQ(up("bf16", 160), 320);
  EXPECT_EQ(up("topk:0.01", 160), 2 * 6);  // ceil(1.6) entries of 6 bytes
  EXPECT_EQ(up("topk:0.0001", 160), 6);    // at least one
  EXPECT_EQ(up("topk:0.01", 65536), 656 * 6);
  EXPECT_EQ(up("topk:0.01", 65552), 656 * 8);  // long indices
  EXPECT_EQ(up("topk:1", 160), 640);           // whole
  EXPECT_EQ(down("none", 160, 3), 640);
  EXPECT_EQ(down("bf16", 160, 3), 320);
  EXPECT_EQ(down("topk:0.01", 160, 3), 6 * 6);
  EXPECT_EQ(down("topk:0.1", 160, 6), 96 * 6);
  EXPECT_EQ(down("topk:0.1", 160, 7), 640);  // 112 entries are more than the whole
  EXPECT_EQ(up("topk:0.5", 0), 0);
  for (const char* codec : {"none", "fp16", "topk:0.1"}) {
    const ChunkForm form = ReturnedForm(*ParseCodec(codec), 160, 2, Returned::kParameters);
    EXPECT_EQ(form.kind, Kind::kFp32);
    EXPECT_EQ(form.bytes(), 640);
  }
}

TEST(CodecTest, TheWayBackHasRoomForAllContributions) {
  for (double ratio : {0.001, 0.01, 0.1, 0.3}) {
    const Codec codec = {Codec::Kind::kTopK, ratio};
    for (int64_t elements : {16, 160, 4096}) {
      for (int n = 1; n <= 8; ++n) {
        const ChunkForm up = GradientForm(codec, elements);
        const ChunkForm down = ReturnedForm(codec, elements, n, Returned::kMean);
        if (down.kind == Kind::kSparse) {
          EXPECT_GE(down.entries, std::min(elements, n * up.entries));
        }
      }
    }
  }
}

TEST(CodecTest, IsPartOfThePlansFingerprint) {
  OptimizerSpec optimizer;
  optimizer.groups.resize(1);
  std::vector<std::string> fingerprints;
  for (const char* name : {"none", "fp16", "bf16", "topk:0.1", "topk:0.2"}) {
    const absl::StatusOr<Plan> plan =
        Plan::FromBuckets({{"a", {3}, {1}, 0}}, {{0}}, optimizer, 2, 0, *ParseCodec(name));
    ASSERT_TRUE(plan.ok()) << plan.status();
    for (const std::string& other : fingerprints) EXPECT_NE(plan->fingerprint(), other);
    fingerprints.push_back(plan->fingerprint());
    EXPECT_TRUE(absl::StrContains(plan->Describe(), absl::StrCat("compression ", name, "\n")));
  }
  const Codec bad = {Codec::Kind::kTopK, 2};
  const absl::Status status =
      Plan::FromBuckets({{"a", {3}, {1}, 0}}, {{0}}, optimizer, 2, 0, bad).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace gradsync
