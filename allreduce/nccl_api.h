// The few calls of NCCL that gradsync makes, behind an interface, so that everything above them is
// tested where there is neither NCCL nor a GPU. The CUDA calls beside them are in
// core/gpu/gpu_api.h.
//
// The real one is built with --config=cuda. The fake (fake_nccl.h) is for tests.

#ifndef GRADSYNC_ALLREDUCE_NCCL_API_H_
#define GRADSYNC_ALLREDUCE_NCCL_API_H_

#include <array>
#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "core/gpu/gpu_api.h"

namespace gradsync {

// Named and numbered as ncclResult_t; a result that is not here becomes kInternalError.
enum class NcclResult {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,  // of a non-blocking communicator: ask AsyncError() until it says another
};

// "ncclRemoteError".
absl::string_view NcclResultName(NcclResult result);

// OK for kSuccess; UNAVAILABLE for kRemoteError, since a peer's connection is what broke; INTERNAL
// for all else, kInProgress too, which callers wait out before. The message is "what: ncclName:
// detail", where `detail` is NCCL's own explanation and may be empty.
absl::Status NcclStatus(NcclResult result, absl::string_view what, absl::string_view detail);

// Opaque; only valid with the object that made them.
struct NcclCommTag;
struct NcclRegistrationTag;
using NcclComm = NcclCommTag*;
using NcclRegistration = NcclRegistrationTag*;

// ncclUniqueId: what rank 0 gives to all, any bytes.
using NcclUniqueId = std::array<char, 128>;

// NCCL for one GPU, that of the GpuApi whose streams are passed in. Every call first makes it the
// calling thread's device, so that any thread may call.
//
// Each method is one call of NCCL and no more: no waiting, no retries, no locks. So NCCL's rules
// are the caller's (NcclCommunicator keeps them): calls for one communicator must not overlap, and
// after kInProgress there is none but AsyncError() and Abort() until AsyncError() says otherwise.
// All communicators are non-blocking (ncclConfig_t::blocking = 0). Collectives queue work on
// `stream` and return; pointers are to memory of the device or pinned memory and stay valid until
// the work is done.
class NcclApi {
 public:
  virtual ~NcclApi() = default;

  // ncclGetVersion() at run time, e.g. 22809 for 2.28.9; 0 if it fails.
  [[nodiscard]] virtual int version() const = 0;

  // How collectives are carried out, for records of measurements: what NCCL says that it chose
  // where it can be asked, else what it was told to choose ("NCCL_ALGO=Ring", as given to whoever
  // made this object: libraries read no environment); empty if nobody said anything.
  [[nodiscard]] virtual std::string algorithm() const = 0;

  // ncclGetUniqueId(). Opens a listening socket in this process; needs no GPU.
  [[nodiscard]] virtual NcclResult GetUniqueId(NcclUniqueId* id) = 0;

  // ncclCommInitRankConfig() with blocking = 0: *comm is set and usually kInProgress returned; the
  // communicator is ready when AsyncError() says kSuccess. Unless kSuccess or kInProgress comes
  // back, there is nothing to abort and *comm is null.
  [[nodiscard]] virtual NcclResult InitRank(int world_size, const NcclUniqueId& id, int rank,
                                            NcclComm* comm) = 0;

  // ncclCommGetAsyncError(): the state of the communicator in *state; the result is of the asking.
  [[nodiscard]] virtual NcclResult AsyncError(NcclComm comm, NcclResult* state) = 0;

  // ncclGetLastError(), one line; empty if there is nothing. Null: of calls without a communicator.
  [[nodiscard]] virtual std::string LastError(NcclComm comm) = 0;

  // ncclCommFinalize(): flushes what is queued, needs all ranks; may be kInProgress.
  [[nodiscard]] virtual NcclResult Finalize(NcclComm comm) = 0;

  // ncclCommDestroy() after a Finalize() that has succeeded. Blocks. `comm` is gone whatever comes
  // back.
  [[nodiscard]] virtual NcclResult Destroy(NcclComm comm) = 0;

  // ncclCommAbort(): makes queued and running collectives end, with any result, and frees. Blocks,
  // and may hang. `comm` is gone whatever comes back.
  [[nodiscard]] virtual NcclResult Abort(NcclComm comm) = 0;

  // ncclGroupStart(), ncclGroupEnd(): calls between them, on one thread, are issued together by
  // the latter, which may be kInProgress for the communicators involved.
  [[nodiscard]] virtual NcclResult GroupStart() = 0;
  [[nodiscard]] virtual NcclResult GroupEnd() = 0;

  // ncclAllReduce() of fp32 with ncclSum. `count` elements; in place when `out` == `in`.
  [[nodiscard]] virtual NcclResult AllReduce(const float* in, float* out, size_t count,
                                             NcclComm comm, GpuStream stream) = 0;

  // ncclReduceScatter() of fp32 with ncclSum: `in` has n * `count` elements, and rank r gets the
  // sum of the r-th `count`. In place when `out` == `in` + r * `count`.
  [[nodiscard]] virtual NcclResult ReduceScatter(const float* in, float* out, size_t count,
                                                 NcclComm comm, GpuStream stream) = 0;

  // ncclAllGather() of bytes: `out` gets n * `bytes`, rank r's at r * `bytes`. In place when `in`
  // is this rank's part of `out`.
  [[nodiscard]] virtual NcclResult AllGather(const void* in, void* out, size_t bytes, NcclComm comm,
                                             GpuStream stream) = 0;

  // ncclBroadcast() of bytes, in place, from `root`.
  [[nodiscard]] virtual NcclResult Broadcast(void* data, size_t bytes, int root, NcclComm comm,
                                             GpuStream stream) = 0;

  // ncclSend() and ncclRecv() of bytes. A send of rank r to `peer` meets the peer's receive from r:
  // the k-th of one the k-th of the other, with the same `bytes`. Those of a group go on together;
  // outside of one, each keeps the stream from going on until it has met the other.
  [[nodiscard]] virtual NcclResult Send(const void* data, size_t bytes, int peer, NcclComm comm,
                                        GpuStream stream) = 0;
  [[nodiscard]] virtual NcclResult Recv(void* data, size_t bytes, int peer, NcclComm comm,
                                        GpuStream stream) = 0;

  // ncclCommRegister() and ncclCommDeregister(). All ranks register; it is no collective call.
  // *registration may become null with kSuccess where NCCL has no use for it; such a one is given
  // back like any other, which does nothing.
  [[nodiscard]] virtual NcclResult Register(NcclComm comm, void* memory, size_t bytes,
                                            NcclRegistration* registration) = 0;
  [[nodiscard]] virtual NcclResult Deregister(NcclComm comm, NcclRegistration registration) = 0;

  // ncclMemAlloc() and ncclMemFree(), and two calls more: the memory is zeroed, which is done when
  // MemAlloc() returns. Aligned to at least 256 bytes; `bytes` may be 0. MemFree() unmaps at once:
  // nothing that is queued uses the memory any more. It needs no communicator.
  [[nodiscard]] virtual NcclResult MemAlloc(size_t bytes, void** memory) = 0;
  [[nodiscard]] virtual NcclResult MemFree(void* memory) = 0;
};

}  // namespace gradsync

#endif  // GRADSYNC_ALLREDUCE_NCCL_API_H_
