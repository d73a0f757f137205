#include "core/shared_memory/window_signals.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/deadline.h"
#include "core/shared_memory/window.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

// Members as threads, each of which maps all control words itself, as processes would.
class Controls {
 public:
  explicit Controls(int members) {
    for (int i = 0; i < members; ++i) windows_.push_back(*Window::Create(sizeof(WindowControl)));
  }

  WindowSignals Member(int self, WindowSignals::Holders workers, WindowSignals::Holders owners) {
    std::vector<WindowControl*> controls;
    for (const auto& window : windows_) {
      maps_.push_back(*Window::Map(FileDescriptor(dup(window->file())), sizeof(WindowControl)));
      controls.push_back(reinterpret_cast<WindowControl*>(maps_.back()->data()));
    }
    return WindowSignals(controls, self, workers, owners);
  }

  uint32_t bell(int member) const {
    return reinterpret_cast<const WindowControl*>(windows_[member]->data())->bell;
  }

 private:
  std::vector<std::shared_ptr<Window>> windows_;
  std::vector<std::shared_ptr<Window>> maps_;
};

// Each member goes on when all others have come: a lost wake-up would hang. Every other round a
// guest takes the thread's place.
void RunLockstep(int members, absl::Duration spin, int rounds) {
  Controls controls(members);
  std::vector<WindowSignals> signals;
  for (int i = 0; i < members; ++i) {
    signals.push_back(controls.Member(i, {0, members}, {0, members}));
  }
  std::vector<std::thread> threads;
  for (int i = 0; i < members; ++i) {
    threads.emplace_back([&, i] {
      WindowSignals& self = signals[i];
      for (int round = 1; round <= rounds; ++round) {
        const uint32_t value = static_cast<uint32_t>(round);
        if (self.Publish(WindowControl::kReady, value)) self.RingOwners();
        const auto reached = [&] { return self.AllReached(WindowControl::kReady, value); };
        if (round % 2 == 0) {
          self.Await(WindowSignals::kThread, reached, spin);
          continue;
        }
        self.GuestComes();
        self.Await(WindowSignals::kGuest, reached, spin);
        self.GuestLeaves();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(WindowSignalsTest, NoWakeUpIsLost) {
  RunLockstep(4, absl::ZeroDuration(), 5000);
  RunLockstep(3, absl::Microseconds(3), 5000);
}

TEST(WindowSignalsTest, WorkersAreRungByServersAndServersByWorkers) {
  Controls controls(3);
  std::vector<WindowSignals> signals;
  for (int i = 0; i < 3; ++i) signals.push_back(controls.Member(i, {0, 2}, {2, 3}));
  std::atomic<int> turn{0};
  std::thread server([&] {
    signals[2].Await(
        WindowSignals::kThread, [&] { return signals[2].AllReached(WindowControl::kReady, 1); },
        absl::ZeroDuration());
    turn = 1;
    signals[2].RingOtherWorkers();
  });
  EXPECT_FALSE(signals[0].Publish(WindowControl::kReady, 1));
  EXPECT_TRUE(signals[1].Publish(WindowControl::kReady, 1));
  signals[1].RingOwners();
  for (int rank : {0, 1}) {
    signals[rank].Await(
        WindowSignals::kThread, [&] { return turn == 1; }, absl::ZeroDuration());
  }
  server.join();
}

TEST(WindowSignalsTest, AwaitEndsAtItsDeadline) {
  Controls controls(1);
  WindowSignals signals = controls.Member(0, {0, 1}, {0, 1});
  const Deadline deadline = Deadline::In(absl::Milliseconds(20));
  signals.Await(
      WindowSignals::kGuest, [] { return false; }, absl::ZeroDuration(), deadline);
  EXPECT_TRUE(deadline.passed());
}

TEST(WindowSignalsTest, AGuestIsRungInsteadOfTheThread) {
  Controls controls(2);
  WindowSignals signals = controls.Member(0, {0, 1}, {0, 1});
  WindowSignals other = controls.Member(1, {0, 1}, {0, 1});
  std::atomic<bool> stop{false};
  std::atomic<int> looks{0};
  std::thread thread([&] {
    signals.Await(
        WindowSignals::kThread,
        [&] {
          ++looks;
          return stop.load();
        },
        absl::ZeroDuration());
  });
  while (looks == 0) std::this_thread::yield();
  signals.GuestComes();
  const int before = looks;
  std::atomic<bool> rung{false};
  std::thread guest([&] {
    signals.Await(
        WindowSignals::kGuest, [&] { return rung.load(); }, absl::ZeroDuration());
  });
  rung = true;
  other.RingOtherWorkers();
  guest.join();
  // The thread may have been on its way to sleep, and then looks once more.
  EXPECT_LE(looks, before + 1);
  signals.GuestLeaves();
  stop = true;
  signals.RingSelf();
  thread.join();
}

TEST(WindowSignalsTest, NobodysBellIsTouchedWhoIsAwake) {
  Controls controls(2);
  WindowSignals one = controls.Member(0, {0, 2}, {0, 2});
  WindowSignals other = controls.Member(1, {0, 2}, {0, 2});
  one.RingOwners();
  one.RingOtherWorkers();
  other.GuestComes();
  one.RingOtherGuests();
  EXPECT_EQ(controls.bell(1), 0u);
}

TEST(WindowSignalsTest, CountersMayWrapAround) {
  Controls controls(1);
  WindowSignals signals = controls.Member(0, {0, 1}, {0, 1});
  EXPECT_TRUE(signals.AllReached(WindowControl::kReady, 0xffffffff));
  signals.Publish(WindowControl::kReady, 0xfffffff0);
  EXPECT_FALSE(signals.AllReached(WindowControl::kReady, 5));
  signals.Publish(WindowControl::kReady, 7);
  EXPECT_TRUE(signals.AllReached(WindowControl::kReady, 0xfffffff0));
  EXPECT_TRUE(signals.AllReached(WindowControl::kReady, 5));
}

TEST(WindowSignalsTest, WhatAllHoldersAreBeyondIsTheLeastOfThem) {
  Controls controls(2);
  WindowSignals one = controls.Member(0, {0, 2}, {0, 2});
  WindowSignals other = controls.Member(1, {0, 2}, {0, 2});
  one.Publish(WindowControl::kReady, 5);
  other.Publish(WindowControl::kReady, 3);
  EXPECT_EQ(one.Beyond(WindowControl::kReady, 1), 2u);
  EXPECT_EQ(one.Beyond(WindowControl::kReady, 3), 0u);
  EXPECT_EQ(other.Beyond(WindowControl::kReady, 0xfffffffe), 5u);
}

TEST(WindowSignalsTest, RingSelfMakesTheWaitingThreadLookAgain) {
  Controls controls(2);
  WindowSignals signals = controls.Member(0, {0, 2}, {0, 2});
  std::atomic<bool> stopped{false};
  std::thread waits([&] {
    signals.Await(
        WindowSignals::kThread, [&] { return stopped.load(); }, absl::ZeroDuration());
  });
  stopped = true;
  signals.RingSelf();
  waits.join();
}

TEST(WindowSignalsTest, NotesOfOneMemberAreReadByOthers) {
  Controls controls(2);
  WindowSignals one = controls.Member(0, {0, 2}, {0, 2});
  const WindowSignals other = controls.Member(1, {0, 2}, {0, 2});
  one.SetNote({1, 2, 3, 4});
  EXPECT_EQ(other.note(0), (std::array<uint64_t, 4>{1, 2, 3, 4}));
  EXPECT_EQ(other.note(1), (std::array<uint64_t, 4>{}));
}

}  // namespace
}  // namespace gradsync
