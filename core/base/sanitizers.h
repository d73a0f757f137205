// Which sanitizer this unit was compiled for (bazel --config=asan or tsan), for the few places that
// one makes wrong: tests that ask the C library's allocator, or load a library before all others.

#ifndef GRADSYNC_CORE_BASE_SANITIZERS_H_
#define GRADSYNC_CORE_BASE_SANITIZERS_H_

// For what only a sanitizer's own headers declare. g++ and clang say it in different words.
// --config=tsan gives the name itself.
#if defined(GRADSYNC_THREAD_SANITIZER)
#elif defined(__SANITIZE_ADDRESS__)
#define GRADSYNC_ADDRESS_SANITIZER 1
#elif defined(__SANITIZE_THREAD__)
#define GRADSYNC_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define GRADSYNC_ADDRESS_SANITIZER 1
#elif __has_feature(thread_sanitizer)
#define GRADSYNC_THREAD_SANITIZER 1
#endif
#endif

namespace gradsync {

#if defined(GRADSYNC_ADDRESS_SANITIZER) || defined(GRADSYNC_THREAD_SANITIZER)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_SANITIZERS_H_
