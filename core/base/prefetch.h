// Lines of memory, asked for ahead of use.

#ifndef GRADSYNC_CORE_BASE_PREFETCH_H_
#define GRADSYNC_CORE_BASE_PREFETCH_H_

namespace gradsync {

// Has this core's cache get the line for writing. A read first would have it come twice.
// (The kernels have one of their own: core/base/kernels_body.inc may include no inline functions.)
inline void PrefetchToWrite(const void* line) {
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(line)));
}

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_PREFETCH_H_
