// One rank of the memory ceiling: copies as many bytes as an exchange has from one buffer to
// another, at the same time as the other ranks do.

#include <cstring>

#include "benchmarks/peer_libraries/peer_rank.h"

int main(int argc, char** argv) {
  return gradsync::PeerMain("peer_memcpy", argc, argv, [](gradsync::PeerRankOptions& options) {
    gradsync::PeerExchange exchange(options, /*in_place=*/false);
    exchange.result = gradsync::PeerResult::kOwnInput;
    exchange.run = [&] {
      std::memcpy(exchange.output, exchange.input, static_cast<size_t>(options.bytes));
      return absl::OkStatus();
    };
    return gradsync::MeasurePeer(options, exchange);
  });
}
