// Parameters on a GPU under a backend that exchanges memory of the host.

#ifndef GRADSYNC_CORE_SYNC_STAGED_SYNC_H_
#define GRADSYNC_CORE_SYNC_STAGED_SYNC_H_

#include <memory>

#include "core/gpu/gpu_api.h"
#include "core/sync/gradient_sync.h"

namespace gradsync {

// Wraps `host`, a new and unbound backend of parameter servers, rings or none, for buckets in the
// memory of `gpu`. Everything is as GradientSync and `host` say, with the same bits; in addition:
//
//   Launch   queues, on a stream beside the compute stream, the copy of the bucket's gradient to
//            the host, after what was queued on the calling thread's compute stream so far. When
//            the copy is done, a thread of this object launches the bucket in `host`: so copies and
//            exchanges go on while later gradients are computed. When that is resolved, another
//            thread queues the copy of the result (`grad` under kWorker, `param` under kOwner) back
//            to the GPU, on a third stream.
//   Gather   asks `host`, in the order of all calls of Launch() and Gather(), as soon as what was
//            gathered to the same memory before has left it for the GPU; so exchanges go on while
//            earlier buckets are computed with. When that is resolved, a thread queues the copy to
//            the GPU, after what was queued on the calling thread's compute stream by the time of
//            the call, which may use what lies there. Launches then return nothing, and what is
//            said of their copies back holds for those of gathers.
//   handle   resolved when the copy back is queued. Wait() then makes the compute stream of its
//            caller wait for the copy; the caller itself waits for the exchange, not for the GPU.
//   host     The buckets of `host` are pinned where they are (GpuApi::RegisterHost()), so the GPU
//   memory   copies from and to the memory that is exchanged, windows of shared memory included, and
//            the host copies nothing. Buffers of our own beside them would cost two more copies of
//            every bucket in the host's memory, whose bandwidth is what limits exchanges on one
//            host (docs/internals/shared_memory.md).
//   slots    Buckets that share memory share it in both places, so the GPU has no more of gradients
//            and parameters than their slots.
//   kOwner   Owners hold the parameters that were broadcast last: values that the caller writes into
//            `param` reach them by BroadcastParameters() alone.
//
// No call in a step waits for the GPU. Bind(), BroadcastParameters() and StoreParameters() do, and
// the destructor, until the copies that were queued are done. With more than one compute stream per
// bucket the caller must join them before Launch(), and before Gather().
//
// A call of the GPU that fails ends the group like any failure: `host` is aborted with its status.
// An error of work on the GPU itself, after which copies never end, is noticed within seconds.
// Thread-safety, ownership of tensors and errors: as GradientSync.
std::unique_ptr<GradientSync> CreateStagedSync(std::unique_ptr<GradientSync> host,
                                               std::shared_ptr<GpuApi> gpu);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_SYNC_STAGED_SYNC_H_
