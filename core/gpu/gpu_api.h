// The few calls of CUDA that gradsync makes, behind an interface, so that everything above them is
// tested where there is no GPU.
//
// The real one (open_gpu_cuda.cc) is built with --config=cuda; OpenGpu() says so in other builds.
// The fake (fake_gpu.h) is for tests: its device memory is the host's, its streams are threads.

#ifndef GRADSYNC_CORE_GPU_GPU_API_H_
#define GRADSYNC_CORE_GPU_GPU_API_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/base/kernels.h"
#include "core/gpu/kernel_operands.h"

namespace gradsync {

// Handles of a GpuApi; opaque, and only valid with the object that made them. ScopedStream and
// ScopedEvent (gpu_resources.h) own them.
struct GpuStreamTag;
struct GpuEventTag;
struct GpuGraphTag;
using GpuStream = GpuStreamTag*;
using GpuEvent = GpuEventTag*;
using GpuGraph = GpuGraphTag*;

// One GPU, as one rank uses it. Calls with a stream queue work and return; the work runs in the
// order of its stream, concurrently with that of other streams. Pointers given to them are to
// device or pinned memory and must stay valid until the work is done.
//
// Thread-safe, from threads that were never told of the device as well. Errors: INTERNAL with
// CUDA's name of the error; an error of queued work may come from any later call.
// RESOURCE_EXHAUSTED when memory is short.
class GpuApi {
 public:
  virtual ~GpuApi() = default;

  // Its number on this host.
  virtual int device() const = 0;

  // What it is, for people, e.g. "NVIDIA H200".
  virtual std::string name() const = 0;

  // Whether tensors over its memory are CUDA's; the fake's are the host's.
  virtual bool is_cuda() const = 0;

  // The stream on which LibTorch works for the calling thread. Not to be destroyed.
  virtual GpuStream ComputeStream() = 0;

  // Makes a stream of its own the compute stream of the calling thread, from here to the thread's
  // end: the one that LibTorch begins with cannot be captured. What the thread queued before comes
  // first. To be called before autograd sees the parameters, whose gradients it accumulates on the
  // stream that was current then.
  virtual absl::Status UseOwnComputeStream() = 0;
  // Calls `call` with `stream` as the compute stream of the calling thread.
  virtual void WithComputeStream(GpuStream stream, const std::function<void()>& call) = 0;

  // Captures what `queue` queues on the compute stream, through LibTorch too and on autograd's
  // threads, as a graph: nothing of it runs now, all of it whenever the graph is launched, over the
  // same memory, which the graph keeps (LibTorch's temporary memory of it too). `queue` must not
  // wait for the device. It has run before with the same shapes, so that nothing is set up in it.
  // Errors: those of `queue`; INTERNAL when LibTorch or CUDA refuse; nothing is left of it then.
  virtual absl::StatusOr<GpuGraph> Capture(const std::function<absl::Status()>& queue) = 0;
  // Queues a graph on the compute stream.
  virtual absl::Status LaunchGraph(GpuGraph graph) = 0;
  virtual void DestroyGraph(GpuGraph graph) = 0;  // its launches are done
  // Within Capture(): each launch of the graph will record `event` at this point of `stream`. Who
  // waits for the event after LaunchGraph() has returned waits for that launch.
  virtual absl::Status RecordInGraph(GpuEvent event, GpuStream stream) = 0;

  // A stream beside the compute stream, before which it is scheduled where both have work.
  virtual absl::StatusOr<GpuStream> CreateStream() = 0;
  // Returns at once: what is queued goes on, and what it uses must stay until it is done.
  virtual void DestroyStream(GpuStream stream) = 0;

  // An event is done when the work that was queued before its last Record() is, and at first.
  virtual absl::StatusOr<GpuEvent> CreateEvent() = 0;
  virtual void DestroyEvent(GpuEvent event) = 0;
  virtual absl::Status Record(GpuEvent event, GpuStream stream) = 0;
  // Later work of `stream` waits for the event as it is now. The calling thread does not.
  virtual absl::Status StreamWait(GpuStream stream, GpuEvent event) = 0;
  virtual absl::StatusOr<bool> Done(GpuEvent event) = 0;
  // The calling thread waits: never in a training step.
  virtual absl::Status Synchronize(GpuEvent event) = 0;
  // From the moment at which `from` was done to that at which `to` was; both must be, and must have
  // been recorded. To about a microsecond.
  virtual absl::StatusOr<absl::Duration> Elapsed(GpuEvent from, GpuEvent to) = 0;

  // Zeroed; aligned to 256 bytes. Pinned memory is the host's, and copied from and to without a
  // detour. ReleaseDevice() waits for all that the device has queued, as cudaFree() does. The
  // others may wait and need not: no queued work uses the memory any more.
  virtual absl::StatusOr<void*> AllocateDevice(size_t bytes) = 0;
  virtual void ReleaseDevice(void* memory) = 0;
  virtual absl::StatusOr<void*> AllocatePinned(size_t bytes) = 0;
  virtual void ReleasePinned(void* memory) = 0;

  // Pins memory that somebody else allocated, mapped memory too, whole pages of it: `memory` is
  // aligned to a page and `bytes` a multiple of its size, and no page is registered twice. It must
  // not be freed or unmapped before UnregisterHost(), which may wait for the device.
  virtual absl::Status RegisterHost(void* memory, size_t bytes) = 0;
  virtual void UnregisterHost(void* memory) = 0;

  // Between any two of device and pinned memory, registered memory included.
  virtual absl::Status Copy(void* to, const void* from, size_t bytes, GpuStream stream) = 0;

  // Runs `call` on a thread of the driver, in the order of the stream, which waits for it. It must
  // be short, block on nothing that needs the GPU, and call nothing of this object.
  virtual absl::Status RunOnHost(std::function<void()> call, GpuStream stream) = 0;

  // The kernels of core/base/kernels.h with the same bits, over device memory.
  virtual absl::Status ScaleTwice(float* x, size_t n, float a, float b, GpuStream stream) = 0;
  virtual absl::Status SgdStep(const SgdCoefficients& c, float* param, const float* grad,
                               float* momentum_buffer, size_t n, GpuStream stream) = 0;
  virtual absl::Status AdamStep(const AdamCoefficients& c, float* param, const float* grad,
                                float* exp_avg, float* exp_avg_sq, size_t n, GpuStream stream) = 0;
  // x = x * *factor, where *factor, in device or pinned memory, is read in the order of the stream.
  virtual absl::Status ScaleBy(float* x, size_t n, const float* factor, GpuStream stream) = 0;
  // *sum, in device or pinned memory, becomes the sum of squares.
  virtual absl::Status SumOfSquares(const float* x, size_t n, double* sum, GpuStream stream) = 0;

  // The whole fold of core/base/kernels.h with the same bits, for many pieces in one launch: at
  // each piece's elements, all destinations become ((s + s') + ...) * a * b of the sources in the
  // piece's order. `pieces` is of the device or pinned and read in the order of the stream; they
  // must not overlap. A destination may be one of the sources. The two spans are read at once.
  // Fastest where all addresses are the same modulo 16 bytes.
  //
  // Errors also: INVALID_ARGUMENT without or with more than kMostFoldOperands sources, and so for
  // destinations.
  virtual absl::Status FoldMean(const FoldPiece* pieces, size_t num_pieces,
                                absl::Span<const float* const> sources,
                                absl::Span<float* const> destinations, float a, float b,
                                GpuStream stream) = 0;

  // SumOfSquares() of many pieces in one launch: sums[i] becomes that of pieces[i]. Both are of
  // the device or pinned, and read and written in the order of the stream.
  virtual absl::Status SumsOfSquares(const SquaresPiece* pieces, size_t num_pieces, double* sums,
                                     GpuStream stream) = 0;

  // The calling thread waits until all that this process has queued on the device is done, streams
  // of LibTorch and of those who are gone included: before memory goes that anybody may use, and
  // never in a training step.
  virtual absl::Status SynchronizeDevice() = 0;

  // Device memory that processes of one host share. Export: a description of what AllocateDevice()
  // returned, for other processes. Import: the same memory for this one, wherever it lies on that
  // host, until CloseImported(); nothing that is queued may use it then. Its owner must not release
  // it before all have closed it. To be shared alone, memory has to fill pages of the GPU: whole
  // multiples of kSharedPage bytes.
  static constexpr size_t kSharedPage = size_t{2} << 20;
  virtual absl::StatusOr<std::string> ExportMemory(void* memory) = 0;
  virtual absl::StatusOr<void*> ImportMemory(const std::string& exported) = 0;
  virtual void CloseImported(void* memory) = 0;

  // The device's address of registered memory, for flags: 32-bit words on which streams of several
  // processes wait, and which the host reads and writes as atomics. A stream comes to its later
  // work when *flag is `value` or up to 2^31 - 1 beyond, cyclically; no thread waits, and no kernel
  // runs. What was queued before a write is visible to all who see the flag.
  virtual absl::StatusOr<uint32_t*> FlagOnDevice(void* registered) = 0;
  virtual absl::Status WriteFlag(uint32_t* flag, uint32_t value, GpuStream stream) = 0;
  virtual absl::Status WaitFlag(const uint32_t* flag, uint32_t value, GpuStream stream) = 0;

  // Each byte of `bytes` becomes the value that `table` has for it: table[256 * channel + byte],
  // an element of layout.element_bytes bytes that is copied as it is. So the values have the bits
  // that who made the table gave them. All in device memory; `table` and `values` are aligned to an
  // element.
  virtual absl::Status LookUpBytes(const ImageLayout& layout, const uint8_t* bytes,
                                   const void* table, void* values, GpuStream stream) = 0;
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_GPU_GPU_API_H_
