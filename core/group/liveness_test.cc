#include "core/group/liveness.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "core/base/monotonic_time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::StartsWith;

constexpr absl::Duration kTimeout = absl::Seconds(10);

TEST(BeatTest, IsReadBackAsItWasWritten) {
  Beat beat;
  beat.number = 7;
  beat.done = 123456789012;
  beat.working = true;
  beat.proven = true;
  beat.stopped_thread = 4711;
  const absl::optional<Beat> read = Beat::Parse(beat.ToText());
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->number, 7);
  EXPECT_EQ(read->done, 123456789012);
  EXPECT_TRUE(read->working);
  EXPECT_TRUE(read->proven);
  EXPECT_FALSE(read->left);
  EXPECT_EQ(read->stopped_thread, 4711);
}

TEST(BeatTest, WhatIsNoBeatIsNone) {
  for (const char* text : {"", "1", "1 2 1 1", "1 2 1 1 0", "1 2 1 1 0 4 5", "a 2 1 1 0 0",
                           "1 b 1 1 0 0", "1 2 1 1 0 c", " "}) {
    EXPECT_FALSE(Beat::Parse(text).has_value()) << "\"" << text << "\"";
  }
}

// Two ranks, beats once a second, told by hand.
class LivenessTest : public ::testing::Test {
 protected:
  LivenessTest() : liveness_(kTimeout, now_) {
    for (int rank = 0; rank < 2; ++rank) {
      liveness_.Add(absl::StrCat("rank ", rank), Liveness::Kind::kRank);
      beats_[rank].proven = true;
    }
  }

  // One interval in which the members named in `beating` are heard of.
  absl::optional<std::string> Tick(const std::vector<int>& beating) {
    now_ += BeatInterval(kTimeout);
    absl::optional<std::string> verdict = liveness_.Judge(now_);
    for (int rank : beating) {
      ++beats_[rank].number;
      liveness_.OnBeat(rank, beats_[rank], now_);
    }
    return verdict;
  }

  // The verdict of so much time, or none.
  absl::optional<std::string> Pass(absl::Duration time, const std::vector<int>& beating) {
    const MonotonicTime end = now_ + time;
    while (now_ < end) {
      const absl::optional<std::string> verdict = Tick(beating);
      if (verdict.has_value()) return verdict;
    }
    return absl::nullopt;
  }

  MonotonicTime now_ = MonotonicTime() + absl::Hours(100);
  Liveness liveness_;
  Beat beats_[2];
};

TEST_F(LivenessTest, NobodyIsMissedWhoHasNotBegun) {
  EXPECT_EQ(Pass(absl::Hours(1), {0}), absl::nullopt);
}

TEST_F(LivenessTest, AMemberThatIsSilentForTheTimeoutIsLost) {
  EXPECT_EQ(Pass(absl::Seconds(30), {0, 1}), absl::nullopt);
  EXPECT_EQ(Pass(absl::Seconds(9), {0}), absl::nullopt);
  EXPECT_EQ(Pass(absl::Seconds(2), {0}).value_or("nobody"), "rank 1 lost: no sign of life for 10s");
}

TEST_F(LivenessTest, AMemberThatWorksAndDoesNothingIsStuck) {
  beats_[0].working = false;
  beats_[1].working = true;
  EXPECT_EQ(Pass(absl::Seconds(9), {0, 1}), absl::nullopt);
  EXPECT_EQ(Pass(absl::Seconds(2), {0, 1}).value_or("nobody"),
            "rank 1 stuck: it is alive and at work, but has done nothing for 10s");
}

// Which may be the one that waits, in the first step too, while others are at work for it.
TEST_F(LivenessTest, AMemberWithAStoppedThreadIsStuckWhateverItSays) {
  beats_[0].working = true;
  beats_[1].proven = false;
  Tick({0, 1});
  beats_[1].stopped_thread = 99;
  EXPECT_EQ(Pass(absl::Seconds(9), {0, 1}), absl::nullopt);
  EXPECT_EQ(Pass(absl::Seconds(2), {0, 1}).value_or("nobody"),
            "rank 1 stuck: it is alive, but its thread 99 has been stopped for 10s");
}

// The beats of others may have come to that thread.
TEST_F(LivenessTest, AJudgeWithAStoppedThreadMissesNobodyElse) {
  Tick({0, 1});
  beats_[0].stopped_thread = 99;
  EXPECT_EQ(Pass(absl::Seconds(20), {0}).value_or("nobody"),
            "rank 0 stuck: it is alive, but its thread 99 has been stopped for 10s");
}

TEST_F(LivenessTest, AThreadThatIsStoppedNowAndThenIsNoFailure) {
  for (int i = 0; i < 10; ++i) {
    beats_[1].stopped_thread = 99;
    EXPECT_EQ(Pass(absl::Seconds(6), {0, 1}), absl::nullopt);
    beats_[1].stopped_thread = 0;
    Tick({0, 1});
  }
}

// As strace does with a process.
TEST_F(LivenessTest, ThreadsThatAreStoppedInTurnAreNoFailure) {
  for (int i = 0; i < 10; ++i) {
    beats_[1].stopped_thread = 99 + i;
    EXPECT_EQ(Pass(absl::Seconds(6), {0, 1}), absl::nullopt);
  }
}

TEST_F(LivenessTest, AMemberWhoseConnectionEndsIsLostUnlessItHasLeft) {
  Tick({0, 1});
  beats_[0].left = true;
  Tick({0, 1});
  liveness_.OnGone(0);
  EXPECT_EQ(Pass(absl::Seconds(9), {1}), absl::nullopt);
  liveness_.OnGone(1);
  EXPECT_EQ(Tick({}).value_or("nobody"),
            "rank 1 lost: its connection to the store of rank 0 has ended");
}

TEST_F(LivenessTest, AMemberThatWaitsIsNeverToBlame) {
  EXPECT_EQ(Pass(absl::Hours(1), {0, 1}), absl::nullopt);
}

TEST_F(LivenessTest, AFirstStepMayTakeAsLongAsItTakesAndOthersAreNotBlamedForIt) {
  beats_[0].working = beats_[1].working = true;
  beats_[1].proven = false;
  Tick({0, 1});
  ++beats_[0].done;
  EXPECT_EQ(Pass(absl::Hours(1), {0, 1}), absl::nullopt);
  ++beats_[0].done;
  ++beats_[1].done;
  beats_[1].proven = true;
  EXPECT_EQ(Pass(absl::Hours(9), {0, 1}), absl::nullopt);  // it has shown how long it may take
}

TEST_F(LivenessTest, WhoeverWasWaitedForInVainIsBlamedWhateverItsLimit) {
  for (int rank : {0, 1}) beats_[rank].proven = false;
  beats_[1].working = true;
  EXPECT_EQ(Pass(kTimeout / 2, {0, 1}), absl::nullopt);
  EXPECT_EQ(liveness_.Blame(now_), absl::nullopt);
  EXPECT_EQ(Pass(3 * kTimeout, {0, 1}), absl::nullopt);
  EXPECT_THAT(liveness_.Blame(now_).value_or(""), StartsWith("rank 1 stuck: "));
  beats_[1].working = false;
  Tick({0, 1});
  EXPECT_EQ(liveness_.Blame(now_), absl::nullopt);
}

TEST_F(LivenessTest, OneThatHasTakenLongBeforeMayTakeTenTimesAsLong) {
  beats_[1].working = true;
  EXPECT_EQ(Pass(absl::Seconds(8), {0, 1}), absl::nullopt);
  ++beats_[1].done;
  EXPECT_EQ(Pass(absl::Seconds(70), {0, 1}), absl::nullopt);
  EXPECT_THAT(Pass(absl::Seconds(10), {0, 1}).value_or("nobody"), StartsWith("rank 1 stuck"));
}

TEST_F(LivenessTest, OfTwoThatDoNothingTheOneThatStoppedFirstIsToBlame) {
  beats_[0].working = beats_[1].working = true;
  for (int second = 0; second < 5; ++second) {
    EXPECT_EQ(Pass(absl::Seconds(1), {0, 1}), absl::nullopt);
    beats_[0].done += 100;  // that a rank has done more than others says nothing by itself
  }
  EXPECT_THAT(Pass(absl::Seconds(20), {0, 1}).value_or("nobody"), StartsWith("rank 1 stuck"));
}

TEST_F(LivenessTest, OfTwoThatStoppedTogetherTheOneThatHasDoneLessIsToBlame) {
  beats_[0].working = beats_[1].working = true;
  beats_[0].done = 5;
  beats_[1].done = 4;
  Tick({0});
  EXPECT_THAT(Pass(absl::Seconds(20), {0, 1}).value_or("nobody"), StartsWith("rank 1 stuck"));
}

TEST_F(LivenessTest, WhileOneIsSilentNobodyElseIsStuck) {
  beats_[0].working = true;
  Tick({0, 1});
  EXPECT_THAT(Pass(absl::Seconds(20), {0}).value_or("nobody"), StartsWith("rank 1 lost"));
}

TEST_F(LivenessTest, WhoHasLeftIsNotMissed) {
  Tick({0, 1});
  beats_[1].left = true;
  Tick({0, 1});
  EXPECT_EQ(Pass(absl::Hours(1), {0}), absl::nullopt);
}

TEST_F(LivenessTest, ABeatThatIsThereAgainIsNone) {
  Tick({0, 1});
  absl::optional<std::string> verdict;
  for (int i = 0; i < 25 && !verdict.has_value(); ++i) {
    verdict = Tick({0});
    liveness_.OnBeat(1, beats_[1], now_);
  }
  EXPECT_THAT(verdict.value_or("nobody"), StartsWith("rank 1 lost"));
}

TEST_F(LivenessTest, AJobThatWasSuspendedGoesOn) {
  beats_[1].working = true;
  EXPECT_EQ(Pass(absl::Seconds(9), {0, 1}), absl::nullopt);
  now_ += absl::Hours(5);
  EXPECT_EQ(Tick({0}), absl::nullopt);
  EXPECT_EQ(Tick({0, 1}), absl::nullopt);
  // What was over before is over still.
  EXPECT_THAT(Pass(absl::Seconds(3), {0, 1}).value_or("nobody"), StartsWith("rank 1 stuck"));
}

TEST_F(LivenessTest, WithoutMembersThereIsNothingToSay) {
  Liveness nobody(kTimeout, now_);
  EXPECT_EQ(nobody.Judge(now_ + absl::Hours(1)), absl::nullopt);
}

// A job by chance: members do things after gaps, wait for each other, say so or not, their beats
// come late, the judge is late, the whole job is suspended; and at most one of them stops or gets
// stuck. Whatever happens, nobody else is ever blamed, and who is to blame is named in time.
class History {
 public:
  explicit History(unsigned seed) : random_(seed) {
    const int ranks = Between(1, 6);
    const int servers = Between(0, 2);
    for (int i = 0; i < ranks + servers; ++i) {
      Member member;
      const bool rank = i < ranks;
      member.name = rank ? absl::StrCat("rank ", i) : absl::StrCat("server ", i - ranks, " (h:1)");
      member.rank = rank;
      member.phase = Random() * interval_;
      member.begins = now_ + Random() * absl::Seconds(20);
      member.next_beat = member.begins + member.phase;
      member.says_so = Random() < 0.8;
      member.gap = (0.01 + 0.8 * Random()) * kTimeout;
      member.beat.proven = true;
      members_.push_back(member);
    }
    const absl::Duration when = absl::Seconds(30) + Random() * absl::Seconds(200);
    fault_at_ = now_ + when;
    culprit_ = Between(0, static_cast<int>(members_.size()) - 1);
    const double kind = Random();
    fault_ = kind < 0.2 ? Fault::kNone : kind < 0.6 ? Fault::kStopped : Fault::kStuck;
    // Servers wait unless they have something to do.
    if (fault_ == Fault::kStuck && !members_[culprit_].rank) fault_ = Fault::kStopped;
    suspend_at_ =
        Random() < 0.3 ? now_ + Random() * absl::Seconds(230) : MonotonicTime::InfiniteFuture();
  }

  // Empty, or what is wrong with the judge.
  std::string Run() {
    Liveness liveness(kTimeout, now_);
    for (const Member& member : members_) {
      liveness.Add(member.name, member.rank ? Liveness::Kind::kRank : Liveness::Kind::kServer);
    }
    const MonotonicTime end = fault_at_ + absl::Minutes(5);
    while (now_ < end) {
      now_ += interval_ * (Random() < 0.9 ? 1 + 0.2 * Random() : 1 + 3 * Random());
      if (now_ > suspend_at_) Suspend();
      const absl::optional<std::string> verdict = liveness.Judge(now_);
      if (verdict.has_value()) return CheckVerdict(*verdict);
      for (size_t i = 0; i < members_.size(); ++i) Advance(static_cast<int>(i), &liveness);
      if (Faulty() && now_ > fault_at_ + Patience()) {
        return absl::StrCat("nobody was blamed for ", members_[culprit_].name);
      }
    }
    return "";
  }

 private:
  enum class Fault { kNone, kStopped, kStuck };

  struct Member {
    std::string name;
    bool rank = false;
    bool says_so = true;  // that it waits for others
    absl::Duration gap;   // longest between two things that it does
    absl::Duration phase;
    bool held = false;  // by the culprit, since the fault
    MonotonicTime begins;
    MonotonicTime next_beat;
    MonotonicTime next_done = MonotonicTime::InfinitePast();
    Beat beat;
  };

  double Random() { return std::uniform_real_distribution<double>(0, 1)(random_); }
  int Between(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  bool Faulty() const { return fault_ != Fault::kNone && now_ > fault_at_; }

  absl::Duration Patience() const {
    const absl::Duration limit =
        fault_ == Fault::kStopped ? kTimeout : std::max(kTimeout, 10 * members_[culprit_].gap);
    // The judge is late now and then, and moves its deadlines by that.
    return 1.4 * limit + absl::Seconds(5);
  }

  void Suspend() {
    const absl::Duration time = absl::Seconds(600) * Random();
    suspend_at_ = MonotonicTime::InfiniteFuture();
    now_ += time;
    fault_at_ += time;  // one that is over: it is to be noticed that much later
    for (Member& member : members_) {
      member.next_beat += time;
      member.next_done += time;
      member.begins += time;
    }
  }

  void Advance(int index, Liveness* liveness) {
    Member& member = members_[static_cast<size_t>(index)];
    if (now_ < member.begins) return;
    const bool culprit = index == culprit_ && Faulty();
    if (culprit && fault_ == Fault::kStopped) return;
    // Others go on for a while, until they need the culprit.
    const bool held_up = Faulty() && index != culprit_ && now_ > fault_at_ + 0.5 * member.gap;
    if (!member.rank) {
      member.beat.working = false;
    } else if (held_up) {
      member.beat.working = !member.says_so;
      // It got at least as far as the culprit, whom it needs to go on.
      const int64_t theirs = members_[static_cast<size_t>(culprit_)].beat.done;
      if (!member.held) member.beat.done = std::max(member.beat.done, theirs) + 1;
      member.held = true;
    } else if (!culprit && now_ >= member.next_done) {
      ++member.beat.done;
      member.beat.working = Random() < 0.9;
      member.next_done = now_ + Random() * member.gap;
    } else if (culprit) {
      member.beat.working = true;
    }
    if (now_ < member.next_beat) return;
    ++member.beat.number;
    member.next_beat = now_ + interval_ * (0.5 + Random());
    liveness->OnBeat(index, member.beat, now_);
  }

  std::string CheckVerdict(const std::string& verdict) const {
    if (fault_ == Fault::kNone || now_ < fault_at_) {
      return absl::StrCat("a healthy job was ended: ", verdict);
    }
    const std::string expected =
        absl::StrCat(members_[culprit_].name, fault_ == Fault::kStopped ? " lost" : " stuck");
    if (!absl::StartsWith(verdict, expected)) {
      return absl::StrCat("expected \"", expected, "\", found \"", verdict, "\"");
    }
    return "";
  }

  std::mt19937 random_;
  const absl::Duration interval_ = BeatInterval(kTimeout);
  MonotonicTime now_ = MonotonicTime() + absl::Hours(1);
  std::vector<Member> members_;
  Fault fault_ = Fault::kNone;
  int culprit_ = 0;
  MonotonicTime fault_at_;
  MonotonicTime suspend_at_;
};

TEST(LivenessHistoriesTest, NobodyInnocentIsBlamedAndTheCulpritIsNamedInTime) {
  for (unsigned seed = 0; seed < 10000; ++seed) {
    const std::string wrong = History(seed).Run();
    ASSERT_EQ(wrong, "") << "seed " << seed;
  }
}

}  // namespace
}  // namespace gradsync
