#include "worker/train/kineto_trace.h"

#include <atomic>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>

#include "ATen/ops/mm.h"
#include "ATen/ops/ones.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/gpu/fake_gpu.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kTimeout = absl::Seconds(60);

TraceOptions Options(const std::string& name, int64_t first_step = 2, int64_t steps = 2) {
  return {absl::StrCat(testing::TempDir(), "/", name), first_step, steps};
}

TEST(ParseTraceTest, TheRankTakesItsPlaceInThePath) {
  const TraceOptions options = *ParseTrace("a/{rank}/t{rank}.json", "10:3", 7);
  EXPECT_TRUE(options.wanted());
  EXPECT_EQ(options.path, "a/7/t7.json");
  EXPECT_EQ(options.first_step, 10);
  EXPECT_EQ(options.steps, 3);
}

TEST(ParseTraceTest, WithoutAPathThereIsNoTrace) {
  EXPECT_FALSE(ParseTrace("", "nonsense", 0)->wanted());
}

TEST(ParseTraceTest, StepsThatAreNoneAreRefused) {
  for (const char* const steps : {"", "1", "0:1", "1:0", "1:", ":1", "-1:2", "1:2:3", "a:b"}) {
    const absl::Status status = ParseTrace("t", steps, 0).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << steps;
    EXPECT_THAT(status.message(), HasSubstr(absl::StrCat("found \"", steps, "\"")));
  }
}

TEST(KinetoTraceTest, AFileThatCannotBeWrittenIsRefused) {
  TraceOptions options = Options("t");
  options.path = "/no/such/folder/trace.json";
  const absl::Status status = KinetoTrace::Create(options, nullptr, kTimeout).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr(options.path));
}

#ifndef GRADSYNC_CUDA

TEST(KinetoTraceTest, ALibTorchWithoutKinetoIsRefusedInOneLine) {
  const absl::Status status = KinetoTrace::Create(Options("t"), nullptr, kTimeout).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("--trace: expected "));
  EXPECT_THAT(status.message(), HasSubstr("--config=cuda"));
  EXPECT_THAT(status.message(), Not(HasSubstr("\n")));
  EXPECT_FALSE(std::ifstream(Options("t").path).good());
}

#else

void Step(int64_t step) { at::mm(at::ones({step, 8}), at::ones({8, step})); }

std::string Read(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

int Count(const std::string& text, const std::string& word) {
  int count = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++count;
  return count;
}

TEST(KinetoTraceTest, TheStepsThatWereAskedForAreInTheFileAndNoOthers) {
  const TraceOptions options = Options("steps.json");
  const auto trace = *KinetoTrace::Create(options, nullptr, kTimeout);
  for (int64_t step = 1; step <= 5; ++step) {
    EXPECT_EQ(std::ifstream(options.path).good(), step > 3) << step;
    ASSERT_EQ(trace->BeforeStep(step), absl::OkStatus());
    Step(step);
    ASSERT_EQ(trace->AfterStep(step), absl::OkStatus());
  }
  const std::string text = Read(options.path);
  EXPECT_THAT(text, HasSubstr("traceEvents"));
  EXPECT_EQ(Count(text, "\"aten::mm\""), 2);
}

TEST(KinetoTraceTest, TheGpuIsAwaitedByAskingAndNotForEver) {
  const auto gpu = std::make_shared<QueuedGpu>();
  std::atomic<bool> may_end{false};
  {
    const auto trace = *KinetoTrace::Create(Options("gpu.json", 1, 1), gpu, kTimeout);
    ASSERT_EQ(trace->BeforeStep(1), absl::OkStatus());
    std::atomic<bool> ended{false};
    gpu->Enqueue(gpu->ComputeStream(), [&] {
      GiveOthersTime();
      ended = true;
    });
    ASSERT_EQ(trace->AfterStep(1), absl::OkStatus());
    EXPECT_TRUE(ended);
    EXPECT_EQ(gpu->synchronizations(), 0);
  }
  {
    const auto trace = *KinetoTrace::Create(Options("late.json", 1, 1), gpu, absl::Seconds(1));
    ASSERT_EQ(trace->BeforeStep(1), absl::OkStatus());
    gpu->Enqueue(gpu->ComputeStream(), [&] {
      while (!may_end) std::this_thread::yield();
    });
    EXPECT_TRUE(absl::IsDeadlineExceeded(trace->AfterStep(1)));
    may_end = true;
  }
}

#endif  // GRADSYNC_CUDA

}  // namespace
}  // namespace gradsync
