#include "core/links/tcp_records.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/links/stream_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;

struct Taken {
  TcpRecord::Type type;
  std::string header;
  std::string payload;

  friend bool operator==(const Taken& a, const Taken& b) {
    return a.type == b.type && a.header == b.header && a.payload == b.payload;
  }
};

std::string Encode(const Taken& record) {
  std::string bytes;
  AppendPrefix({record.type, static_cast<uint32_t>(record.header.size()), record.payload.size()},
               &bytes);
  return bytes + record.header + record.payload;
}

// A reader that is given bytes as a socket gives them: at most so many at a time.
class Feeder {
 public:
  explicit Feeder(RecordReader::Limits limits = RecordReader::Limits())
      : reader_(std::make_shared<ReceiveMemory>(), limits) {}

  absl::Status Feed(absl::string_view bytes, size_t most) {
    while (!bytes.empty()) {
      iovec places[2];
      const int count = reader_.Places(places);
      size_t given = 0;
      for (int i = 0; i < count; ++i) {
        const size_t part = std::min({places[i].iov_len, bytes.size(), most - given});
        std::memcpy(places[i].iov_base, bytes.data(), part);
        bytes.remove_prefix(part);
        given += part;
      }
      const absl::Status status = reader_.Received(
          given, [this](TcpRecord::Type type, absl::string_view header, Payload payload) {
            taken_.push_back({type, std::string(header), Flatten(payload)});
            kept_.push_back(std::move(payload));
            return true;
          });
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  const std::vector<Taken>& taken() const { return taken_; }
  // What the payloads have now.
  std::string Kept(size_t i) const { return Flatten(kept_[i]); }

 private:
  RecordReader reader_;
  std::vector<Taken> taken_;
  std::vector<Payload> kept_;
};

TEST(RecordReaderTest, RecordsOfAllSizesAreReadHoweverTheirBytesCome) {
  std::vector<Taken> records;
  uint32_t seed = 0;
  for (size_t payload : {0, 1, 16383, 16384, 16385, 70000, 0, 300000, 5}) {
    for (size_t header : {0, 3, 5000, 100000}) {
      records.push_back({TcpRecord::kFrame, Pattern(header, ++seed), Pattern(payload, ++seed)});
    }
  }
  records.push_back({TcpRecord::kFinish, "", ""});
  std::string bytes;
  for (const Taken& record : records) bytes += Encode(record);
  for (size_t most : {1, 7, 16, 1000, 65536, 1 << 24}) {
    Feeder feeder;
    ASSERT_EQ(feeder.Feed(bytes, most), absl::OkStatus());
    ASSERT_EQ(feeder.taken().size(), records.size()) << most;
    for (size_t i = 0; i < records.size(); ++i) {
      EXPECT_TRUE(feeder.taken()[i] == records[i]) << "record " << i << ", " << most;
      EXPECT_TRUE(feeder.Kept(i) == records[i].payload) << "overwritten: " << i << ", " << most;
    }
  }
}

TEST(RecordReaderTest, APayloadLargerThanAPieceOfMemoryComesInParts) {
  const Taken record = {TcpRecord::kFrame, "header",
                        Pattern(2 * ReceiveMemory::kLargestPiece + 12345, 1)};
  Feeder feeder;
  ASSERT_EQ(feeder.Feed(Encode(record) + Encode({TcpRecord::kPing, "", ""}), 1000003),
            absl::OkStatus());
  ASSERT_EQ(feeder.taken().size(), 2u);
  EXPECT_TRUE(feeder.taken()[0] == record);
  EXPECT_EQ(feeder.taken()[1].type, TcpRecord::kPing);
}

// What was announced and does not come takes no memory.
TEST(RecordReaderTest, MemoryGrowsWithWhatComes) {
  RecordReader reader(std::make_shared<ReceiveMemory>(), RecordReader::Limits());
  std::string bytes;
  AppendPrefix({TcpRecord::kFrame, 0, uint64_t{1} << 60}, &bytes);
  iovec places[2];
  ASSERT_EQ(reader.Places(places), 1);
  std::memcpy(places[0].iov_base, bytes.data(), bytes.size());
  const auto nothing = [](TcpRecord::Type, absl::string_view, Payload) { return true; };
  ASSERT_EQ(reader.Received(bytes.size(), nothing), absl::OkStatus());
  ASSERT_EQ(reader.Places(places), 1);
  EXPECT_LE(places[0].iov_len, ReceiveMemory::kLargestPiece);
}

TEST(TcpOpeningTest, IsReadAsItWasWrittenAndRefusedWhereItIsTooShort) {
  TcpOpening opening;
  opening.oldest_version = 1;
  opening.newest_version = 300;
  opening.has_secret = true;
  opening.proof = {std::string("run\0\xff", 5), "key"};
  const std::string header = opening.Encode();
  const auto read = TcpOpening::Decode(header);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->Encode(), header);
  EXPECT_EQ(read->newest_version, 300u);
  EXPECT_TRUE(read->has_secret);
  EXPECT_EQ(read->proof.run, opening.proof.run);
  EXPECT_EQ(read->proof.key, "key");
  for (size_t bytes = 0; bytes < header.size() - 3; ++bytes) {
    EXPECT_TRUE(absl::IsDataLoss(TcpOpening::Decode(header.substr(0, bytes)).status())) << bytes;
  }
}

TEST(RecordReaderTest, BytesThatAreNoRecordAreDataLossAndShown) {
  for (const std::string& bytes :
       {std::string("GET / HTTP/1.1\r\n"), std::string("GS\x02\x05", 4) + std::string(12, '\0'),
        std::string("GS\x01\x63", 4) + std::string(12, '\0'), std::string(16, '\0')}) {
    Feeder feeder;
    const absl::Status status = feeder.Feed(bytes, 16);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_TRUE(feeder.taken().empty());
  }
  Feeder feeder;
  EXPECT_THAT(std::string(feeder.Feed("GET / HTTP/1.1\r\n", 16).message()),
              HasSubstr("GET / HTTP"));
}

TEST(RecordReaderTest, WhatIsBeyondTheLimitsIsRefusedBeforeItComes) {
  for (const TcpRecord& record :
       {TcpRecord{TcpRecord::kFrame, 4097, 0}, TcpRecord{TcpRecord::kFrame, 0, 101}}) {
    Feeder feeder({4096, 100});
    std::string bytes;
    AppendPrefix(record, &bytes);
    EXPECT_EQ(feeder.Feed(bytes, 16).code(), absl::StatusCode::kResourceExhausted);
  }
  Feeder feeder({4096, 100});
  EXPECT_EQ(
      feeder.Feed(Encode({TcpRecord::kFrame, std::string(4096, 'h'), std::string(100, 'p')}), 1000),
      absl::OkStatus());
}

TEST(RecordReaderTest, RandomBytesAreReadOrRefused) {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes = Encode(
        {TcpRecord::kFrame, Pattern(random() % 40, round), Pattern(random() % 20000, round + 1)});
    bytes += Encode({TcpRecord::kFinish, "", ""});
    for (int flips = random() % 4; flips > 0; --flips) {
      bytes[random() % std::min<size_t>(bytes.size(), 64)] ^= static_cast<char>(1 << random() % 8);
    }
    Feeder feeder({1 << 20, 1 << 20});
    const absl::Status status = feeder.Feed(bytes, 1 + random() % 5000);
    EXPECT_LE(feeder.taken().size(), 3u);
    (void)status;
  }
}

TEST(ReceiveMemoryTest, PiecesAreUsedAgainAndOutliveTheirMemory) {
  ReceiveMemory::Piece kept;
  char* first = nullptr;
  {
    auto memory = std::make_shared<ReceiveMemory>();
    {
      ReceiveMemory::Piece piece = memory->Take(100000);
      EXPECT_EQ(piece.size(), size_t{128 << 10});
      first = piece.data();
    }
    kept = memory->Take(70000);
    EXPECT_EQ(kept.data(), first);
    EXPECT_NE(memory->Take(70000).data(), first);
  }
  std::memset(kept.data(), 1, kept.size());
}

}  // namespace
}  // namespace gradsync
