#include "simulator/event_queue.h"

#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

class Recorder : public EventHandler {
 public:
  explicit Recorder(EventQueue* queue) : queue_(queue) {}

  void OnEvent(int64_t tag) override {
    seen.emplace_back(queue_->now(), tag);
    if (tag == 7) queue_->At(1, this, 8);  // in the past by then
  }

  std::vector<std::pair<double, int64_t>> seen;

 private:
  EventQueue* queue_;
};

TEST(EventQueueTest, EventsHappenInOrderOfTimeAndThoseOfOneTimeInOrderOfAsking) {
  EventQueue queue;
  Recorder recorder(&queue);
  for (const auto& event : {std::pair<double, int64_t>(2, 1), {1, 2}, {2, 3}, {0, 4}, {1, 5}}) {
    queue.At(event.first, &recorder, event.second);
  }
  queue.Run();
  EXPECT_THAT(recorder.seen,
              ElementsAre(Pair(0, 4), Pair(1, 2), Pair(1, 5), Pair(2, 1), Pair(2, 3)));
}

TEST(EventQueueTest, TimeNeverRunsBackwards) {
  EventQueue queue;
  Recorder recorder(&queue);
  queue.At(3, &recorder, 7);
  queue.Run();
  EXPECT_THAT(recorder.seen, ElementsAre(Pair(3, 7), Pair(3, 8)));
}

}  // namespace
}  // namespace gradsync
