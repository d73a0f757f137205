#ifndef GRADSYNC_BASE_AVAILABLE_MEMORY_H_
#define GRADSYNC_BASE_AVAILABLE_MEMORY_H_

#include <cstdint>

namespace gradsync {

// Bytes that the host can give without taking them from a process, or all that it has when the
// kernel does not say. To be asked before much is taken: the kernel would not refuse it, but kill
// processes, whosever they are, until there is room. Thread-safe.
uint64_t AvailableMemory();

}  // namespace gradsync

#endif  // GRADSYNC_BASE_AVAILABLE_MEMORY_H_
