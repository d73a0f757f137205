#include "worker/train/compute_options.h"

#include <dlfcn.h>

#include <cstdint>
#include <limits>

#include "ATen/Context.h"
#include "ATen/Parallel.h"
#include "ATen/ops/mm.h"
#include "ATen/ops/ones.h"
#include "absl/strings/str_cat.h"
#include "core/base/process_resources.h"
#include "core/base/status_macros.h"

namespace gradsync {
namespace {

// Looked up in what is loaded: LibTorch decides which BLAS that is, and not this program's linker.
template <typename Function>
Function* Loaded(const char* symbol) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, symbol));
}

}  // namespace

c10::ScalarType ScalarTypeOf(Precision precision) {
  switch (precision) {
    case Precision::kFp32:
      return c10::ScalarType::Float;
    case Precision::kBf16:
      return c10::ScalarType::BFloat16;
    case Precision::kFp16:
      return c10::ScalarType::Half;
  }
  return c10::ScalarType::Undefined;
}

absl::Status CheckPrecision(Precision precision, c10::DeviceType device) {
  if (precision != Precision::kFp16 || device != c10::DeviceType::CPU) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--precision: expected fp32 or bf16 on a CPU (fp16 needs a GPU), found fp16");
}

absl::Status ApplyMathFlags(bool allow_tf32, c10::DeviceType device) {
  if (device != c10::DeviceType::CUDA) {
    if (!allow_tf32) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("--tf32: expected a GPU, which alone computes in TF32, found the device ",
                     c10::DeviceTypeName(device, /*lower_case=*/true)));
  }
  at::globalContext().setAllowTF32CuBLAS(allow_tf32);
  at::globalContext().setAllowTF32CuDNN(allow_tf32);
  return absl::OkStatus();
}

void LetCudnnTryAlgorithms(bool benchmark, c10::DeviceType device) {
  if (device == c10::DeviceType::CUDA) at::globalContext().setBenchmarkCuDNN(benchmark);
}

void SetComputeThreads(int threads) {
  at::set_num_threads(threads);
  auto* const set = Loaded<void(int)>("openblas_set_num_threads");
  if (set != nullptr) set(threads);
}

absl::Status TakeComputeThreads(int threads) {
  constexpr uint64_t kBytesEach = (uint64_t{128} << 20) + 4096;
  constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();
  if (AvailableAddresses().bytes == kNoLimit || OpenBlasThreads() == 0) {
    SetComputeThreads(threads);
    return absl::OkStatus();
  }
  GS_RETURN_IF_ERROR(CheckAddresses(absl::StrCat("--threads=", threads, ": OpenBLAS's buffers"),
                                    kBytesEach * static_cast<uint64_t>(threads)));
  SetComputeThreads(threads);
  const at::Tensor square = at::ones({64, 64});
  at::mm(square, square);
  return absl::OkStatus();
}

int OpenBlasThreads() {
  auto* const get = Loaded<int()>("openblas_get_num_threads");
  return get == nullptr ? 0 : get();
}

}  // namespace gradsync
