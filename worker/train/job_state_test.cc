#include "worker/train/job_state.h"

#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/ops/arange.h"
#include "ATen/ops/equal.h"
#include "ATen/ops/rand.h"
#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "c10/core/Device.h"
#include "gtest/gtest.h"
#include "torch/nn/module.h"

namespace gradsync {
namespace {

// One parameter [2, 3, 2, 2], in this memory format.
class OneWeight : public torch::nn::Module {
 public:
  explicit OneWeight(at::MemoryFormat format) {
    register_parameter("w", at::arange(24, at::kFloat).view({2, 3, 2, 2}).contiguous(format));
  }
};

JobState State() {
  JobState state;
  state.step = 120;
  state.epoch = 3;
  state.position = 17;
  state.skipped_steps = 2;
  state.loss_scaler = LossScaler::State{65536.0 / 3, 77};
  state.optimizer.step = 118;
  for (int i = 0; i < 24; ++i) {
    state.optimizer.slots["w"]["momentum_buffer"].push_back(static_cast<float>(i));
  }
  state.world_size = 2;
  state.samples = 50000;
  state.chunk_bytes = 96 << 10;
  state.threads = 3;
  state.random = {"first", ""};
  state.best_step = 80;
  state.best_accuracy = 0.1;
  state.flags = {{"model", "a \"model\""}, {"data", ""}};
  return state;
}

TEST(JobStateTest, WhatIsWrittenIsRead) {
  const OneWeight module(at::MemoryFormat::Contiguous);
  const JobState state = State();
  const auto file = EncodeJobState(state, module);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto read = DecodeJobState(*file, module);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->step, state.step);
  EXPECT_EQ(read->epoch, state.epoch);
  EXPECT_EQ(read->position, state.position);
  EXPECT_EQ(read->skipped_steps, state.skipped_steps);
  ASSERT_TRUE(read->loss_scaler.has_value());
  EXPECT_EQ(read->loss_scaler->scale, state.loss_scaler->scale);
  EXPECT_EQ(read->loss_scaler->good_steps, state.loss_scaler->good_steps);
  EXPECT_EQ(read->optimizer.step, state.optimizer.step);
  EXPECT_EQ(read->optimizer.slots, state.optimizer.slots);
  EXPECT_EQ(read->world_size, state.world_size);
  EXPECT_EQ(read->samples, state.samples);
  EXPECT_EQ(read->chunk_bytes, state.chunk_bytes);
  EXPECT_EQ(read->threads, 3);
  EXPECT_EQ(read->random, state.random);
  EXPECT_EQ(read->best_step, state.best_step);
  EXPECT_EQ(read->best_accuracy, state.best_accuracy);
  EXPECT_EQ(read->flags, state.flags);
}

// Files from before a number was kept are read without it; chunks of 0 bytes are one that was kept.
TEST(JobStateTest, WhatEarlierFilesLackIsNone) {
  const OneWeight module(at::MemoryFormat::Contiguous);
  JobState state = State();
  state.chunk_bytes = 0;
  EXPECT_EQ(DecodeJobState(EncodeJobState(state, module).value(), module)->chunk_bytes, 0);
  state.chunk_bytes = absl::nullopt;
  state.samples = 0;
  const auto read = DecodeJobState(EncodeJobState(state, module).value(), module);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_FALSE(read->chunk_bytes.has_value());
  EXPECT_EQ(read->samples, 0);
}

// A slot lies in memory as its parameter does, which the next job may have otherwise.
TEST(JobStateTest, SlotsFollowTheParametersMemoryFormat) {
  const OneWeight rows(at::MemoryFormat::Contiguous);
  const OneWeight last(at::MemoryFormat::ChannelsLast);
  const auto read = DecodeJobState(EncodeJobState(State(), rows).value(), last);
  ASSERT_TRUE(read.ok()) << read.status();
  // Element (n, c, y, x) is 12 n + 4 c + 2 y + x, in the order n, y, x, c.
  const std::vector<float>& values = read->optimizer.slots.at("w").at("momentum_buffer");
  ASSERT_EQ(values.size(), 24u);
  EXPECT_EQ(std::vector<float>(values.begin(), values.begin() + 6),
            (std::vector<float>{0, 4, 8, 1, 5, 9}));
  const auto back = DecodeJobState(EncodeJobState(*read, last).value(), rows);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->optimizer.slots, State().optimizer.slots);
}

TEST(JobStateTest, WhatIsNoStateIsRefused) {
  const OneWeight module(at::MemoryFormat::Contiguous);
  EXPECT_FALSE(DecodeJobState("", module).ok());
  std::string file = EncodeJobState(State(), module).value();
  const size_t at = file.find("\"step\":\"120\"");
  ASSERT_NE(at, std::string::npos);
  file[at + 8] = 'x';
  EXPECT_EQ(DecodeJobState(file, module).status().code(), absl::StatusCode::kDataLoss);
}

TEST(RandomStateTest, ARestoredGeneratorDrawsTheSameAgain) {
  const c10::Device cpu(c10::kCPU);
  const auto state = RandomState(cpu);
  ASSERT_TRUE(state.ok()) << state.status();
  const at::Tensor first = at::rand({100});
  EXPECT_FALSE(at::equal(at::rand({100}), first));
  ASSERT_EQ(SetRandomState(*state, cpu), absl::OkStatus());
  EXPECT_TRUE(at::equal(at::rand({100}), first));
  EXPECT_FALSE(SetRandomState(state->substr(0, 20), cpu).ok());
}

}  // namespace
}  // namespace gradsync
