// What allreduce/open_nccl.h has with --config=cuda.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "allreduce/open_nccl.h"
#include "c10/cuda/CUDAGuard.h"

namespace gradsync {
namespace {

static_assert(sizeof(NcclUniqueId) == sizeof(ncclUniqueId), "an id of NCCL has 128 bytes");
static_assert(static_cast<int>(NcclResult::kRemoteError) == ncclRemoteError &&
                  static_cast<int>(NcclResult::kInProgress) == ncclInProgress,
              "NcclResult is numbered as ncclResult_t");

NcclResult Result(ncclResult_t result) {
  const bool known = result >= ncclSuccess && result <= ncclInProgress;
  return known ? static_cast<NcclResult>(result) : NcclResult::kInternalError;
}

ncclComm_t Comm(NcclComm comm) { return reinterpret_cast<ncclComm_t>(comm); }
cudaStream_t Stream(GpuStream stream) { return reinterpret_cast<cudaStream_t>(stream); }

class LinkedNccl : public NcclApi {
 public:
  LinkedNccl(int device, std::string algorithm)
      : device_(static_cast<c10::DeviceIndex>(device)), algorithm_(std::move(algorithm)) {}

  int version() const override { return NcclVersion(); }

  std::string algorithm() const override { return algorithm_; }

  NcclResult GetUniqueId(NcclUniqueId* id) override {
    ncclUniqueId made;
    const ncclResult_t result = ncclGetUniqueId(&made);  // no business of the device's
    if (result == ncclSuccess) std::memcpy(id->data(), made.internal, id->size());
    return Result(result);
  }

  NcclResult InitRank(int world_size, const NcclUniqueId& id, int rank, NcclComm* comm) override {
    ncclComm_t made = nullptr;
    const NcclResult result = OnDevice([&] {
      ncclUniqueId unique_id;
      std::memcpy(unique_id.internal, id.data(), id.size());
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      return ncclCommInitRankConfig(&made, world_size, unique_id, rank, &config);
    });
    const bool usable = result == NcclResult::kSuccess || result == NcclResult::kInProgress;
    *comm = usable ? reinterpret_cast<NcclComm>(made) : nullptr;
    return result;
  }

  NcclResult AsyncError(NcclComm comm, NcclResult* state) override {
    return OnDevice([&] {
      ncclResult_t found = ncclInternalError;
      const ncclResult_t result = ncclCommGetAsyncError(Comm(comm), &found);
      *state = Result(found);
      return result;
    });
  }

  std::string LastError(NcclComm comm) override {
    const char* const text = ncclGetLastError(Comm(comm));
    if (text == nullptr) return "";
    return absl::StrReplaceAll(absl::StripAsciiWhitespace(text), {{"\n", "; "}});
  }

  NcclResult Finalize(NcclComm comm) override {
    return OnDevice([&] { return ncclCommFinalize(Comm(comm)); });
  }

  NcclResult Destroy(NcclComm comm) override {
    return OnDevice([&] { return ncclCommDestroy(Comm(comm)); });
  }

  NcclResult Abort(NcclComm comm) override {
    return OnDevice([&] { return ncclCommAbort(Comm(comm)); });
  }

  NcclResult GroupStart() override { return OnDevice(ncclGroupStart); }
  NcclResult GroupEnd() override { return OnDevice(ncclGroupEnd); }

  NcclResult AllReduce(const float* in, float* out, size_t count, NcclComm comm,
                       GpuStream stream) override {
    return OnDevice([&] {
      return ncclAllReduce(in, out, count, ncclFloat32, ncclSum, Comm(comm), Stream(stream));
    });
  }

  NcclResult ReduceScatter(const float* in, float* out, size_t count, NcclComm comm,
                           GpuStream stream) override {
    return OnDevice([&] {
      return ncclReduceScatter(in, out, count, ncclFloat32, ncclSum, Comm(comm), Stream(stream));
    });
  }

  NcclResult AllGather(const void* in, void* out, size_t bytes, NcclComm comm,
                       GpuStream stream) override {
    return OnDevice(
        [&] { return ncclAllGather(in, out, bytes, ncclInt8, Comm(comm), Stream(stream)); });
  }

  NcclResult Broadcast(void* data, size_t bytes, int root, NcclComm comm,
                       GpuStream stream) override {
    return OnDevice([&] {
      return ncclBroadcast(data, data, bytes, ncclInt8, root, Comm(comm), Stream(stream));
    });
  }

  NcclResult Send(const void* data, size_t bytes, int peer, NcclComm comm,
                  GpuStream stream) override {
    return OnDevice(
        [&] { return ncclSend(data, bytes, ncclInt8, peer, Comm(comm), Stream(stream)); });
  }

  NcclResult Recv(void* data, size_t bytes, int peer, NcclComm comm, GpuStream stream) override {
    return OnDevice(
        [&] { return ncclRecv(data, bytes, ncclInt8, peer, Comm(comm), Stream(stream)); });
  }

  NcclResult Register(NcclComm comm, void* memory, size_t bytes,
                      NcclRegistration* registration) override {
    void* handle = nullptr;
    const NcclResult result =
        OnDevice([&] { return ncclCommRegister(Comm(comm), memory, bytes, &handle); });
    *registration = static_cast<NcclRegistration>(handle);
    return result;
  }

  NcclResult Deregister(NcclComm comm, NcclRegistration registration) override {
    if (registration == nullptr) return NcclResult::kSuccess;
    return OnDevice([&] { return ncclCommDeregister(Comm(comm), registration); });
  }

  NcclResult MemAlloc(size_t bytes, void** memory) override {
    const size_t size = std::max<size_t>(bytes, 1);
    void* made = nullptr;
    const NcclResult result = OnDevice([&] {
      const ncclResult_t allocated = ncclMemAlloc(&made, size);
      if (allocated != ncclSuccess) return allocated;
      // This thread's stream, so that no other is waited for.
      if (cudaMemsetAsync(made, 0, size, cudaStreamPerThread) == cudaSuccess &&
          cudaStreamSynchronize(cudaStreamPerThread) == cudaSuccess) {
        return ncclSuccess;
      }
      // LibTorch would take an error that is left behind for one of its own kernels'.
      static_cast<void>(cudaGetLastError());
      static_cast<void>(ncclMemFree(made));
      return ncclUnhandledCudaError;
    });
    *memory = result == NcclResult::kSuccess ? made : nullptr;
    return result;
  }

  NcclResult MemFree(void* memory) override {
    return OnDevice([&] { return ncclMemFree(memory); });
  }

 private:
  // Runs `call` with the device current, and gives the thread back the one it had. LibTorch's guard
  // does not wake a GPU that the thread was never told of, as cudaSetDevice() would.
  template <typename Call>
  NcclResult OnDevice(const Call& call) const {
    try {
      const c10::cuda::CUDAGuard guard(device_);
      return Result(call());
    } catch (const std::exception&) {
      return NcclResult::kUnhandledCudaError;
    }
  }

  const c10::DeviceIndex device_;
  const std::string algorithm_;
};

}  // namespace

int NcclVersion() {
  int version = 0;
  return ncclGetVersion(&version) == ncclSuccess ? version : 0;
}

absl::StatusOr<std::shared_ptr<NcclApi>> OpenNccl(int device, std::string algorithm) {
  if (device < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("OpenNccl: expected the number of a GPU, from 0 on, found ", device));
  }
  return std::make_shared<LinkedNccl>(device, std::move(algorithm));
}

}  // namespace gradsync
