#ifndef GRADSYNC_CORE_SHARED_MEMORY_STEP_NOTE_H_
#define GRADSYNC_CORE_SHARED_MEMORY_STEP_NOTE_H_

#include <array>
#include <cstdint>

#include "core/plan/step_options.h"

namespace gradsync {

// A step's options as a worker leaves them in its window for the owners (WindowControl::note), bit
// by bit. Pure functions, thread-safe.
std::array<uint64_t, 4> NoteOf(const StepOptions& step);
StepOptions StepOf(const std::array<uint64_t, 4>& note);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_SHARED_MEMORY_STEP_NOTE_H_
