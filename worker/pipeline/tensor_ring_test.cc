// Both ends in one process, which maps its own memory a second time.

#include "worker/pipeline/tensor_ring.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "core/shared_memory/unix_socket.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/pipeline.pb.h"

namespace gradsync {
namespace {

using ::testing::AllOf;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::Lt;
using ::testing::SizeIs;

class TensorRingTest : public ::testing::Test {
 protected:
  absl::optional<proto::RingPlace> Put(const std::string& bytes) {
    return writer_->Put(absl::MakeConstSpan(bytes.data(), bytes.size()));
  }

  // What is there; the place is free afterwards.
  std::string Take(const proto::RingPlace& place) {
    const auto found = reader_.At(place);
    EXPECT_TRUE(found.ok()) << found.status();
    if (!found.ok()) return "";
    const std::string bytes(found->data(), found->size());
    reader_.Release(place);
    return bytes;
  }

  // Of a reader that has mapped nothing yet.
  absl::Status Refusal(const proto::RingPlace& place) const {
    return TensorRingReader(getpid()).At(place).status();
  }

  std::unique_ptr<TensorRingWriter> writer_ = *TensorRingWriter::Create();
  TensorRingReader reader_{getpid()};
};

std::string Filled(size_t bytes, char with) { return std::string(bytes, with); }

TEST_F(TensorRingTest, WhatIsPutIsThereInItsOrder) {
  const auto a = Put("abc"), nothing = Put(""), b = Put(Filled(1000, 'b'));
  ASSERT_TRUE(a.has_value() && nothing.has_value() && b.has_value());
  EXPECT_EQ(Take(*a), "abc");
  EXPECT_EQ(Take(*nothing), "");
  EXPECT_EQ(Take(*b), Filled(1000, 'b'));
}

// Sizes that do not divide the ring, many times round.
TEST_F(TensorRingTest, RoundAndRoundNothingIsLost) {
  const int file = writer_->Begin().file();
  for (int i = 0; i < 200; ++i) {
    const std::string first = Filled(150'001 + 7 * i, static_cast<char>('a' + i % 20));
    const std::string second = Filled(99'999, static_cast<char>('A' + i % 20));
    const auto a = Put(first), b = Put(second);
    ASSERT_TRUE(a.has_value() && b.has_value()) << i;
    EXPECT_EQ(Take(*a), first);
    EXPECT_EQ(Take(*b), second);
    EXPECT_EQ(b->file(), file);
  }
}

TEST_F(TensorRingTest, WhereNothingIsReadThereIsRoomForAFewAndThenNoMore) {
  const std::string bytes = Filled(300'000, 'x');
  int count = 0;
  absl::optional<proto::RingPlace> first;
  while (const auto place = Put(bytes)) {
    if (!first.has_value()) first = place;
    ASSERT_LT(++count, 100);
  }
  EXPECT_EQ(count, 3);
  EXPECT_EQ(Take(*first), bytes);
  EXPECT_TRUE(Put(bytes).has_value());
  EXPECT_FALSE(Put(bytes).has_value());
}

// And what the smaller one still holds is read.
TEST_F(TensorRingTest, ALargeTensorGetsALargerRing) {
  const auto small = Put("small");
  const std::string large = Filled(5'000'000, 'l'), larger = Filled(30'000'000, 'L');
  const auto a = Put(large), b = Put(large), c = Put(larger);
  ASSERT_TRUE(small.has_value() && a.has_value() && b.has_value() && c.has_value());
  EXPECT_GE(a->ring_bytes(), 3 * large.size());
  EXPECT_EQ(a->file(), b->file());
  EXPECT_EQ(Take(*small), "small");
  EXPECT_EQ(Take(*a), large);
  EXPECT_EQ(Take(*b), large);
  EXPECT_EQ(Take(*c), larger);
}

TEST_F(TensorRingTest, APlaceThatIsNoneIsRefused) {
  proto::RingPlace place = *Put("abc");
  place.set_bytes(place.ring_bytes());
  EXPECT_THAT(std::string(Refusal(place).message()), HasSubstr("expected a place in a ring of "));
  place.set_bytes(~uint64_t{0});
  EXPECT_EQ(Refusal(place).code(), absl::StatusCode::kInvalidArgument);
  place = writer_->Begin();
  place.set_ring_bytes(place.ring_bytes() + 4096);
  EXPECT_THAT(std::string(Refusal(place).message()), HasSubstr("window: expected "));
  place.set_ring_bytes(4096);
  EXPECT_THAT(std::string(Refusal(place).message()),
              HasSubstr("expected a ring of more than 4096"));
  const FileDescriptor other(open("/dev/null", O_RDWR));
  place = writer_->Begin();
  place.set_file(other.get());
  EXPECT_THAT(std::string(Refusal(place).message()), HasSubstr("found another file"));
  place.set_file(1'000'000);
  EXPECT_EQ(Refusal(place).code(), absl::StatusCode::kUnavailable);
}

// A ring at least doubles, so few are made, whose memory goes when it has been read.
TEST_F(TensorRingTest, SizesThatGrowSlowlyMakeFewRings) {
  std::set<std::string> names;
  std::set<int> files;
  for (size_t bytes = 300'000; bytes < 3'000'000; bytes += 50'000) {
    const auto place = Put(Filled(bytes, 'x'));
    ASSERT_TRUE(place.has_value());
    names.insert(place->name());
    files.insert(place->file());
    EXPECT_EQ(Take(*place), Filled(bytes, 'x'));
  }
  EXPECT_THAT(names, SizeIs(AllOf(Gt(1), Lt(6))));
  EXPECT_LT(files.size(), names.size());
}

// As where the sender runs under other process numbers, and the same program has the same number and
// descriptors here.
TEST_F(TensorRingTest, MemoryOfAnotherSenderIsNotMistakenForIt) {
  const auto other = *TensorRingWriter::Create();
  proto::RingPlace place = *Put("abc");
  place.set_file(other->Begin().file());
  EXPECT_EQ(Refusal(place).code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(Refusal(place).message()), HasSubstr(" is memory of another process"));
}

// A receiver that lies about what it has read harms nobody but itself.
TEST_F(TensorRingTest, MoreReadThanWrittenIsNoRoom) {
  proto::RingPlace place = *Put("abc");
  ASSERT_EQ(Take(place), "abc");
  place.set_position(1 << 30);
  reader_.Release(place);
  EXPECT_FALSE(Put("def").has_value());
}

}  // namespace
}  // namespace gradsync
