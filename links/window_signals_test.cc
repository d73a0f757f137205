#include "links/window_signals.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "links/window.h"

namespace gradsync {
namespace {

// Members as threads, each of which maps all control words itself, as processes would.
class Controls {
 public:
  explicit Controls(int members) {
    for (int i = 0; i < members; ++i) windows_.push_back(*Window::Create(sizeof(WindowControl)));
  }

  WindowSignals Member(int self, WindowSignals::Keepers workers, WindowSignals::Keepers owners) {
    std::vector<WindowControl*> controls;
    for (const auto& window : windows_) {
      maps_.push_back(*Window::Map(FileDescriptor(dup(window->file())), sizeof(WindowControl)));
      controls.push_back(reinterpret_cast<WindowControl*>(maps_.back()->data()));
    }
    return WindowSignals(controls, self, workers, owners);
  }

 private:
  std::vector<std::shared_ptr<Window>> windows_;
  std::vector<std::shared_ptr<Window>> maps_;
};

// Each member goes on when all others have come: a lost wake-up would hang.
void RunLockstep(int members, int workers, int first_owner, absl::Duration spin, int rounds) {
  Controls controls(members);
  std::vector<WindowSignals> signals;
  for (int i = 0; i < members; ++i) {
    signals.push_back(controls.Member(i, {0, workers}, {first_owner, members}));
  }
  std::vector<std::thread> threads;
  for (int i = 0; i < members; ++i) {
    threads.emplace_back([&, i] {
      WindowSignals& self = signals[i];
      for (int round = 1; round <= rounds; ++round) {
        const uint32_t value = static_cast<uint32_t>(round);
        if (i < workers) self.Advance(WindowControl::kReady, value);
        if (i >= first_owner) {
          self.Await([&] { return self.AllReached(WindowControl::kReady, value); }, spin);
          self.Advance(WindowControl::kDone, value);
        }
        if (i < workers) {
          self.Await([&] { return self.AllReached(WindowControl::kDone, value); }, spin);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(WindowSignalsTest, NoWakeUpIsLostBetweenRanksThatAreAllOwners) {
  RunLockstep(4, 4, 0, absl::ZeroDuration(), 5000);
  RunLockstep(3, 3, 0, absl::Microseconds(3), 5000);
}

TEST(WindowSignalsTest, NoWakeUpIsLostBetweenWorkersAndServers) {
  RunLockstep(5, 3, 3, absl::ZeroDuration(), 5000);
}

TEST(WindowSignalsTest, CountersMayWrapAround) {
  Controls controls(1);
  WindowSignals signals = controls.Member(0, {0, 1}, {0, 1});
  EXPECT_TRUE(signals.AllReached(WindowControl::kReady, 0xffffffff));
  signals.Advance(WindowControl::kReady, 0xfffffff0);
  EXPECT_FALSE(signals.AllReached(WindowControl::kReady, 5));
  signals.Advance(WindowControl::kReady, 7);
  EXPECT_TRUE(signals.AllReached(WindowControl::kReady, 0xfffffff0));
  EXPECT_TRUE(signals.AllReached(WindowControl::kReady, 5));
}

TEST(WindowSignalsTest, RingSelfMakesTheWaitingThreadLookAgain) {
  Controls controls(2);
  WindowSignals signals = controls.Member(0, {0, 2}, {0, 2});
  std::atomic<bool> stopped{false};
  std::thread waits([&] { signals.Await([&] { return stopped.load(); }, absl::ZeroDuration()); });
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
