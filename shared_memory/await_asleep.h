// For tests of what a rank's launch or wait does itself, before which its engine's thread may come while that is awake.

#ifndef GRADSYNC_SHARED_MEMORY_AWAIT_ASLEEP_H_
#define GRADSYNC_SHARED_MEMORY_AWAIT_ASLEEP_H_

#include <thread>

#include "shared_memory/window.h"
#include "shared_memory/window_signals.h"

namespace gradsync {

// Until the thread of the engine whose window this is has said that it sleeps.
inline void AwaitThreadAsleep(const Window& window) {
  const auto& control = *reinterpret_cast<const WindowControl*>(window.data());
  while ((control.here.load() & WindowControl::kThreadAsleep) == 0) std::this_thread::yield();
}

}  // namespace gradsync

#endif  // GRADSYNC_SHARED_MEMORY_AWAIT_ASLEEP_H_
