// The clock of a simulation: what happens when.

#ifndef GRADSYNC_SIMULATOR_EVENT_QUEUE_H_
#define GRADSYNC_SIMULATOR_EVENT_QUEUE_H_

#include <cstdint>
#include <queue>
#include <vector>

namespace gradsync {

// Told when its time has come. `tag` is what it said when it asked.
class EventHandler {
 public:
  virtual ~EventHandler() = default;
  virtual void OnEvent(int64_t tag) = 0;
};

// Events in order of time; those of the same time in the order in which they were asked for, so a
// simulation is the same on every run and machine. Time is in seconds and starts at 0. Not
// thread-safe; nothing blocks. Handlers must outlive their events.
class EventQueue {
 public:
  double now() const { return now_; }

  // At `time`, or now if that has passed.
  void At(double time, EventHandler* handler, int64_t tag);

  // Runs events until none is left, those included that events ask for.
  void Run();

 private:
  struct Event {
    double time;
    int64_t number;
    EventHandler* handler;
    int64_t tag;
  };
  struct Later {
    bool operator()(const Event& a, const Event& b) const {
      return a.time != b.time ? a.time > b.time : a.number > b.number;
    }
  };

  double now_ = 0;
  int64_t events_ = 0;
  std::priority_queue<Event, std::vector<Event>, Later> queue_;
};

}  // namespace gradsync

#endif  // GRADSYNC_SIMULATOR_EVENT_QUEUE_H_
