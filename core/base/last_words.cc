#include "core/base/last_words.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cstring>
#include <exception>
#include <new>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/base/process_resources.h"
#include "core/base/program_main.h"
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
    const MemoryLimit memory = AvailableMemory();
    why = absl::StrCat("memory: expected more, found ", memory.bytes, " bytes, which is all that ",
                       memory.source, " leaves");
  } catch (const std::exception& error) {
    why = error.what();
  } catch (...) {
    why = "ended by an exception of an unknown type";
  }
  EndBecause(why);
}

// May call nothing that is not safe in a signal handler.
void EndByMissingMemory(int) {
  static constexpr char kWhy[] =
      ": memory: expected the bytes of a mapped file, found that they are gone (SIGBUS): a text of "
      "--data that was shortened while the job reads it, or memory that the host lost\n";
  const char* const name = program_invocation_short_name;
  const ssize_t named = write(STDERR_FILENO, name, std::strlen(name));
  const ssize_t said = write(STDERR_FILENO, kWhy, sizeof(kWhy) - 1);
  _exit(named < 0 || said < 0 ? 2 : 1);
}

}  // namespace

void SayWhyItEnds() {
  std::set_terminate(EndByException);
  signal(SIGBUS, EndByMissingMemory);
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
