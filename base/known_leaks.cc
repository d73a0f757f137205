// What the leak sanitizer is not to report, in programs that use gRPC: memory that c-ares keeps of a
// name that was being looked up when the process ended, and 576 bytes that gRPC 1.51 keeps of each
// TLS connection whose reads are larger than its default: the list of slices that it reads into, once
// it has grown. A program of 60 lines with gRPC alone shows it. The system's libraries are not ours
// to mend. Both are known by where they were allocated, so that a leak of ours is reported on their
// threads too.

#include "base/sanitizers.h"

#if defined(GRADSYNC_ADDRESS_SANITIZER)

extern "C" const char* __lsan_default_suppressions();

extern "C" const char* __lsan_default_suppressions() {
  return "leak:libcares.so\nleak:gpr_realloc\n";
}

#endif
