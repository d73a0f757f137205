#include "allreduce/c10d_store_adapter.h"

#ifdef USE_C10D_GLOO

#include <exception>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/group/key_value_store.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

TEST(C10dStoreAdapterTest, ReadsWhatWasSetUnderItsPrefix) {
  const auto store = NewInMemoryStore();
  C10dStoreAdapter adapter(store, "run/", Deadline::In(absl::Seconds(10)));
  const std::vector<uint8_t> value = {1, 0, 255};
  adapter.set("key", value);
  EXPECT_EQ(adapter.get("key"), value);
  EXPECT_EQ(*store->Get("run/key", Deadline::In(absl::Seconds(10))),
            std::string("\x01\x00\xff", 3));
  adapter.wait({"key"});
  EXPECT_TRUE(adapter.check({"key"}));
  EXPECT_FALSE(adapter.check({"key", "other"}));
}

TEST(C10dStoreAdapterTest, AMissingKeyIsAnExceptionAtTheDeadlineThatNamesIt) {
  C10dStoreAdapter adapter(NewInMemoryStore(), "run/", Deadline::In(absl::Milliseconds(20)));
  try {
    adapter.get("missing");
    FAIL() << "expected an exception";
  } catch (const std::exception& error) {
    EXPECT_TRUE(absl::StrContains(error.what(), "DEADLINE_EXCEEDED")) << error.what();
    EXPECT_TRUE(absl::StrContains(error.what(), "run/missing")) << error.what();
  }
  EXPECT_ANY_THROW(adapter.wait({"missing"}, std::chrono::milliseconds(1)));
}

TEST(C10dStoreAdapterTest, WhatItDoesNotOfferIsAnException) {
  C10dStoreAdapter adapter(NewInMemoryStore(), "run/", Deadline::In(absl::Seconds(10)));
  EXPECT_ANY_THROW(adapter.add("key", 1));
  EXPECT_ANY_THROW(adapter.deleteKey("key"));
  EXPECT_ANY_THROW(adapter.getNumKeys());
}

}  // namespace
}  // namespace gradsync

#endif  // USE_C10D_GLOO
