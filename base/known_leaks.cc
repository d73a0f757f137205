// What the leak sanitizer is not to report, in programs that use gRPC: memory that c-ares keeps of a
// name that was being looked up when the process ended. The system's libraries are not ours to mend.
// It is known by where it was allocated, so that a leak of ours is reported on their threads too.

#include "base/sanitizers.h"

#if defined(GRADSYNC_ADDRESS_SANITIZER)

extern "C" const char* __lsan_default_suppressions();

extern "C" const char* __lsan_default_suppressions() { return "leak:libcares.so\n"; }

#endif
