// What sanitizers are not to report, in programs that use gRPC. The system's libraries are not ours
// to mend.
//
// The leak sanitizer: memory that c-ares keeps of a name that was being looked up when the process
// ended, and 576 bytes that gRPC 1.51 keeps of each TLS connection whose reads are larger than its
// default: the list of slices that it reads into, once it has grown. A program of 60 lines with gRPC
// alone shows it. And the 904 bytes in which OpenSSL 3.0 keeps errors of a thread, where a thread of
// gRPC that has signed something ends while the process does: OpenSSL, which cleans up at exit, then
// no longer hears of its end. A program of 15 lines with OpenSSL alone shows that. All are known by
// where they were allocated, so that a leak of ours is reported on their threads too.
//
// The thread sanitizer: the system's gRPC is compiled without it, which therefore does not see how
// gRPC hands objects from thread to thread, and reports each one that code in gRPC's headers, or
// code that gRPC calls, touches on both sides; so it does with a call of the store that one thread
// of gRPC has made and another one cancels. What threads of ours share is tested without gRPC as
// well, where nothing is hidden.

#include "core/base/sanitizers.h"

#if defined(GRADSYNC_ADDRESS_SANITIZER)

extern "C" const char* __lsan_default_options();
extern "C" const char* __lsan_default_suppressions();

// Tests read what programs say.
extern "C" const char* __lsan_default_options() { return "print_suppressions=0"; }

extern "C" const char* __lsan_default_suppressions() {
  return "leak:libcares.so\nleak:gpr_realloc\nleak:CRYPTO_zalloc\n";
}

#elif defined(GRADSYNC_THREAD_SANITIZER)

extern "C" const char* __tsan_default_suppressions();

extern "C" const char* __tsan_default_suppressions() {
  return "race:grpc::\n"
         "race:grpc_core::\n"
         "race:grpc_event_engine::\n"
         "race:gradsync::(anonymous namespace)::Call::OnCancel\n";
}

#endif
