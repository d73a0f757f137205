#include "worker/train/compute_threads.h"

#include <dlfcn.h>

#include "ATen/Parallel.h"

namespace gradsync {
namespace {

// Looked up in what is loaded: LibTorch decides which BLAS that is, and not this program's linker.
template <typename Function>
Function* Loaded(const char* symbol) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, symbol));
}

}  // namespace

void SetComputeThreads(int threads) {
  at::set_num_threads(threads);
  auto* const set = Loaded<void(int)>("openblas_set_num_threads");
  if (set != nullptr) set(threads);
}

int OpenBlasThreads() {
  auto* const get = Loaded<int()>("openblas_get_num_threads");
  return get == nullptr ? 0 : get();
}

}  // namespace gradsync
