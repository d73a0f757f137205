#include "core/program/last_words.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/process_main.h"
#include "core/base/process_resources.h"
#include "core/base/thread.h"

namespace gradsync {
namespace {

// Nothing is cleaned up, which could wait for what is missing.
[[noreturn]] void EndBecause(absl::string_view why) {
  PrintError(program_invocation_short_name, why);
  _exit(1);
}

[[noreturn]] void EndByException() {
  std::string why = "ended without a reason";
  try {
    if (const std::exception_ptr thrown = std::current_exception()) std::rethrow_exception(thrown);
  } catch (const std::bad_alloc&) {
    MemoryLimit memory = AvailableMemory();
    if (MemoryLimit addresses = AvailableAddresses(); addresses.bytes < memory.bytes) {
      memory = std::move(addresses);
    }
    why = absl::StrCat("memory: expected more, found ", memory.bytes, " bytes, which is all that ",
                       memory.source, " leaves");
  } catch (const std::exception& error) {
    why = error.what();
  } catch (...) {
    why = "ended by an exception of an unknown type";
  }
  EndBecause(why);
}

// May call nothing that is not safe in a signal handler, as those below. Returns whether it was written.
bool SayInHandler(absl::string_view why) {
  const char* const name = program_invocation_short_name;
  return write(STDERR_FILENO, name, std::strlen(name)) >= 0 &&
         write(STDERR_FILENO, why.data(), why.size()) >= 0;
}

void EndByMissingMemory(int) {
  const bool said = SayInHandler(
      ": memory: expected the bytes of a mapped file, found that they are gone (SIGBUS): a text of "
      "--data that was shortened while the job reads it, or memory that the host lost\n");
  _exit(said ? 1 : 2);
}

// So ends gRPC, without a word, where the system gives it no memory.
void EndByAbort(int signal) {
  SayInHandler(
      ": ended by abort() (SIGABRT): a library found no memory (free, ulimit -v), or a fault of "
      "its "
      "own\n");
  ::signal(signal, SIG_DFL);
  raise(signal);  // delivered when this handler has returned
}

}  // namespace

void SayWhyItEnds() {
  std::set_terminate(EndByException);
  signal(SIGBUS, EndByMissingMemory);
  signal(SIGABRT, EndByAbort);
}

}  // namespace gradsync

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*body)(void*), void* argument) noexcept {
  using Create = int(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static auto* const create = reinterpret_cast<Create*>(dlsym(RTLD_NEXT, "pthread_create"));
  const int error = create(thread, attributes, body, argument);
  if (error == EAGAIN && !gradsync::RefusableThreads::allowed()) {
    gradsync::EndBecause(absl::StrCat(
        "thread: expected that the system starts one more, found that it refuses; processes and "
        "threads are limited to ",
        gradsync::ThreadLimits()));
  }
  return error;
}
