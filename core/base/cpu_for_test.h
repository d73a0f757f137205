#ifndef GRADSYNC_CORE_BASE_CPU_FOR_TEST_H_
#define GRADSYNC_CORE_BASE_CPU_FOR_TEST_H_

namespace gradsync {

// Without it LibTorch 1.13 and its oneDNN compute convolutions by other code: in bf16 it is many
// times slower and rounds more, and the two memory formats differ more.
inline bool HasAvx512() { return __builtin_cpu_supports("avx512bw"); }

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_CPU_FOR_TEST_H_
