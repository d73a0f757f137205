// One rank of an allreduce by an MPI library, whichever its headers belong to; tools/setup --peers
// builds it for each. Variants: "in_place" (MPI_IN_PLACE) and "out_of_place".

#include <mpi.h>

#include "absl/strings/str_cat.h"
#include "benchmarks/peer_libraries/mpi_rank.h"
#include "benchmarks/peer_libraries/peer_rank.h"

namespace gradsync {
namespace {

absl::Status RunRank(const PeerRankOptions& options) {
  const bool in_place = options.variant == "in_place";
  if (!in_place && options.variant != "out_of_place") {
    return absl::InvalidArgumentError(absl::StrCat(
        "--variant: expected in_place or out_of_place, found \"", options.variant, "\""));
  }
  const int floats = static_cast<int>(options.bytes / 4);
  PeerExchange exchange(options, in_place);
  exchange.run = [&] {
    const int error = MPI_Allreduce(in_place ? MPI_IN_PLACE : exchange.input, exchange.output,
                                    floats, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    return error == MPI_SUCCESS ? absl::OkStatus()
                                : absl::InternalError(absl::StrCat("MPI_Allreduce: error ", error));
  };
  return MeasurePeer(options, exchange);
}

}  // namespace
}  // namespace gradsync

int main(int argc, char** argv) {
  return gradsync::RunMpiRank(argc, argv, "mpi_allreduce", gradsync::RunRank);
}
