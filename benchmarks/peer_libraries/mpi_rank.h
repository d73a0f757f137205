// How a rank of an MPI program begins and ends. For main files, which tools/setup --peers compiles
// with the headers of each MPI library.

#ifndef GRADSYNC_BENCHMARKS_PEER_LIBRARIES_MPI_RANK_H_
#define GRADSYNC_BENCHMARKS_PEER_LIBRARIES_MPI_RANK_H_

#include <mpi.h>

#include <functional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "benchmarks/peer_libraries/peer_rank.h"

namespace gradsync {

// Runs `run` between MPI_Init() and MPI_Finalize(), with the rank that the launcher gave this
// process, and returns the exit code. Ends all ranks when it is not 0. A launcher that started
// another number of ranks than the flags say is INVALID_ARGUMENT, and `run` is not called.
inline int RunMpiRank(int argc, char** argv, absl::string_view program,
                      const std::function<absl::Status(const PeerRankOptions&)>& run) {
  MPI_Init(&argc, &argv);
  const int code = PeerMain(program, argc, argv, [&run](PeerRankOptions& options) {
    int size = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &options.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size == options.world_size) return run(options);
    return absl::InvalidArgumentError(
        absl::StrCat("expected ", options.world_size, " ranks, found ", size));
  });
  // A launcher waits for the other ranks unless it is told not to.
  if (code != 0) MPI_Abort(MPI_COMM_WORLD, code);
  MPI_Finalize();
  return code;
}

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_PEER_LIBRARIES_MPI_RANK_H_
