// What a store may keep: keys, bytes, failures. What it does otherwise is key_value_store_test's.

#include "core/group/store_map.h"

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

absl::StatusCode CodeOf(const absl::Status& status) { return status.code(); }

TEST(StoreMapTest, BytesAreCountedByWhatIsThere) {
  StoreMap map(/*max_bytes=*/10);
  EXPECT_EQ(map.Set("a", "12345678"), absl::OkStatus());
  EXPECT_EQ(CodeOf(map.Set("b", "123")), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(CodeOf(map.SetIfAbsent("b", "123").status()), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(map.Set("a", "1234567890"), absl::OkStatus());
  EXPECT_EQ(map.Set("a", "1"), absl::OkStatus());
  EXPECT_EQ(map.Set("b", "123456789"), absl::OkStatus());
  EXPECT_TRUE(map.SetIfAbsent("b", "longer than there is room for").ok());
  EXPECT_EQ(map.Set("c", ""), absl::OkStatus());
  EXPECT_EQ(CodeOf(map.Set("c", "1")), absl::StatusCode::kResourceExhausted);
}

TEST(StoreMapTest, PartsOfAnExchangeCountUntilItEnds) {
  StoreMap map(/*max_bytes=*/10);
  // OK, an error, or INTERNAL while the part waits.
  absl::Status now;
  const auto join = [&](int rank, const std::string& part) {
    // Outlives this call, as the callback of a part that waits may.
    const auto heard = std::make_shared<absl::Status>(absl::InternalError("waits"));
    const StoreMap::Ticket ticket = map.AllGather(
        "x", rank, 2, part,
        [heard](absl::StatusOr<StoreMap::Values> values) { *heard = values.status(); });
    now = *heard;
    return ticket;
  };
  for (int round = 0; round < 3; ++round) {
    join(0, "12345");
    EXPECT_EQ(CodeOf(now), absl::StatusCode::kInternal);
    join(1, "123456");
    EXPECT_EQ(CodeOf(now), absl::StatusCode::kResourceExhausted);
    join(1, "12345");
    EXPECT_EQ(now, absl::OkStatus());
  }
  for (int round = 0; round < 3; ++round) map.Expire(join(0, "1234567890"));
  for (int round = 0; round < 3; ++round) map.Cancel(join(0, "1234567890"));
  join(0, "1234567890");
  EXPECT_TRUE(map.Fail("x", "over").ok());
  EXPECT_EQ(map.Set("a", "1234567890"), absl::OkStatus());
}

TEST(StoreMapTest, AValueHasALimitOfItsOwn) {
  StoreMap map;
  const absl::Status long_value = map.Set("a", std::string(StoreMap::kMaxValueBytes + 1, 'x'));
  EXPECT_EQ(CodeOf(long_value), absl::StatusCode::kInvalidArgument);
  EXPECT_LT(long_value.message().size(), 200u);
}

TEST(StoreMapTest, FailuresAreCounted) {
  StoreMap map;
  for (size_t i = 0; i < StoreMap::kMaxFailures; ++i) {
    ASSERT_TRUE(map.Fail(absl::StrCat("p", i, "/"), "x").ok());
  }
  EXPECT_EQ(CodeOf(map.Fail("another", "x").status()), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(map.Fail("p0/", "y").ok());
  EXPECT_EQ(CodeOf(map.Fail(std::string(5000, 'p'), "x").status()),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace gradsync
