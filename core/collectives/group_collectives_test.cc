#include "core/collectives/group_collectives.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/kernels.h"
#include "core/base/mutex.h"
#include "core/group/key_value_store.h"
#include "core/links/grpc_stream.h"
#include "core/links/in_process_stream.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

Deadline Soon() { return Deadline::In(absl::Seconds(60)); }

// How ranks reach each other, and what algorithms they have for it.
struct Way {
  std::string name;
  std::function<std::shared_ptr<StreamLink>()> link;  // null: through memory
  Topology topology = Topology::kRing;
  int owners = 0;  // of several; no more than there are ranks
  size_t piece_bytes = 0;
};

std::shared_ptr<StreamLink> SplittingLink() {
  InProcessLinkOptions options;
  options.split_payloads = true;
  return NewInProcessLink(options);
}

std::vector<Way> Ways(size_t piece_bytes = 0) {
  return {{"memory", nullptr, Topology::kRing, 0, piece_bytes},
          {"ring", SplittingLink, Topology::kRing, 0, piece_bytes},
          {"owners", SplittingLink, Topology::kPs, 0, piece_bytes},
          {"two owners", SplittingLink, Topology::kPs, 2, piece_bytes}};
}

// The ranks of one group.
class Ranks {
 public:
  Ranks(int n, const Way& way) : way_(way), n_(n) {
    if (way.link != nullptr) link_ = way.link();
  }

  GroupCollectivesOptions Options(int rank) const {
    GroupCollectivesOptions options;
    options.group.rank = rank;
    options.group.world_size = n_;
    options.group.run_id = "collectives";
    options.group.store = store_;
    options.group.address = "127.0.0.1";
    options.link = link_;
    options.topology = way_.topology;
    options.owners = std::min(way_.owners, n_);
    options.piece_bytes = way_.piece_bytes;
    return options;
  }

  // Each rank on a thread of its own.
  void Run(const std::function<void(int rank, GroupCollectives& calls)>& body) const {
    SCOPED_TRACE(absl::StrCat(way_.name, ", ", n_, " ranks, pieces of ", way_.piece_bytes));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < n_; ++rank) {
      threads.emplace_back([&, rank] {
        const auto calls = GroupCollectives::Open(Options(rank), Soon());
        ASSERT_EQ(calls.status(), absl::OkStatus());
        body(rank, **calls);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  // Ranks that all leave in good order.
  void RunToEnd(const std::function<void(int rank, GroupCollectives& calls)>& body) const {
    Run([&](int rank, GroupCollectives& calls) {
      body(rank, calls);
      EXPECT_EQ(calls.Finish(Soon()), absl::OkStatus());
    });
  }

 private:
  const Way way_;
  const int n_;
  std::shared_ptr<StreamLink> link_;
  const std::shared_ptr<KeyValueStore> store_ = NewInMemoryStore();
};

// The same for all ways, and for several numbers of ranks.
void OnAllWays(const std::vector<Way>& ways, const std::vector<int>& numbers,
               const std::function<void(const Ranks& ranks, int n)>& test) {
  for (const Way& way : ways) {
    for (int n : numbers) test(Ranks(n, way), n);
  }
}

// `values` as elements of that kind.
std::string Encode(ElementKind kind, const std::vector<double>& values) {
  std::string bytes;
  const auto append = [&bytes](auto value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  for (double value : values) {
    const float single = static_cast<float>(value);
    uint16_t half = 0;
    switch (kind) {
      case ElementKind::kFloat32:
        append(single);
        break;
      case ElementKind::kFloat64:
        append(value);
        break;
      case ElementKind::kFloat16:
        FloatToHalf(&half, &single, 1);
        append(half);
        break;
      case ElementKind::kBfloat16:
        FloatToBfloat16(&half, &single, 1);
        append(half);
        break;
      case ElementKind::kInt8:
        append(static_cast<int8_t>(value));
        break;
      case ElementKind::kUint8:
      case ElementKind::kBool:
        append(static_cast<uint8_t>(value));
        break;
      case ElementKind::kInt16:
        append(static_cast<int16_t>(value));
        break;
      case ElementKind::kInt32:
        append(static_cast<int32_t>(value));
        break;
      case ElementKind::kInt64:
        append(static_cast<int64_t>(value));
        break;
    }
  }
  return bytes;
}

// What a plain loop makes of two elements, small enough to be exact in every kind.
double Plainly(ElementKind kind, FoldOp op, double a, double b) {
  if (kind == ElementKind::kBool) {
    const bool x = a != 0, y = b != 0;
    const bool either = op == FoldOp::kSum || op == FoldOp::kMax || op == FoldOp::kOr;
    return op == FoldOp::kXor ? x != y : either ? x || y : x && y;
  }
  const int64_t x = static_cast<int64_t>(a), y = static_cast<int64_t>(b);
  switch (op) {
    case FoldOp::kSum:
    case FoldOp::kAvg:
      return a + b;
    case FoldOp::kProduct:
      return a * b;
    case FoldOp::kMin:
      return std::min(a, b);
    case FoldOp::kMax:
      return std::max(a, b);
    case FoldOp::kAnd:
      return static_cast<double>(x & y);
    case FoldOp::kOr:
      return static_cast<double>(x | y);
    case FoldOp::kXor:
      return static_cast<double>(x ^ y);
  }
  return 0;
}

std::vector<double> SmallNumbers(int rank, size_t count) {
  std::vector<double> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = static_cast<double>((i * 7 + static_cast<size_t>(rank) * 5 + i / 3) % 4);
  }
  return values;
}

std::string ExpectedOf(ElementKind kind, FoldOp op, int n, size_t count) {
  std::vector<double> result = SmallNumbers(0, count);
  for (int rank = 1; rank < n; ++rank) {
    const std::vector<double> more = SmallNumbers(rank, count);
    for (size_t i = 0; i < count; ++i) result[i] = Plainly(kind, op, result[i], more[i]);
  }
  if (op == FoldOp::kAvg) {
    for (double& value : result) value /= n;
  }
  return Encode(kind, result);
}

TEST(GroupCollectivesTest, EachKindAndOperationIsThatOfAPlainLoop) {
  // In one message, and in several of 256 bytes.
  for (size_t piece_bytes : {0, 256}) {
    OnAllWays(Ways(piece_bytes), {2, 4}, [](const Ranks& ranks, int n) {
      ranks.RunToEnd([n](int rank, GroupCollectives& calls) {
        for (int k = 0; k < kElementKinds; ++k) {
          for (int o = 0; o < kFoldOps; ++o) {
            const auto kind = static_cast<ElementKind>(k);
            const auto op = static_cast<FoldOp>(o);
            if (!CheckFold(kind, op).ok()) continue;
            SCOPED_TRACE(absl::StrCat(FoldName(op), " of ", ElementName(kind)));
            constexpr size_t kCount = 1001;
            std::string data = Encode(kind, SmallNumbers(rank, kCount));
            ASSERT_EQ(calls.AllReduce(&data[0], kCount, kind, op, Soon()), absl::OkStatus());
            ASSERT_EQ(data, ExpectedOf(kind, op, n, kCount));
            constexpr size_t kOwn = 333;
            const size_t bytes = kOwn * static_cast<size_t>(BytesOf(kind));
            const std::string input =
                Encode(kind, SmallNumbers(rank, kOwn * static_cast<size_t>(n)));
            std::string output(bytes, 'x');
            ASSERT_EQ(calls.ReduceScatter(input.data(), &output[0], kOwn, kind, op, Soon()),
                      absl::OkStatus());
            ASSERT_EQ(output, ExpectedOf(kind, op, n, kOwn * static_cast<size_t>(n))
                                  .substr(static_cast<size_t>(rank) * bytes, bytes));
          }
        }
      });
    });
  }
}

// Values whose sums depend on their order.
std::vector<float> Uneven(int rank, size_t count) {
  constexpr float kPowers[] = {1e-3f, 1e-2f, 0.1f, 1, 10, 1e2f, 1e3f};
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    const size_t at = i + static_cast<size_t>(rank) * 3;
    values[i] = kPowers[at % 7] * static_cast<float>(static_cast<int>(at * 7919 % 2003) - 1001);
    if (i % 11 == 0) values[i] = -0.0f;
    if (i % 13 == 0) values[i] = std::numeric_limits<float>::denorm_min();
  }
  return values;
}

// By the words of group_collectives.h, for shares of `size` elements.
std::vector<float> InOrder(int n, size_t count, size_t size, bool mean) {
  std::vector<std::vector<float>> inputs;
  for (int rank = 0; rank < n; ++rank) inputs.push_back(Uneven(rank, count));
  std::vector<float> sums(count);
  for (size_t i = 0; i < count; ++i) {
    const int share = static_cast<int>(i / size);
    float sum = inputs[(share + 1) % n][i];
    for (int place = 2; place <= n; ++place) sum = sum + inputs[(share + place) % n][i];
    sums[i] = mean ? sum * (1.0f / static_cast<float>(n)) : sum;
  }
  return sums;
}

size_t ShareSize(size_t count, int n) {
  const size_t size = (count + static_cast<size_t>(n) - 1) / static_cast<size_t>(n);
  return std::max<size_t>((size + 15) / 16 * 16, 1);
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

void ExpectTheSameBits(const std::vector<Way>& ways, const std::vector<int>& numbers,
                       const std::vector<size_t>& counts) {
  OnAllWays(ways, numbers, [&](const Ranks& ranks, int n) {
    ranks.RunToEnd([&](int rank, GroupCollectives& calls) {
      for (size_t count : counts) {
        SCOPED_TRACE(absl::StrCat(count, " elements"));
        const bool mean = count % 2 == 1;
        std::vector<float> data = Uneven(rank, count);
        ASSERT_EQ(calls.AllReduce(data.data(), static_cast<int64_t>(count), ElementKind::kFloat32,
                                  mean ? FoldOp::kAvg : FoldOp::kSum, Soon()),
                  absl::OkStatus());
        ASSERT_TRUE(SameBits(
            data, n == 1 ? Uneven(0, count) : InOrder(n, count, ShareSize(count, n), mean)));
      }
    });
  });
}

TEST(GroupCollectivesTest, BitsDependOnNoTopologyLinkOrSize) {
  // A piece has 16 or 80 elements then, and rounds are many.
  for (size_t piece_bytes : {64, 320}) {
    ExpectTheSameBits(Ways(piece_bytes), {1, 2, 3, 4, 5},
                      {0, 1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 79, 80, 81, 240, 1000, 4001});
  }
}

TEST(GroupCollectivesTest, BitsAreTheSameOnBothSidesOfEachCrossover) {
  std::vector<size_t> counts;
  // All that is sent at once, through memory and over streams, to one and to two others; pieces.
  for (size_t bytes : {8 << 10, 16 << 10, 32 << 10, 64 << 10, 256 << 10, 512 << 10}) {
    for (size_t more : {0, 1, 2}) counts.push_back(bytes / sizeof(float) - 1 + more);
  }
  counts.push_back(1000003);
  ExpectTheSameBits(Ways(), {2, 3}, counts);
}

TEST(GroupCollectivesTest, OverGrpcTooBitsAreTheSame) {
  const auto grpc = [] { return NewGrpcLink(); };
  ExpectTheSameBits({{"gRPC ring", grpc}, {"gRPC owners", grpc, Topology::kPs}}, {3},
                    {0, 1, 1000, 100001, 1000003});
}

TEST(GroupCollectivesTest, AReducedShareHasTheBitsOfTheOrderOfItsOwner) {
  for (size_t piece_bytes : {0, 64}) {
    OnAllWays(Ways(piece_bytes), {1, 2, 3, 5}, [](const Ranks& ranks, int n) {
      ranks.RunToEnd([n](int rank, GroupCollectives& calls) {
        for (size_t own : {0, 1, 17, 1000}) {
          const size_t count = own * static_cast<size_t>(n);
          std::vector<float> data = Uneven(rank, count);
          const std::vector<float> before = data;
          float* const place = data.data() + own * static_cast<size_t>(rank);
          ASSERT_EQ(calls.ReduceScatter(data.data(), place, static_cast<int64_t>(own),
                                        ElementKind::kFloat32, FoldOp::kSum, Soon()),
                    absl::OkStatus());
          std::vector<float> expected = before;
          const std::vector<float> sums = InOrder(n, count, std::max<size_t>(own, 1), false);
          for (size_t i = 0; i < own; ++i) {
            const size_t at = own * static_cast<size_t>(rank) + i;
            expected[at] = n == 1 ? before[at] : sums[at];
          }
          ASSERT_TRUE(SameBits(data, expected));
        }
      });
    });
  }
}

std::string Text(int rank, size_t bytes, int salt = 0) {
  std::string text(bytes, ' ');
  for (size_t i = 0; i < bytes; ++i) {
    text[i] = static_cast<char>('a' + (i * 3 + i / 64 + static_cast<size_t>(rank * 5 + salt)) % 26);
  }
  return text;
}

TEST(GroupCollectivesTest, BroadcastGivesAllTheRootsBytes) {
  for (size_t piece_bytes : {0, 64}) {
    OnAllWays(Ways(piece_bytes), {1, 2, 3, 5}, [](const Ranks& ranks, int n) {
      ranks.RunToEnd([n](int rank, GroupCollectives& calls) {
        for (size_t bytes : {0, 1, 63, 64, 65, 1000, 100000}) {
          for (int root = 0; root < n; ++root) {
            std::string data = Text(rank, bytes, root);
            ASSERT_EQ(calls.Broadcast(&data[0], static_cast<int64_t>(bytes), root, Soon()),
                      absl::OkStatus());
            ASSERT_EQ(data, Text(root, bytes, root));
          }
        }
      });
    });
  }
}

TEST(GroupCollectivesTest, AllGatherGivesAllEverybodysBytesInOrder) {
  for (size_t piece_bytes : {0, 64}) {
    OnAllWays(Ways(piece_bytes), {1, 2, 3, 5}, [](const Ranks& ranks, int n) {
      ranks.RunToEnd([n](int rank, GroupCollectives& calls) {
        for (size_t bytes : {0, 1, 64, 65, 1000, 300000}) {
          if (bytes == 300000 && n > 3) continue;
          std::string expected;
          for (int other = 0; other < n; ++other) expected += Text(other, bytes);
          const std::string own = Text(rank, bytes);
          std::string all(expected.size(), '-');
          ASSERT_EQ(calls.AllGather(own.data(), &all[0], static_cast<int64_t>(bytes), Soon()),
                    absl::OkStatus());
          ASSERT_EQ(all, expected);
          // In its place.
          char* const place = &all[0] + static_cast<size_t>(rank) * bytes;
          std::fill(all.begin(), all.end(), '-');
          std::memcpy(place, own.data(), bytes);
          ASSERT_EQ(calls.AllGather(place, &all[0], static_cast<int64_t>(bytes), Soon()),
                    absl::OkStatus());
          ASSERT_EQ(all, expected);
        }
      });
    });
  }
}

TEST(GroupCollectivesTest, AllToAllGivesEachPairItsOwnSize) {
  for (size_t piece_bytes : {0, 64}) {
    OnAllWays(Ways(piece_bytes), {1, 2, 3, 5}, [](const Ranks& ranks, int n) {
      ranks.RunToEnd([n](int rank, GroupCollectives& calls) {
        for (int64_t unit : {0, 1, 50, 3000}) {
          const auto size = [&](int from, int to) {
            return from == 1 && to == 0 ? 0 : unit * (2 * from + to);
          };
          std::string input, expected;
          std::vector<int64_t> in, out;
          for (int other = 0; other < n; ++other) {
            in.push_back(size(rank, other));
            out.push_back(size(other, rank));
            input += Text(rank, static_cast<size_t>(in.back()), other);
            expected += Text(other, static_cast<size_t>(out.back()), rank);
          }
          std::string output(expected.size(), '-');
          ASSERT_EQ(calls.AllToAll(input.data(), in, &output[0], out, Soon()), absl::OkStatus());
          ASSERT_EQ(output, expected);
        }
      });
    });
  }
}

TEST(GroupCollectivesTest, WhatIsSentIsReceivedInOrder) {
  for (size_t piece_bytes : {0, 64}) {
    OnAllWays(Ways(piece_bytes), {2, 3}, [](const Ranks& ranks, int n) {
      ranks.RunToEnd([n](int rank, GroupCollectives& calls) {
        const std::vector<size_t> sizes = {0, 1, 64, 65, 1000, 300000};
        const int next = (rank + 1) % n, previous = (rank + n - 1) % n;
        for (size_t bytes : sizes) {
          const std::string sent = Text(rank, bytes);
          std::string received(bytes, '-');
          const auto send = [&] {
            ASSERT_EQ(calls.Send(sent.data(), static_cast<int64_t>(bytes), next, Soon()),
                      absl::OkStatus());
          };
          if (rank != 0) send();
          ASSERT_EQ(calls.Recv(&received[0], static_cast<int64_t>(bytes), previous, Soon()),
                    absl::OkStatus());
          if (rank == 0) send();
          ASSERT_EQ(received, Text(previous, bytes));
          ASSERT_EQ(calls.Barrier(Soon()), absl::OkStatus());
        }
      });
    });
  }
}

// More than there is room for, before anybody receives: what comes meanwhile is kept.
TEST(GroupCollectivesTest, RanksMaySendToEachOtherBeforeEitherReceives) {
  OnAllWays({Ways()[0], {"gRPC", [] { return NewGrpcLink(); }}}, {2}, [](const Ranks& ranks, int) {
    ranks.RunToEnd([](int rank, GroupCollectives& calls) {
      const std::string sent = Text(rank, 5000000);
      std::string received(sent.size(), '-');
      for (int i = 0; i < 3; ++i) {
        ASSERT_EQ(calls.Send(sent.data(), static_cast<int64_t>(sent.size()), 1 - rank, Soon()),
                  absl::OkStatus());
      }
      ASSERT_EQ(calls.Barrier(Soon()), absl::OkStatus());
      for (int i = 0; i < 3; ++i) {
        ASSERT_EQ(calls.Recv(&received[0], static_cast<int64_t>(received.size()), 1 - rank, Soon()),
                  absl::OkStatus());
        ASSERT_TRUE(received == Text(1 - rank, sent.size()));
      }
    });
  });
}

TEST(GroupCollectivesTest, ABarrierHoldsAllUntilTheLastHasCome) {
  OnAllWays(Ways(), {2, 5}, [](const Ranks& ranks, int n) {
    std::atomic<int> come{0};
    ranks.RunToEnd([&](int, GroupCollectives& calls) {
      for (int round = 1; round <= 200; ++round) {
        ++come;
        ASSERT_EQ(calls.Barrier(Soon()), absl::OkStatus());
        ASSERT_GE(come.load(), round * n);
      }
    });
  });
}

// Where ranks have fewer cores, and calls of all kinds follow each other at once.
TEST(GroupCollectivesTest, CallsOfAllKindsFollowEachOther) {
  for (size_t piece_bytes : {64, 0}) {
    OnAllWays(Ways(piece_bytes), {2, 4}, [](const Ranks& ranks, int n) {
      ranks.RunToEnd([n](int rank, GroupCollectives& calls) {
        for (int i = 0; i < 60; ++i) {
          const size_t count = static_cast<size_t>(i * i * 3);
          std::vector<int32_t> data(count, rank + i);
          ASSERT_EQ(calls.AllReduce(data.data(), static_cast<int64_t>(count), ElementKind::kInt32,
                                    FoldOp::kSum, Soon()),
                    absl::OkStatus());
          ASSERT_EQ(data, std::vector<int32_t>(count, n * (n - 1) / 2 + n * i));
          std::vector<int32_t> all(count * static_cast<size_t>(n));
          ASSERT_EQ(
              calls.AllGather(data.data(), all.data(), static_cast<int64_t>(count * 4), Soon()),
              absl::OkStatus());
          ASSERT_EQ(calls.Barrier(Soon()), absl::OkStatus());
          data.assign(count, rank);
          ASSERT_EQ(calls.Broadcast(data.data(), static_cast<int64_t>(count * 4), i % n, Soon()),
                    absl::OkStatus());
          ASSERT_EQ(data, std::vector<int32_t>(count, i % n));
        }
      });
    });
  }
}

TEST(GroupCollectivesTest, CallsThatDifferAreNamedOnAllRanks) {
  using Calls = GroupCollectives;
  using OneCall = std::function<absl::Status(Calls&)>;
  const auto reduce = [](int64_t count, ElementKind kind, FoldOp op) -> OneCall {
    return [=](Calls& calls) {
      std::vector<int64_t> data(4096);
      return calls.AllReduce(data.data(), count, kind, op, Soon());
    };
  };
  const OneCall barrier = [](Calls& calls) { return calls.Barrier(Soon()); };
  const auto broadcast = [](int64_t bytes, int root) -> OneCall {
    return [=](Calls& calls) {
      std::string data(static_cast<size_t>(bytes), 'x');
      return calls.Broadcast(&data[0], bytes, root, Soon());
    };
  };
  const auto all_to_all = [](int64_t bytes) -> OneCall {
    return [=](Calls& calls) {
      std::string data(3000, 'x'), output(3000, 'x');
      const std::vector<int64_t> sizes(static_cast<size_t>(calls.world_size()), bytes);
      return calls.AllToAll(data.data(), sizes, &output[0], sizes, Soon());
    };
  };
  struct Case {
    OneCall most, odd;
    std::string said, other;
  };
  const std::vector<Case> cases = {
      {reduce(5, ElementKind::kInt32, FoldOp::kSum), barrier, "all_reduce(sum of 5 int32)",
       "barrier()"},
      {reduce(1000, ElementKind::kInt32, FoldOp::kSum),
       reduce(1001, ElementKind::kInt32, FoldOp::kSum), "1000 int32", "1001 int32"},
      {reduce(8, ElementKind::kInt64, FoldOp::kMax), reduce(8, ElementKind::kFloat64, FoldOp::kMax),
       "8 int64", "8 float64"},
      {reduce(8, ElementKind::kInt64, FoldOp::kMax), reduce(8, ElementKind::kInt64, FoldOp::kMin),
       "(max of", "(min of"},
      {broadcast(1000, 0), broadcast(1000, 1), "bytes of rank 0", "bytes of rank 1"},
      {broadcast(1000, 0), reduce(1000, ElementKind::kInt32, FoldOp::kSum), "broadcast(",
       "all_reduce("},
      {all_to_all(10), all_to_all(11), "10 bytes between", "11 bytes between"},
      {barrier, [](Calls& calls) { return calls.Finish(Soon()); }, "barrier()", "leave()"},
  };
  for (const Case& test : cases) {
    for (size_t piece_bytes : {0, 64}) {
      // A root that sends more than fits waits for room until its deadline.
      const bool from_root = test.said == "bytes of rank 0" || test.said == "broadcast(";
      if (piece_bytes > 0 && from_root) continue;
      OnAllWays(Ways(piece_bytes), {2, 3}, [&](const Ranks& ranks, int n) {
        ranks.Run([&](int rank, GroupCollectives& calls) {
          // A rank that is slow to return from its barrier may find that others failed meanwhile.
          absl::Status status = calls.Barrier(Soon());
          if (status.ok()) status = rank == n - 1 ? test.odd(calls) : test.most(calls);
          EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
          EXPECT_THAT(std::string(status.message()),
                      AllOf(HasSubstr("make different calls"), HasSubstr(test.said),
                            HasSubstr(test.other), HasSubstr(absl::StrCat("rank ", n - 1))));
          EXPECT_EQ(calls.Barrier(Soon()), status);
        });
      });
    }
  }
}

TEST(GroupCollectivesTest, AMessageOfAnotherSizeThanIsReceivedIsNamed) {
  OnAllWays(Ways(), {2}, [](const Ranks& ranks, int) {
    ranks.Run([](int rank, GroupCollectives& calls) {
      std::string data(20, 'x');
      absl::Status status =
          rank == 0 ? calls.Send(data.data(), 12, 1, Soon()) : calls.Recv(&data[0], 16, 0, Soon());
      if (rank == 0 && status.ok()) status = calls.Barrier(Soon());
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
      EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("rank 0 call 1, send(12 bytes)"),
                                                       HasSubstr("rank 1 call 1, recv(16 bytes)")));
    });
  });
}

TEST(GroupCollectivesTest, ARankThatGoesEndsTheCallsOfAllOthers) {
  OnAllWays(Ways(), {2, 3}, [](const Ranks& ranks, int n) {
    ranks.Run([n](int rank, GroupCollectives& calls) {
      std::vector<float> data(1000000);
      for (int i = 0;; ++i) {
        if (rank == n - 1 && i == 3) return;  // without Finish()
        const absl::Status status = calls.AllReduce(data.data(), static_cast<int64_t>(data.size()),
                                                    ElementKind::kFloat32, FoldOp::kSum, Soon());
        if (status.ok()) continue;
        EXPECT_THAT(i, AnyOf(2, 3));  // its last messages may be lost
        EXPECT_TRUE(absl::IsAborted(status)) << status;
        EXPECT_THAT(std::string(status.message()),
                    HasSubstr(absl::StrCat("rank ", n - 1, " left without finishing")));
        EXPECT_EQ(calls.Finish(Soon()), status);
        return;
      }
    });
  });
}

TEST(GroupCollectivesTest, ARankThatDoesNotComeIsNamedAtTheDeadline) {
  OnAllWays(Ways(), {2}, [](const Ranks& ranks, int) {
    Notification opened, failed;
    ranks.Run([&](int rank, GroupCollectives& calls) {
      if (rank == 0) {
        opened.WaitForNotification();  // or rank 1 would fail while it connects
        const absl::Status status = calls.Barrier(Deadline::In(absl::Milliseconds(200)));
        EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
        EXPECT_THAT(std::string(status.message()),
                    AllOf(HasSubstr("call 1, barrier()"), HasSubstr("from rank 1")));
        failed.Notify();
      } else {
        opened.Notify();
        failed.WaitForNotification();
        // Rank 0 had come to its barrier, so that this one may still succeed; the next does not.
        absl::Status status = calls.Barrier(Soon());
        if (status.ok()) status = calls.Barrier(Soon());
        EXPECT_TRUE(absl::IsAborted(status)) << status;
        EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0 waited in vain"));
      }
    });
  });
}

TEST(GroupCollectivesTest, ArgumentsThatAreWrongChangeNothing) {
  OnAllWays(Ways(), {1, 2}, [](const Ranks& ranks, int n) {
    ranks.RunToEnd([n](int rank, GroupCollectives& calls) {
      int64_t data[4] = {rank, rank, rank, rank};
      int64_t output[8] = {};
      const auto expect = [](const absl::Status& status, const std::string& said) {
        EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
        EXPECT_THAT(std::string(status.message()), HasSubstr(said));
      };
      const std::vector<int64_t> sizes(static_cast<size_t>(n), 8);
      if (rank == 0) {
        expect(calls.AllReduce(data, -1, ElementKind::kInt64, FoldOp::kSum, Soon()),
               "count: expected 0 to ");
        expect(calls.AllReduce(data, 1, ElementKind::kInt64, FoldOp::kAvg, Soon()), "found avg");
        expect(calls.Broadcast(data, 8, n, Soon()), "root: expected a rank from 0 to ");
        expect(calls.Send(data, 8, rank, Soon()), "to: expected another rank, found 0");
        expect(calls.Recv(data, 8, -1, Soon()), "from: expected a rank from 0 to ");
        expect(calls.AllToAll(data, {}, output, sizes, Soon()), "sizes: expected ");
        std::vector<int64_t> other = sizes;
        other[0] = 7;
        expect(calls.AllToAll(data, sizes, output, other, Soon()), "gives itself");
      }
      ASSERT_EQ(calls.AllReduce(data, 4, ElementKind::kInt64, FoldOp::kSum, Soon()),
                absl::OkStatus());
      EXPECT_EQ(data[3], n - 1);
      ASSERT_EQ(calls.AllToAll(data, sizes, output, sizes, Soon()), absl::OkStatus());
    });
  });
}

TEST(GroupCollectivesTest, AfterTheEndThereAreNoCalls) {
  OnAllWays(Ways(), {1, 3}, [](const Ranks& ranks, int) {
    ranks.Run([](int, GroupCollectives& calls) {
      EXPECT_EQ(calls.Finish(Soon()), absl::OkStatus());
      EXPECT_EQ(calls.Finish(Soon()), absl::OkStatus());
      EXPECT_TRUE(absl::IsCancelled(calls.Barrier(Soon())));
    });
  });
}

TEST(GroupCollectivesTest, ARankAloneCallsItself) {
  const auto calls = GroupCollectives::Open(GroupCollectivesOptions(), Soon()).value();
  float data[2] = {3, 4}, output[2] = {};
  EXPECT_EQ(calls->AllReduce(data, 2, ElementKind::kFloat32, FoldOp::kAvg, Soon()),
            absl::OkStatus());
  EXPECT_EQ(data[1], 4);
  EXPECT_EQ(calls->ReduceScatter(data, output, 2, ElementKind::kFloat32, FoldOp::kSum, Soon()),
            absl::OkStatus());
  EXPECT_EQ(output[1], 4);
  EXPECT_EQ(calls->AllGather(&data[1], output, 4, Soon()), absl::OkStatus());
  EXPECT_EQ(output[0], 4);
  const std::vector<int64_t> sizes = {8};
  EXPECT_EQ(calls->AllToAll(data, sizes, output, sizes, Soon()), absl::OkStatus());
  EXPECT_EQ(output[0], 3);
  EXPECT_EQ(calls->Broadcast(data, 8, 0, Soon()), absl::OkStatus());
  EXPECT_EQ(calls->Barrier(Soon()), absl::OkStatus());
  EXPECT_EQ(calls->Finish(Soon()), absl::OkStatus());
}

TEST(GroupCollectivesTest, OptionsOutOfRangeAreRefused) {
  GroupCollectivesOptions options;
  options.owners = 2;
  EXPECT_THAT(std::string(GroupCollectives::Open(options, Soon()).status().message()),
              HasSubstr("expected 0 to 1 owners, found 2"));
  options.owners = 0;
  options.group.world_size = 2;
  EXPECT_THAT(std::string(GroupCollectives::Open(options, Soon()).status().message()),
              HasSubstr("expected a store"));
  options.group.rank = 2;
  EXPECT_THAT(std::string(GroupCollectives::Open(options, Soon()).status().message()),
              HasSubstr("found 2 of 2"));
}

TEST(GroupCollectivesTest, RanksWithOtherOptionsDoNotConnect) {
  Way way = Ways()[1];
  const Ranks ranks(2, way);
  std::vector<std::thread> threads;
  for (int rank : {0, 1}) {
    threads.emplace_back([&, rank] {
      GroupCollectivesOptions options = ranks.Options(rank);
      if (rank == 1) options.topology = Topology::kPs;
      const absl::Status status = GroupCollectives::Open(options, Soon()).status();
      EXPECT_TRUE(absl::IsFailedPrecondition(status) || absl::IsAborted(status)) << status;
      EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("ring"), HasSubstr("ps")));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace gradsync
