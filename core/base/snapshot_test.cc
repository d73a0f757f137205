#include "core/base/snapshot.h"

#include <atomic>
#include <cstdint>
#include <thread>

#include "gtest/gtest.h"

namespace gradsync {
namespace {

struct Numbers {
  int64_t step = 0;
  double values[20] = {};
};

TEST(SnapshotTest, BeginsWithTheTypesOwnValueAndReturnsWhatWasSetLast) {
  Snapshot<Numbers> snapshot;
  EXPECT_EQ(snapshot.Get().step, 0);
  Numbers numbers;
  numbers.step = 7;
  numbers.values[19] = 0.5;
  snapshot.Set(numbers);
  EXPECT_EQ(snapshot.Get().step, 7);
  EXPECT_EQ(snapshot.Get().values[19], 0.5);
}

TEST(SnapshotTest, AReaderNeverSeesHalfOfTwo) {
  Snapshot<Numbers> snapshot;
  std::atomic<bool> seen{false};
  std::thread reader([&] {
    Numbers numbers;
    while (numbers.step < 1000) {
      numbers = snapshot.Get();
      for (const double value : numbers.values) {
        ASSERT_EQ(value, static_cast<double>(numbers.step));
      }
      seen = true;
    }
  });
  for (int64_t step = 0; step < 1000 || !seen; ++step) {
    Numbers numbers;
    numbers.step = step;
    for (double& value : numbers.values) value = static_cast<double>(step);
    snapshot.Set(numbers);
  }
  Numbers last;
  last.step = 1000;
  for (double& value : last.values) value = 1000;
  snapshot.Set(last);
  reader.join();
}

}  // namespace
}  // namespace gradsync
