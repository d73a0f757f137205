// One rank of the memory ceiling: copies as many bytes as an exchange has from one buffer to
// another, at the same time as the other ranks do.

#include <cstring>

#include "benchmarks/peer_libraries/peer_rank.h"

int main(int argc, char** argv) {
  const auto options = gradsync::ParsePeerRankOptions(argc, argv);
  if (!options.ok()) return gradsync::PeerExitCode("peer_memcpy", -1, options.status());
  const int64_t floats = options->bytes / 4;
  gradsync::PeerBuffer input(floats, options->huge_pages);
  gradsync::PeerBuffer output(floats, options->huge_pages);
  gradsync::PeerExchange exchange;
  exchange.input = input.data();
  exchange.output = output.data();
  exchange.result = gradsync::PeerResult::kOwnInput;
  exchange.run = [&] {
    std::memcpy(exchange.output, exchange.input, static_cast<size_t>(options->bytes));
    return absl::OkStatus();
  };
  return gradsync::PeerExitCode("peer_memcpy", options->rank,
                                gradsync::MeasurePeer(*options, exchange));
}
