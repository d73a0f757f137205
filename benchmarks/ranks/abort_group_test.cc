#include "benchmarks/ranks/abort_group.h"

#include <memory>

#include "gtest/gtest.h"
#include "sync/local_sync.h"

namespace gradsync {
namespace {

TEST(AbortGroupTest, WhatFailedFirstIsTheCause) {
  const std::unique_ptr<GradientSync> sync = CreateLocalSync(UpdateSite::kWorker);
  EXPECT_EQ(AbortGroup(*sync, absl::DataLossError("wrong sum")), absl::DataLossError("wrong sum"));
  EXPECT_EQ(sync->status(), absl::DataLossError("wrong sum"));
  EXPECT_EQ(AbortGroup(*sync, absl::UnavailableError("gone")), absl::DataLossError("wrong sum"));
}

}  // namespace
}  // namespace gradsync
