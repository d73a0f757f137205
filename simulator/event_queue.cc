#include "simulator/event_queue.h"

#include <algorithm>

namespace gradsync {

void EventQueue::At(double time, EventHandler* handler, int64_t tag) {
  queue_.push({std::max(time, now_), events_++, handler, tag});
}

void EventQueue::Run() {
  while (!queue_.empty()) {
    const Event event = queue_.top();
    queue_.pop();
    now_ = event.time;
    event.handler->OnEvent(event.tag);
  }
}

}  // namespace gradsync
