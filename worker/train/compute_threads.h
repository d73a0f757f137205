// How many threads compute. LibTorch hands matrix products to a BLAS library with threads of its
// own: OpenBLAS, as Debian has it, takes all cores for each product whatever LibTorch was told.
// LibTorch from pip has MKL, which LibTorch tells itself.

#ifndef GRADSYNC_WORKER_TRAIN_COMPUTE_THREADS_H_
#define GRADSYNC_WORKER_TRAIN_COMPUTE_THREADS_H_

namespace gradsync {

// From here on LibTorch, called on this thread, computes with at most `threads`, and so does
// OpenBLAS in the whole process where it is loaded. At least 1. Call it before the first
// computation.
void SetComputeThreads(int threads);

// What OpenBLAS says that it computes with; 0 where it is not loaded.
int OpenBlasThreads();

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_COMPUTE_THREADS_H_
