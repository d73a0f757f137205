// Peers that are shell scripts.

#include "benchmarks/peer_libraries/peer_job.h"

#include <atomic>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

constexpr absl::Duration kLong = absl::Seconds(60);

StandingPeer Peer(const std::string& script) {
  return StandingPeer({"/bin/sh", "-c", script}, {}, "/bin/sh");
}

TEST(StandingPeerTest, TheSameProcessTakesAllTurnsAndWhatItPrintsBesidesIsNoAnswer) {
  StandingPeer peer = Peer(R"(
    echo "a library's greeting"; echo ready
    turn=0
    while read line; do
      turn=$((turn + 1))
      if [ "$line" = "turn $turn" ]; then echo noise; echo done; else echo cannot run: $line; fi
    done)");
  EXPECT_EQ(peer.TakeTurn("turn 1", kLong, nullptr), absl::OkStatus());
  EXPECT_EQ(peer.TakeTurn("turn 2", kLong, nullptr), absl::OkStatus());
  EXPECT_EQ(peer.TakeTurn("turn 4", kLong, nullptr), absl::AbortedError("cannot run: turn 4"));
  // Another process has taken its place.
  EXPECT_EQ(peer.TakeTurn("turn 1", kLong, nullptr), absl::OkStatus());
}

TEST(StandingPeerTest, OneThatIsNotInstalledIsNotStarted) {
  StandingPeer peer({"/bin/sh", "-c", "echo ready"}, {}, "/nowhere/installed");
  const absl::Status status = peer.TakeTurn("turn", kLong, nullptr);
  EXPECT_EQ(status, absl::NotFoundError("not installed; tools/setup --peers installs it"));
}

TEST(StandingPeerTest, WhyItCannotStartIsTheError) {
  EXPECT_EQ(Peer("echo cannot run: no memory").TakeTurn("turn", kLong, nullptr),
            absl::AbortedError("cannot run: no memory"));
  EXPECT_EQ(Peer("exit 3").TakeTurn("turn", kLong, nullptr).code(), absl::StatusCode::kAborted);
}

TEST(StandingPeerTest, OneThatDoesNotAnswerIsGivenUp) {
  const absl::Status status = Peer("echo ready; while read line; do :; done")
                                  .TakeTurn("turn", absl::Milliseconds(200), nullptr);
  EXPECT_EQ(status, absl::DeadlineExceededError("did not end within 200ms"));
}

TEST(StandingPeerTest, AnInterruptEndsAWait) {
  const std::atomic<int> interrupt{2};
  EXPECT_EQ(
      Peer("echo ready; while read line; do :; done").TakeTurn("turn", kLong, &interrupt).code(),
      absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace gradsync
