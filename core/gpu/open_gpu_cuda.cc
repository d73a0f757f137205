// What core/gpu/open_gpu.h has with --config=cuda.
#include <cuda.h>  // types alone: nothing links the driver
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "ATen/cuda/CUDAGraph.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "c10/cuda/CUDACachingAllocator.h"
#include "c10/cuda/CUDAGuard.h"
#include "c10/cuda/CUDAStream.h"
#include "core/base/status_macros.h"
#include "core/gpu/fold_kernel.h"
#include "core/gpu/fold_operands.h"
#include "core/gpu/gpu_kernels.h"
#include "core/gpu/open_gpu.h"

namespace gradsync {
namespace {

std::string Describe(cudaError_t error) {
  return absl::StrCat(cudaGetErrorName(error), ": ", cudaGetErrorString(error));
}

absl::Status ToStatus(absl::string_view what, cudaError_t error) {
  if (error == cudaSuccess) return absl::OkStatus();
  // LibTorch would take an error that is left behind for one of its own kernels'.
  static_cast<void>(cudaGetLastError());
  return absl::Status(error == cudaErrorMemoryAllocation ? absl::StatusCode::kResourceExhausted
                                                         : absl::StatusCode::kInternal,
                      absl::StrCat(what, ": ", Describe(error)));
}

std::string FirstLine(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

GpuStream Handle(cudaStream_t stream) { return reinterpret_cast<GpuStream>(stream); }
cudaStream_t Stream(GpuStream stream) { return reinterpret_cast<cudaStream_t>(stream); }
cudaEvent_t Event(GpuEvent event) { return reinterpret_cast<cudaEvent_t>(event); }
at::cuda::CUDAGraph* Graph(GpuGraph graph) { return reinterpret_cast<at::cuda::CUDAGraph*>(graph); }

void CUDART_CB CallAndDelete(void* call) {
  const std::unique_ptr<std::function<void()>> owned(static_cast<std::function<void()>*>(call));
  (*owned)();
}

// The driver's operations on flags, which the runtime does not have.
struct StreamFlags {
  using Operation = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned int);
  Operation wait = nullptr;
  Operation write = nullptr;
};

// Those of the driver that is loaded; INTERNAL where it lacks them.
absl::StatusOr<StreamFlags::Operation> FindInDriver(const char* name) {
  constexpr unsigned int kSince = 11070;  // CUDA 11.7 made them what they are
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  GS_RETURN_IF_ERROR(ToStatus(
      name, cudaGetDriverEntryPointByVersion(name, &found, kSince, cudaEnableDefault, &result)));
  if (result != cudaDriverEntryPointSuccess || found == nullptr) {
    return absl::InternalError(absl::StrCat("the driver has no ", name, ": expected CUDA 11.7"));
  }
  return reinterpret_cast<StreamFlags::Operation>(found);
}

absl::StatusOr<StreamFlags> FindStreamFlags() {
  StreamFlags flags;
  GS_ASSIGN_OR_RETURN(flags.wait, FindInDriver("cuStreamWaitValue32"));
  GS_ASSIGN_OR_RETURN(flags.write, FindInDriver("cuStreamWriteValue32"));
  return flags;
}

absl::Status ToStatus(absl::string_view what, CUresult result) {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(what, ": CUresult ", static_cast<int>(result)));
}

class CudaApi : public GpuApi {
 public:
  CudaApi(int device, std::string name, int stream_priority)
      : device_(device), name_(std::move(name)), stream_priority_(stream_priority) {}

  int device() const override { return device_; }
  std::string name() const override { return name_; }
  bool is_cuda() const override { return true; }

  GpuStream ComputeStream() override {
    return Handle(c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device_)).stream());
  }

  absl::Status UseOwnComputeStream() override {
    return OnDevice("the compute stream", [&] {
      const c10::cuda::CUDAStream own = c10::cuda::getStreamFromPool(
          /*isHighPriority=*/false, static_cast<c10::DeviceIndex>(device_));
      const cudaError_t error = cudaStreamSynchronize(Stream(ComputeStream()));
      if (error == cudaSuccess) c10::cuda::setCurrentCUDAStream(own);
      return error;
    });
  }

  void WithComputeStream(GpuStream stream, const std::function<void()>& call) override {
    const c10::cuda::CUDAStreamGuard guard(
        c10::cuda::getStreamFromExternal(Stream(stream), static_cast<c10::DeviceIndex>(device_)));
    call();
  }

  absl::StatusOr<GpuGraph> Capture(const std::function<absl::Status()>& queue) override {
    auto graph = std::make_unique<at::cuda::CUDAGraph>();
    absl::Status queued;
    // A graph has temporary memory of its own, beside what steps without it have left behind.
    c10::cuda::CUDACachingAllocator::emptyCache();
    // Of this thread alone: others may load data meanwhile, or ask whether an event is done.
    const absl::Status captured = OnDevice("capturing a graph", [&] {
      graph->capture_begin(/*pool=*/{0, 0}, cudaStreamCaptureModeThreadLocal);
      queued = queue();
      graph->capture_end();
      return cudaSuccess;
    });
    // What went wrong in `queue` is why the capture could not end, too.
    GS_RETURN_IF_ERROR(queued);
    GS_RETURN_IF_ERROR(captured);
    return reinterpret_cast<GpuGraph>(graph.release());
  }

  absl::Status LaunchGraph(GpuGraph graph) override {
    return OnDevice("launching a graph", [&] {
      Graph(graph)->replay();
      return cudaSuccess;
    });
  }

  void DestroyGraph(GpuGraph graph) override {
    OnDevice("destroying a graph", [&] {
      delete Graph(graph);
      return cudaSuccess;
    }).IgnoreError();
  }

  absl::Status RecordInGraph(GpuEvent event, GpuStream stream) override {
    return OnDevice("cudaEventRecordWithFlags", [&] {
      return cudaEventRecordWithFlags(Event(event), Stream(stream), cudaEventRecordExternal);
    });
  }

  absl::StatusOr<GpuStream> CreateStream() override {
    cudaStream_t stream = nullptr;
    GS_RETURN_IF_ERROR(OnDevice("cudaStreamCreateWithPriority", [&] {
      return cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, stream_priority_);
    }));
    return Handle(stream);
  }

  void DestroyStream(GpuStream stream) override {
    OnDevice("cudaStreamDestroy", [&] { return cudaStreamDestroy(Stream(stream)); }).IgnoreError();
  }

  absl::StatusOr<GpuEvent> CreateEvent() override {
    cudaEvent_t event = nullptr;
    GS_RETURN_IF_ERROR(OnDevice("cudaEventCreate", [&] { return cudaEventCreate(&event); }));
    return reinterpret_cast<GpuEvent>(event);
  }

  void DestroyEvent(GpuEvent event) override {
    OnDevice("cudaEventDestroy", [&] { return cudaEventDestroy(Event(event)); }).IgnoreError();
  }

  absl::Status Record(GpuEvent event, GpuStream stream) override {
    return OnDevice("cudaEventRecord",
                    [&] { return cudaEventRecord(Event(event), Stream(stream)); });
  }

  absl::Status StreamWait(GpuStream stream, GpuEvent event) override {
    return OnDevice("cudaStreamWaitEvent",
                    [&] { return cudaStreamWaitEvent(Stream(stream), Event(event), 0); });
  }

  absl::StatusOr<bool> Done(GpuEvent event) override {
    bool done = true;
    GS_RETURN_IF_ERROR(OnDevice("cudaEventQuery", [&] {
      const cudaError_t error = cudaEventQuery(Event(event));
      if (error != cudaErrorNotReady) return error;
      static_cast<void>(cudaGetLastError());
      done = false;
      return cudaSuccess;
    }));
    return done;
  }

  absl::Status Synchronize(GpuEvent event) override {
    return OnDevice("cudaEventSynchronize", [&] { return cudaEventSynchronize(Event(event)); });
  }

  absl::StatusOr<absl::Duration> Elapsed(GpuEvent from, GpuEvent to) override {
    float milliseconds = 0;
    GS_RETURN_IF_ERROR(OnDevice("cudaEventElapsedTime", [&] {
      return cudaEventElapsedTime(&milliseconds, Event(from), Event(to));
    }));
    return absl::Milliseconds(static_cast<double>(milliseconds));
  }

  absl::StatusOr<void*> AllocateDevice(size_t bytes) override {
    const size_t size = std::max<size_t>(bytes, 1);
    void* memory = nullptr;
    const std::string what = absl::StrCat("cudaMalloc of ", bytes, " bytes");
    absl::Status status = OnDevice(what, [&] { return cudaMalloc(&memory, size); });
    if (absl::IsResourceExhausted(status)) {
      // LibTorch may hold memory that nobody uses.
      status = OnDevice(what, [&] {
        c10::cuda::CUDACachingAllocator::emptyCache();
        return cudaMalloc(&memory, size);
      });
    }
    GS_RETURN_IF_ERROR(status);
    // The streams of this object do not wait for the one that zeroes.
    status = OnDevice("cudaMemset", [&] {
      const cudaError_t error = cudaMemsetAsync(memory, 0, size, cudaStreamPerThread);
      return error == cudaSuccess ? cudaStreamSynchronize(cudaStreamPerThread) : error;
    });
    if (!status.ok()) {
      ReleaseDevice(memory);
      return status;
    }
    return memory;
  }

  void ReleaseDevice(void* memory) override {
    OnDevice("cudaFree", [&] { return cudaFree(memory); }).IgnoreError();
  }

  absl::StatusOr<void*> AllocatePinned(size_t bytes) override {
    const size_t size = std::max<size_t>(bytes, 1);
    void* memory = nullptr;
    GS_RETURN_IF_ERROR(OnDevice(absl::StrCat("cudaHostAlloc of ", bytes, " bytes"), [&] {
      return cudaHostAlloc(&memory, size, cudaHostAllocPortable);
    }));
    std::memset(memory, 0, size);
    return memory;
  }

  void ReleasePinned(void* memory) override {
    OnDevice("cudaFreeHost", [&] { return cudaFreeHost(memory); }).IgnoreError();
  }

  absl::Status RegisterHost(void* memory, size_t bytes) override {
    return OnDevice(absl::StrCat("cudaHostRegister of ", bytes, " bytes"), [&] {
      return cudaHostRegister(memory, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
    });
  }

  void UnregisterHost(void* memory) override {
    OnDevice("cudaHostUnregister", [&] { return cudaHostUnregister(memory); }).IgnoreError();
  }

  absl::Status Copy(void* to, const void* from, size_t bytes, GpuStream stream) override {
    if (bytes == 0) return absl::OkStatus();
    return OnDevice("cudaMemcpyAsync", [&] {
      return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, Stream(stream));
    });
  }

  absl::Status RunOnHost(std::function<void()> call, GpuStream stream) override {
    auto owned = std::make_unique<std::function<void()>>(std::move(call));
    GS_RETURN_IF_ERROR(OnDevice("cudaLaunchHostFunc", [&] {
      return cudaLaunchHostFunc(Stream(stream), CallAndDelete, owned.get());
    }));
    owned.release();
    return absl::OkStatus();
  }

  absl::Status ScaleTwice(float* x, size_t n, float a, float b, GpuStream stream) override {
    if (a == 1 && b == 1) return absl::OkStatus();  // one rank, and no loss scale
    return OnDevice("ScaleTwice", [&] { return StartScaleTwice(x, n, a, b, Stream(stream)); });
  }

  absl::Status SgdStep(const SgdCoefficients& c, float* param, const float* grad,
                       float* momentum_buffer, size_t n, GpuStream stream) override {
    return OnDevice("SgdStep", [&] {
      return StartSgdStep(c, param, grad, momentum_buffer, n, Stream(stream));
    });
  }

  absl::Status AdamStep(const AdamCoefficients& c, float* param, const float* grad, float* exp_avg,
                        float* exp_avg_sq, size_t n, GpuStream stream) override {
    return OnDevice("AdamStep", [&] {
      return StartAdamStep(c, param, grad, exp_avg, exp_avg_sq, n, Stream(stream));
    });
  }

  absl::Status ScaleBy(float* x, size_t n, const float* factor, GpuStream stream) override {
    return OnDevice("ScaleBy", [&] { return StartScaleBy(x, n, factor, Stream(stream)); });
  }

  absl::Status SumOfSquares(const float* x, size_t n, double* sum, GpuStream stream) override {
    return OnDevice("SumOfSquares", [&] { return StartSumOfSquares(x, n, sum, Stream(stream)); });
  }

  absl::Status FoldMean(const FoldPiece* pieces, size_t num_pieces,
                        absl::Span<const float* const> sources,
                        absl::Span<float* const> destinations, float a, float b,
                        GpuStream stream) override {
    GS_RETURN_IF_ERROR(CheckFoldOperands(sources.size(), destinations.size()));
    return OnDevice("FoldMean", [&] {
      return StartFoldMean(pieces, num_pieces, sources.data(), sources.size(), destinations.data(),
                           destinations.size(), a, b, Stream(stream));
    });
  }

  absl::Status SumsOfSquares(const SquaresPiece* pieces, size_t num_pieces, double* sums,
                             GpuStream stream) override {
    return OnDevice("SumsOfSquares",
                    [&] { return StartSumsOfSquares(pieces, num_pieces, sums, Stream(stream)); });
  }

  absl::Status SynchronizeDevice() override {
    return OnDevice("cudaDeviceSynchronize", cudaDeviceSynchronize);
  }

  absl::StatusOr<std::string> ExportMemory(void* memory) override {
    cudaIpcMemHandle_t handle;
    GS_RETURN_IF_ERROR(
        OnDevice("cudaIpcGetMemHandle", [&] { return cudaIpcGetMemHandle(&handle, memory); }));
    return std::string(reinterpret_cast<const char*>(&handle), sizeof(handle));
  }

  absl::StatusOr<void*> ImportMemory(const std::string& exported) override {
    cudaIpcMemHandle_t handle;
    if (exported.size() != sizeof(handle)) {
      return absl::InternalError(absl::StrCat("a handle of another process's memory: expected ",
                                              sizeof(handle), " bytes, found ", exported.size()));
    }
    std::memcpy(&handle, exported.data(), sizeof(handle));
    void* memory = nullptr;
    GS_RETURN_IF_ERROR(OnDevice("cudaIpcOpenMemHandle", [&] {
      return cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess);
    }));
    return memory;
  }

  void CloseImported(void* memory) override {
    OnDevice("cudaIpcCloseMemHandle", [&] { return cudaIpcCloseMemHandle(memory); }).IgnoreError();
  }

  absl::StatusOr<uint32_t*> FlagOnDevice(void* registered) override {
    GS_RETURN_IF_ERROR(flags_.status());
    void* flag = nullptr;
    GS_RETURN_IF_ERROR(OnDevice("cudaHostGetDevicePointer",
                                [&] { return cudaHostGetDevicePointer(&flag, registered, 0); }));
    return static_cast<uint32_t*>(flag);
  }

  absl::Status WriteFlag(uint32_t* flag, uint32_t value, GpuStream stream) override {
    GS_RETURN_IF_ERROR(flags_.status());
    // By default it comes after what was written before it, for the whole system.
    return OnDevice("cuStreamWriteValue32", [&] {
      return flags_->write(Stream(stream), reinterpret_cast<CUdeviceptr>(flag), value,
                           CU_STREAM_WRITE_VALUE_DEFAULT);
    });
  }

  absl::Status WaitFlag(const uint32_t* flag, uint32_t value, GpuStream stream) override {
    GS_RETURN_IF_ERROR(flags_.status());
    return OnDevice("cuStreamWaitValue32", [&] {
      return flags_->wait(Stream(stream), reinterpret_cast<CUdeviceptr>(flag), value,
                          CU_STREAM_WAIT_VALUE_GEQ);
    });
  }

  absl::Status LookUpBytes(const ImageLayout& layout, const uint8_t* bytes, const void* table,
                           void* values, GpuStream stream) override {
    return OnDevice("LookUpBytes",
                    [&] { return StartLookUpBytes(layout, bytes, table, values, Stream(stream)); });
  }

 private:
  // Runs `call` with the device current, and gives the thread back the one it had. LibTorch's guard
  // does not wake a GPU that the thread was never told of, as cudaSetDevice() would.
  template <typename Call>
  absl::Status OnDevice(absl::string_view what, const Call& call) const {
    try {
      const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device_));
      return ToStatus(absl::StrCat(what, " on GPU ", device_), call());
    } catch (const std::exception& error) {
      return absl::InternalError(absl::StrCat(what, " on GPU ", device_, ": ", FirstLine(error)));
    }
  }

  const int device_;
  const std::string name_;
  const int stream_priority_;
  const absl::StatusOr<StreamFlags> flags_ = FindStreamFlags();
};

std::string CudaVersion(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

absl::StatusOr<int> CountGpus() {
  int driver = 0;
  GS_RETURN_IF_ERROR(ToStatus("cudaDriverGetVersion", cudaDriverGetVersion(&driver)));
  if (driver == 0) return absl::NotFoundError("this machine has no driver for NVIDIA GPUs");
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0)) {
    static_cast<void>(cudaGetLastError());
    return absl::NotFoundError(
        "this machine shows no GPU; its driver is "
        "there, so see CUDA_VISIBLE_DEVICES");
  }
  if (error == cudaErrorInsufficientDriver) {
    static_cast<void>(cudaGetLastError());
    return absl::InternalError(absl::StrCat("cudaErrorInsufficientDriver: this build is for CUDA ",
                                            CudaVersion(CUDART_VERSION), ", the driver for ",
                                            CudaVersion(driver)));
  }
  GS_RETURN_IF_ERROR(ToStatus("cudaGetDeviceCount", error));
  return count;
}

}  // namespace

absl::Status CheckGpu(int device) {
  GS_ASSIGN_OR_RETURN(const int count, CountGpus());
  if (device >= 0 && device < count) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("GPU ", device, ": expected a number from 0 to ",
                                                 count - 1, ", as this machine shows ", count));
}

absl::StatusOr<std::shared_ptr<GpuApi>> OpenGpu(int device) {
  GS_RETURN_IF_ERROR(CheckGpu(device));
  const std::string what = absl::StrCat("GPU ", device);
  try {
    const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
    GS_RETURN_IF_ERROR(ToStatus(what, cudaFree(nullptr)));  // creates the context
    int least = 0;
    int greatest = 0;
    GS_RETURN_IF_ERROR(ToStatus(what, cudaDeviceGetStreamPriorityRange(&least, &greatest)));
    cudaDeviceProp properties;
    GS_RETURN_IF_ERROR(ToStatus(what, cudaGetDeviceProperties(&properties, device)));
    return std::make_shared<CudaApi>(device, properties.name, greatest);
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat(what, ": ", FirstLine(error)));
  }
}

}  // namespace gradsync
