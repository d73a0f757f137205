#include "core/sync/chunk_encoder.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/chunk_codec.h"
#include "core/plan/plan.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

Plan PlanWith(const std::string& codec) {
  OptimizerSpec optimizer;
  optimizer.groups.resize(1);
  return *Plan::FromBuckets({{"a", {700}, {1}, 0}, {"b", {3}, {1}, 0}}, {{0}, {1}}, optimizer, 2,
                            /*chunk_bytes=*/256, *ParseCodec(codec));
}

std::vector<ChunkId> Chunks(const Plan& plan) {
  std::vector<ChunkId> chunks;
  for (int b = 0; b < static_cast<int>(plan.buckets().size()); ++b) {
    for (int slot = 0; slot < plan.buckets()[b].layout.slots(); ++slot) {
      if (!plan.buckets()[b].layout.range(slot).empty()) chunks.push_back({b, slot});
    }
  }
  return chunks;
}

// Whole numbers, so that sums of some steps are exact whatever the order.
float Gradient(int64_t step, int bucket, int64_t i) {
  return static_cast<float>((step * 104729 + bucket * 7919 + i * i * 15485863) % 201 - 100);
}

TEST(ChunkEncoderTest, WithoutCompressionThePayloadIsTheGradientsOwnMemory) {
  const Plan plan = PlanWith("none");
  ChunkEncoder encoder(plan);
  const std::vector<float> grad(plan.buckets()[0].numel, 1.0f);
  const absl::Span<const char> payload = encoder.EncodeGradient({0, 0}, grad.data(), 1);
  EXPECT_EQ(static_cast<const void*>(payload.data()), grad.data());
  EXPECT_EQ(static_cast<int64_t>(payload.size()), plan.buckets()[0].layout.range(0).size() * 4);
}

TEST(ChunkEncoderTest, PayloadsOfDifferentChunksDoNotOverlap) {
  for (const char* codec : {"fp16", "bf16", "topk:0.1", "topk:1"}) {
    const Plan plan = PlanWith(codec);
    ChunkEncoder encoder(plan);
    std::vector<absl::Span<const char>> payloads;
    std::vector<std::string> written;
    std::vector<float> grad;
    for (ChunkId id : Chunks(plan)) {
      const ElementRange range = plan.buckets()[id.bucket].layout.range(id.slot);
      grad.clear();
      for (int64_t i = range.begin; i < range.end; ++i) grad.push_back(Gradient(1, id.bucket, i));
      payloads.push_back(encoder.EncodeGradient(id, grad.data(), 1));
      written.emplace_back(payloads.back().data(), payloads.back().size());
      EXPECT_EQ(static_cast<int64_t>(payloads.back().size()),
                GradientForm(plan.codec(), range.size()).bytes());
    }
    for (size_t i = 0; i < payloads.size(); ++i) {
      EXPECT_EQ(std::string(payloads[i].data(), payloads[i].size()), written[i]) << codec;
    }
  }
}

// What error feedback is for: nothing is lost, only late.
TEST(ChunkEncoderTest, WhatWasSentAndWhatIsKeptAddUpToAllGradients) {
  for (const char* codec : {"topk:0.01", "topk:0.1", "topk:0.6", "topk:1"}) {
    const Plan plan = PlanWith(codec);
    ChunkEncoder encoder(plan);
    for (ChunkId id : Chunks(plan)) {
      const ElementRange range = plan.buckets()[id.bucket].layout.range(id.slot);
      const ChunkForm form = GradientForm(plan.codec(), range.size());
      std::vector<float> sent(range.size(), 0.0f);
      std::vector<float> all(range.size(), 0.0f);
      for (int64_t step = 1; step <= 20; ++step) {
        std::vector<float> grad;
        for (int64_t i = range.begin; i < range.end; ++i) {
          grad.push_back(Gradient(step, id.bucket, i));
          all[i - range.begin] += grad.back();
        }
        const absl::Span<const char> payload = encoder.EncodeGradient(id, grad.data(), 1);
        ChunkDecoder decoder(form, ChunkDecoder::Mode::kAdd, sent.data());
        ASSERT_TRUE(decoder.Consume({payload.data(), payload.size()}).ok());
        const float* const kept = encoder.residual(id.bucket).data() + range.begin;
        for (int64_t i = 0; i < range.size(); ++i) {
          ASSERT_EQ(sent[i] + kept[i], all[i]) << codec << " step " << step << " element " << i;
        }
      }
    }
  }
}

TEST(ChunkEncoderTest, WhatIsKeptFollowsTheLossScale) {
  const Plan plan = PlanWith("topk:0.01");
  ChunkEncoder encoder(plan);
  const int64_t n = plan.buckets()[0].layout.range(0).size();
  std::vector<float> grad(n, 1.0f);
  grad[0] = 100;
  encoder.EncodeGradient({0, 0}, grad.data(), 1.0);
  EXPECT_EQ(encoder.residual(0)[1], 1);
  std::vector<float> none(n, 0.0f);
  encoder.EncodeGradient({0, 0}, none.data(), 1.0 / 8);  // the loss is now scaled by 8; sends [1]
  EXPECT_EQ(encoder.residual(0)[2], 8);
}

}  // namespace
}  // namespace gradsync
