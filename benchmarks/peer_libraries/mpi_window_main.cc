// One rank of an allreduce by hand in memory that all ranks of a host see, which is what somebody
// who knows MPI writes where all ranks share a host: gradients lie in an MPI window
// (MPI_Win_allocate_shared), every rank adds up its slice of all ranks' gradients in place, nothing
// is sent. tools/setup --peers builds it for each MPI library. Variants say who moves the sums and
// how ranks wait for each other:
//
//   push_...       who adds a slice up writes it into all ranks' gradients (two barriers)
//   pull_...       into its own alone; then each rank reads the others' (three barriers)
//   ..._mpi        by MPI_Barrier
//   ..._yield      by a counter in the window: a short spin, then sched_yield
//
// Rank 0's gradients are added first, so all ranks have equal bits.

#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "benchmarks/peer_libraries/mpi_rank.h"
#include "benchmarks/peer_libraries/peer_rank.h"

namespace gradsync {
namespace {

constexpr int64_t kBlock = 2048;  // floats that are added at a time: the sums stay in the L1 cache
constexpr int64_t kLine = 16;     // floats of a cache line, which no two ranks write
constexpr int kSpins = 1000;

// Compiled for several CPUs and chosen when the program starts; the same bits on all, since nothing
// is contracted.
__attribute__((target_clones("avx512f", "avx2", "default"))) void Add(const float* __restrict more,
                                                                      int64_t size,
                                                                      float* __restrict sum) {
  for (int64_t i = 0; i < size; ++i) sum[i] += more[i];
}

// At the beginning of rank 0's memory.
struct Counter {
  std::atomic<int> arrived;
  std::atomic<int> round;
};

// Memory of all ranks, each one's on pages of its own.
class Window {
 public:
  Window(int64_t floats, int rank, int size) : rank_(rank), size_(size), members_(size) {
    MPI_Info info;
    MPI_Info_create(&info);
    MPI_Info_set(info, "alloc_shared_noncontig", "true");
    float* mine = nullptr;
    const MPI_Aint bytes = static_cast<MPI_Aint>((floats + kHeader) * sizeof(float));
    MPI_Win_allocate_shared(bytes, sizeof(float), info, MPI_COMM_WORLD, &mine, &window_);
    MPI_Info_free(&info);
    if (rank == 0) new (mine) Counter{{0}, {0}};
    std::fill(mine + kHeader, mine + kHeader + floats, 0.0f);
    for (int other = 0; other < size; ++other) {
      MPI_Aint unused_size = 0;
      int unit = 0;
      float* base = nullptr;
      MPI_Win_shared_query(window_, other, &unused_size, &unit, &base);
      if (other == 0) counter_ = reinterpret_cast<Counter*>(base);
      members_[other] = base + kHeader;
    }
    MPI_Win_lock_all(MPI_MODE_NOCHECK, window_);
    MPI_Barrier(MPI_COMM_WORLD);
  }

  ~Window() {
    MPI_Win_unlock_all(window_);
    MPI_Win_free(&window_);
  }

  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  float* of(int rank) const { return members_[rank]; }
  float* mine() const { return members_[rank_]; }
  int rank() const { return rank_; }
  int size() const { return size_; }

  void MpiBarrier() {
    MPI_Win_sync(window_);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_sync(window_);
  }

  void YieldBarrier() {
    const int round = counter_->round.load(std::memory_order_acquire);
    if (counter_->arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
      counter_->arrived.store(0, std::memory_order_relaxed);
      counter_->round.fetch_add(1, std::memory_order_release);
      return;
    }
    for (int spins = 0; counter_->round.load(std::memory_order_acquire) == round; ++spins) {
      if (spins < kSpins) {
        __builtin_ia32_pause();
      } else {
        sched_yield();  // a rank that is still to come may want this core
      }
    }
  }

 private:
  static constexpr int64_t kHeader = 1024;  // floats: a page

  const int rank_;
  const int size_;
  MPI_Win window_ = MPI_WIN_NULL;
  Counter* counter_ = nullptr;
  std::vector<float*> members_;
};

int64_t SliceBegin(const Window& window, int64_t floats, int rank) {
  const int64_t lines = (floats + kLine - 1) / kLine;
  return std::min(floats, lines * rank / window.size() * kLine);
}

// Adds up this rank's slice, and writes it into all ranks' gradients or into its own.
void ReduceSlice(const Window& window, int64_t floats, bool push) {
  const int64_t end = SliceBegin(window, floats, window.rank() + 1);
  alignas(64) float sum[kBlock];
  for (int64_t at = SliceBegin(window, floats, window.rank()); at < end; at += kBlock) {
    const int64_t size = std::min(kBlock, end - at);
    std::memcpy(sum, window.of(0) + at, sizeof(float) * static_cast<size_t>(size));
    for (int rank = 1; rank < window.size(); ++rank) Add(window.of(rank) + at, size, sum);
    for (int rank = 0; rank < window.size(); ++rank) {
      if (!push && rank != window.rank()) continue;
      std::memcpy(window.of(rank) + at, sum, sizeof(float) * static_cast<size_t>(size));
    }
  }
}

void GatherSlices(const Window& window, int64_t floats) {
  for (int step = 1; step < window.size(); ++step) {
    // Each rank begins with another one's.
    const int owner = (window.rank() + step) % window.size();
    const int64_t begin = SliceBegin(window, floats, owner);
    const int64_t end = SliceBegin(window, floats, owner + 1);
    std::memcpy(window.mine() + begin, window.of(owner) + begin,
                sizeof(float) * static_cast<size_t>(end - begin));
  }
}

absl::Status RunRank(const PeerRankOptions& options) {
  const std::pair<std::string, std::string> words = absl::StrSplit(options.variant, '_');
  const bool push = words.first == "push";
  const bool by_mpi = words.second == "mpi";
  if ((!push && words.first != "pull") || (!by_mpi && words.second != "yield")) {
    return absl::InvalidArgumentError(
        absl::StrCat("--variant: expected push_mpi, push_yield, pull_mpi or pull_yield, found \"",
                     options.variant, "\""));
  }
  const int64_t floats = options.bytes / 4;
  Window window(floats, options.rank, options.world_size);
  const auto barrier = [&] { by_mpi ? window.MpiBarrier() : window.YieldBarrier(); };
  PeerExchange exchange;
  exchange.input = window.mine();
  exchange.output = window.mine();
  exchange.run = [&] {
    barrier();  // all have their gradients
    ReduceSlice(window, floats, push);
    barrier();
    if (!push) {
      GatherSlices(window, floats);
      barrier();  // nobody writes gradients that others still read
    }
    return absl::OkStatus();
  };
  return MeasurePeer(options, exchange);
}

}  // namespace
}  // namespace gradsync

int main(int argc, char** argv) {
  return gradsync::RunMpiRank(argc, argv, "mpi_window", gradsync::RunRank);
}
