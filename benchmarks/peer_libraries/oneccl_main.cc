// One rank of an allreduce by oneCCL on CPUs; tools/setup --peers builds it. Variants: "in_place"
// and "out_of_place". Started by Intel MPI's mpiexec, which numbers the ranks, since oneCCL's own
// transport is not in its CPU package.

#include <cstdlib>
#include <fstream>
#include <oneapi/ccl.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "benchmarks/peer_libraries/peer_rank.h"
#include "benchmarks/ranks/start_line.h"
#include "core/base/deadline.h"
#include "core/base/status_macros.h"

namespace gradsync {
namespace {

// Rank 0's address, handed to the others through a file of the job.
absl::StatusOr<ccl::shared_ptr_class<ccl::kvs>> MeetOthers(const PeerRankOptions& options) {
  GS_ASSIGN_OR_RETURN(const auto line, StartLine::Open(options.start_line, options.world_size));
  const std::string path = absl::StrCat(options.folder, "/kvs");
  ccl::shared_ptr_class<ccl::kvs> kvs;
  if (options.rank == 0) {
    kvs = ccl::create_main_kvs();
    const ccl::kvs::address_type address = kvs->get_address();
    std::ofstream(path, std::ios::binary).write(address.data(), address.size());
  }
  GS_RETURN_IF_ERROR(line->Wait(Deadline::In(options.timeout)));
  if (options.rank != 0) {
    ccl::kvs::address_type address;
    std::ifstream file(path, std::ios::binary);
    file.read(address.data(), address.size());
    if (!file) return absl::UnavailableError(absl::StrCat("cannot read ", path));
    kvs = ccl::create_kvs(address);
  }
  return kvs;
}

absl::Status RunRank(const PeerRankOptions& options) {
  const bool in_place = options.variant == "in_place";
  if (!in_place && options.variant != "out_of_place") {
    return absl::InvalidArgumentError(absl::StrCat(
        "--variant: expected in_place or out_of_place, found \"", options.variant, "\""));
  }
  GS_ASSIGN_OR_RETURN(const auto kvs, MeetOthers(options));
  const ccl::communicator communicator =
      ccl::create_communicator(options.world_size, options.rank, kvs);
  const size_t floats = static_cast<size_t>(options.bytes / 4);
  PeerExchange exchange(options, in_place);
  exchange.run = [&] {
    ccl::allreduce(exchange.input, exchange.output, floats, ccl::reduction::sum, communicator)
        .wait();
    return absl::OkStatus();
  };
  return MeasurePeer(options, exchange);
}

}  // namespace
}  // namespace gradsync

int main(int argc, char** argv) {
  return gradsync::PeerMain("oneccl_allreduce", argc, argv, [](gradsync::PeerRankOptions& options) {
    const char* const rank = std::getenv("PMI_RANK");
    if (rank != nullptr && !absl::SimpleAtoi(rank, &options.rank)) {
      return absl::InvalidArgumentError(absl::StrCat("PMI_RANK=", rank, ": expected a number"));
    }
    ccl::init();
    return gradsync::RunRank(options);
  });
}
