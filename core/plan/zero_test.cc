#include "core/plan/zero.h"

#include <string>

#include "core/plan/consistency.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;

TEST(ZeroTest, RingsAndServersMayHaveAnyAndOthersAreRefused) {
  JobSpec spec;
  spec.topology = Topology::kRing;
  spec.link = Link::kGrpc;
  for (int zero = 0; zero <= kMostZero; ++zero) EXPECT_TRUE(CheckZero(zero, spec).ok()) << zero;
  for (int zero : {-1, kMostZero + 1}) {
    EXPECT_THAT(CheckZero(zero, spec).message(), HasSubstr("--zero: expected 0 to 3, found"));
  }
  const auto refused = [&spec](int zero, const std::string& words) {
    EXPECT_TRUE(CheckZero(zero - 1, spec).ok()) << words;
    EXPECT_THAT(CheckZero(zero, spec).message(), HasSubstr(words));
  };
  spec.codec = *ParseCodec("bf16");
  refused(3, "--zero: expected 0 to 2 with --compression");
  spec.codec = Codec();
  spec.link = Link::kGloo;
  refused(1, "--zero: expected 0 with --link=gloo");
  for (const Link link : {Link::kNccl, Link::kCudaIpc}) {
    spec.link = link;
    refused(2, "--zero: expected 0 or 1 with --link=" + LinkName(link));
  }
  spec.link = Link::kAuto;
  spec.consistency = *ParseConsistency("ssp:2");
  refused(2, "--zero: expected 0 or 1 with --consistency=ssp:2");
  spec.consistency = Consistency();
  spec.topology = Topology::kLocal;
  refused(3, "--zero: expected 0 to 2 with --topology=local");
}

}  // namespace
}  // namespace gradsync
