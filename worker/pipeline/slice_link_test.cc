// Slices as threads of one process: sums in the order of slices, what differs or is lost.

#include "worker/pipeline/slice_link.h"

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "ATen/TensorOperators.h"
#include "ATen/ops/equal.h"
#include "ATen/ops/randn.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/base/errors.h"
#include "core/group/key_value_store.h"
#include "core/group/worker_group.h"
#include "core/links/in_process_stream.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Deadline Soon() { return Deadline::In(absl::Seconds(30)); }

enum class Kind { kStreams, kWindows };

// The links of all slices, each connected by a thread.
class Slices {
 public:
  explicit Slices(int count, Kind kind, std::vector<std::string> fingerprints = {})
      : statuses_(count) {
    const auto store = NewInMemoryStore();
    InProcessLinkOptions unkind;
    unkind.split_payloads = true;
    const auto link = NewInProcessLink(unkind);
    for (int slice = 0; slice < count; ++slice) {
      WorkerGroup group;
      group.rank = slice;
      group.world_size = count;
      group.run_id = "run";
      group.store = store;
      group.address = "127.0.0.1";
      group.timeout = absl::Seconds(30);
      group.part = "tensor";
      for (int s = 0; s < count; ++s) group.ranks_of_job.push_back(10 * s);
      links_.push_back(kind == Kind::kStreams ? NewStreamSliceLink(group, link)
                                              : NewWindowSliceLink(group));
    }
    OnAll([&](int s) {
      return links_[s]->Connect(fingerprints.empty() ? "same" : fingerprints[s], Soon());
    });
  }

  SliceLink& operator[](int slice) { return *links_[slice]; }
  void Lose(int slice) { links_[slice].reset(); }

  // By slice.
  const std::vector<absl::Status>& OnAll(const std::function<absl::Status(int)>& run) {
    std::vector<std::thread> threads;
    for (size_t s = 0; s < links_.size(); ++s) {
      threads.emplace_back([&, s] { statuses_[s] = run(static_cast<int>(s)); });
    }
    for (std::thread& thread : threads) thread.join();
    return statuses_;
  }

  void ExpectAllOk() {
    for (const absl::Status& status : statuses_) EXPECT_TRUE(status.ok()) << status;
  }

  const std::vector<absl::Status>& statuses() const { return statuses_; }

 private:
  std::vector<std::unique_ptr<SliceLink>> links_;
  std::vector<absl::Status> statuses_;
};

std::vector<at::Tensor> RandomTensors(int count, at::IntArrayRef sizes) {
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < count; ++i) tensors.push_back(at::randn(sizes));
  return tensors;
}

at::Tensor AddInOrder(const std::vector<at::Tensor>& tensors) {
  at::Tensor sum = tensors[0];
  for (size_t i = 1; i < tensors.size(); ++i) sum = sum + tensors[i];
  return sum;
}

class SliceLinkTest : public ::testing::TestWithParam<std::tuple<Kind, int>> {
 protected:
  Kind kind() const { return std::get<0>(GetParam()); }
  int count() const { return std::get<1>(GetParam()); }
};

TEST_P(SliceLinkTest, EverybodyGetsTheSumInTheOrderOfSlices) {
  const int n = count();
  Slices slices(n, kind());
  slices.ExpectAllOk();
  for (const std::vector<int64_t>& sizes :
       std::vector<std::vector<int64_t>>{{3, 7}, {0}, {1}, {}, {2, 300000}}) {
    const std::vector<at::Tensor> own = RandomTensors(n, sizes);
    slices.OnAll([&](int s) {
      const absl::StatusOr<at::Tensor> sum = slices[s].Sum(own[s], Soon());
      if (!sum.ok()) return sum.status();
      EXPECT_TRUE(at::equal(*sum, AddInOrder(own))) << "slice " << s;
      EXPECT_FALSE(sum->is_alias_of(own[s]));
      return absl::OkStatus();
    });
    slices.ExpectAllOk();
  }
  slices.OnAll([&](int s) { return slices[s].Finish(Soon()); });
  slices.ExpectAllOk();
}

TEST_P(SliceLinkTest, EachGetsItsPartOfTheSumAndEverybodysTensors) {
  const int n = count();
  Slices slices(n, kind());
  const std::vector<at::Tensor> own = RandomTensors(n, {n, 5, 2});
  slices.OnAll([&](int s) {
    const absl::StatusOr<at::Tensor> part = slices[s].SumPart(own[s].transpose(1, 2), Soon());
    if (!part.ok()) return part.status();
    EXPECT_TRUE(at::equal(*part, AddInOrder(own)[s].t())) << "slice " << s;
    const absl::StatusOr<std::vector<at::Tensor>> all = slices[s].Gather(own[s], Soon());
    if (!all.ok()) return all.status();
    for (int other = 0; other < n; ++other) EXPECT_TRUE(at::equal((*all)[other], own[other]));
    return absl::OkStatus();
  });
  slices.ExpectAllOk();
}

INSTANTIATE_TEST_SUITE_P(Links, SliceLinkTest,
                         ::testing::Combine(::testing::Values(Kind::kStreams, Kind::kWindows),
                                            ::testing::Values(1, 2, 3, 4)));

class SliceLinkBytesTest : public ::testing::TestWithParam<int> {};

TEST_P(SliceLinkBytesTest, SendsAsManyBytesAsItSays) {
  const int n = GetParam();
  Slices slices(n, Kind::kStreams);
  const int64_t elements = 12 * n;
  const std::vector<at::Tensor> own = RandomTensors(n, {n, 12});
  slices.OnAll([&](int s) {
    const int64_t x = 4 * elements;
    EXPECT_TRUE(slices[s].Sum(own[s], Soon()).ok());
    EXPECT_EQ(slices[s].bytes_sent(), 2 * (n - 1) * x / n);
    EXPECT_TRUE(slices[s].SumPart(own[s], Soon()).ok());
    EXPECT_EQ(slices[s].bytes_sent(), 3 * (n - 1) * x / n);
    EXPECT_TRUE(slices[s].Gather(own[s], Soon()).ok());
    EXPECT_EQ(slices[s].bytes_sent(), 3 * (n - 1) * x / n + (n - 1) * x);
    EXPECT_EQ(slices[s].bytes_received(), slices[s].bytes_sent());
    return absl::OkStatus();
  });
}

INSTANTIATE_TEST_SUITE_P(Counts, SliceLinkBytesTest, ::testing::Values(1, 2, 3, 4));

class SliceLinkFailureTest : public ::testing::TestWithParam<Kind> {};

TEST_P(SliceLinkFailureTest, TensorsThatDifferAreRefusedOnAll) {
  Slices slices(3, GetParam());
  slices.OnAll(
      [&](int s) { return slices[s].Gather(at::randn({s == 1 ? 4 : 5}), Soon()).status(); });
  for (int s : {0, 1, 2}) {
    EXPECT_THAT(std::string(slices.statuses()[s].message()),
                AllOf(HasSubstr("between slices: expected "), HasSubstr(", found")));
  }
}

TEST_P(SliceLinkFailureTest, ALostSliceIsNamedByItsRankOfTheJob) {
  Slices slices(3, GetParam());
  slices.Lose(1);
  for (int s : {0, 2}) {
    const absl::Status lost = slices[s].Sum(at::randn({4}), Soon()).status();
    EXPECT_THAT(std::string(lost.message()), StartsWith("rank 10")) << lost;
  }
}

TEST_P(SliceLinkFailureTest, ASliceThatDoesNotComeIsNamedAtTheDeadline) {
  Slices slices(2, GetParam());
  const absl::Status late =
      slices[0].Sum(at::randn({4}), Deadline::In(absl::Milliseconds(50))).status();
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded) << late;
  EXPECT_THAT(std::string(late.message()), HasSubstr("rank 10"));
  // It may wait for another itself, so it is no culprit yet.
  EXPECT_FALSE(BeginsWithCulprit(late.message())) << late;
}

TEST_P(SliceLinkFailureTest, SlicesThatDoNotAgreeDoNotConnect) {
  Slices slices(2, GetParam(), {"of gpt", "of another"});
  for (int s : {0, 1}) EXPECT_FALSE(slices.statuses()[s].ok());
}

INSTANTIATE_TEST_SUITE_P(Links, SliceLinkFailureTest,
                         ::testing::Values(Kind::kStreams, Kind::kWindows));

}  // namespace
}  // namespace gradsync
