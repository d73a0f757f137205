// For tests of what a rank's launch or wait does itself, before which its engine's thread may come while that is awake.

#ifndef GRADSYNC_CORE_SHARED_MEMORY_AWAIT_ASLEEP_H_
#define GRADSYNC_CORE_SHARED_MEMORY_AWAIT_ASLEEP_H_

#include <thread>

#include "core/shared_memory/window.h"
#include "core/shared_memory/window_signals.h"

namespace gradsync {

// Until somebody has said that it sleeps in the engine whose window this is.
inline void AwaitAsleep(const Window& window, WindowControl::Presence who) {
  const auto& control = *reinterpret_cast<const WindowControl*>(window.data());
  while ((control.here.load() & who) == 0) std::this_thread::yield();
}

// Until its own thread has.
inline void AwaitThreadAsleep(const Window& window) {
  AwaitAsleep(window, WindowControl::kThreadAsleep);
}

}  // namespace gradsync

#endif  // GRADSYNC_CORE_SHARED_MEMORY_AWAIT_ASLEEP_H_
