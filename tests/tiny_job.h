// What tests train: TinyModule (gradsync/ddp/tiny_module.h) with values and inputs that are the
// same in every run.

#ifndef GRADSYNC_TESTS_TINY_JOB_H_
#define GRADSYNC_TESTS_TINY_JOB_H_

#include <cstdint>
#include <memory>

#include "ATen/ops/zeros.h"
#include "gradsync/ddp/tiny_module.h"

namespace gradsync {

// A module on the CPU whose values depend on nothing but `seed`.
inline std::shared_ptr<TinyModule> NewTinyModule(uint64_t seed) {
  auto module = std::make_shared<TinyModule>();
  c10::NoGradGuard no_grad;
  for (const at::Tensor& p : module->parameters()) {
    float* const data = p.data_ptr<float>();
    for (int64_t i = 0; i < p.numel(); ++i) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      data[i] = 0.3f * (static_cast<float>(seed >> 40) / static_cast<float>(1 << 23) - 1);
    }
  }
  return module;
}

// A rank's inputs of a step, [4, 4], on the CPU.
inline at::Tensor TinyInputs(int rank, int64_t step) {
  at::Tensor x = at::zeros({4, 4});
  for (int i = 0; i < 16; ++i) {
    x.data_ptr<float>()[i] = static_cast<float>((7 * i + 3 * rank + 5 * step) % 11 - 5) / 4;
  }
  return x;
}

}  // namespace gradsync

#endif  // GRADSYNC_TESTS_TINY_JOB_H_
