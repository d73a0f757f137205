// One rank of an allreduce by Gloo itself, without LibTorch around it, over TCP on loopback.
// Variants: "options_ring" (what c10d's process group uses) and "options_bcube" of
// gloo::allreduce(), and the older classes "ring", "ring_chunked", "halving_doubling" and "bcube".

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "benchmarks/peer_libraries/peer_rank.h"
#include "core/base/status_macros.h"
#include "gloo/allreduce.h"
#include "gloo/allreduce_bcube.h"
#include "gloo/allreduce_halving_doubling.h"
#include "gloo/allreduce_ring.h"
#include "gloo/allreduce_ring_chunked.h"
#include "gloo/math.h"
#include "gloo/rendezvous/context.h"
#include "gloo/rendezvous/file_store.h"
#include "gloo/transport/tcp/device.h"

namespace gradsync {
namespace {

std::function<void()> ByOptions(const std::shared_ptr<gloo::Context>& context,
                                gloo::AllreduceOptions::Algorithm algorithm, float* data,
                                size_t floats) {
  return [=] {
    gloo::AllreduceOptions options(context);
    options.setAlgorithm(algorithm);
    options.setOutput(data, floats);
    options.setReduceFunction(
        static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
    gloo::allreduce(options);
  };
}

template <typename Algorithm>
std::function<void()> ByClass(const std::shared_ptr<gloo::Context>& context, float* data,
                              size_t floats) {
  const auto algorithm =
      std::make_shared<Algorithm>(context, std::vector<float*>{data}, static_cast<int>(floats));
  return [algorithm] { algorithm->run(); };
}

absl::StatusOr<std::function<void()>> Allreduce(const std::shared_ptr<gloo::Context>& context,
                                                const std::string& variant, float* data,
                                                size_t floats) {
  if (variant == "options_ring") {
    return ByOptions(context, gloo::AllreduceOptions::Algorithm::RING, data, floats);
  }
  if (variant == "options_bcube") {
    return ByOptions(context, gloo::AllreduceOptions::Algorithm::BCUBE, data, floats);
  }
  if (variant == "ring") return ByClass<gloo::AllreduceRing<float>>(context, data, floats);
  if (variant == "ring_chunked") {
    return ByClass<gloo::AllreduceRingChunked<float>>(context, data, floats);
  }
  if (variant == "halving_doubling") {
    return ByClass<gloo::AllreduceHalvingDoubling<float>>(context, data, floats);
  }
  if (variant == "bcube") return ByClass<gloo::AllreduceBcube<float>>(context, data, floats);
  return absl::InvalidArgumentError(
      absl::StrCat("--variant: expected an algorithm of Gloo, found \"", variant, "\""));
}

absl::Status RunRank(const PeerRankOptions& options) {
  gloo::transport::tcp::attr address;
  address.hostname = "127.0.0.1";
  gloo::rendezvous::FileStore store(options.folder);
  const auto context =
      std::make_shared<gloo::rendezvous::Context>(options.rank, options.world_size);
  std::shared_ptr<gloo::transport::Device> device = gloo::transport::tcp::CreateDevice(address);
  context->connectFullMesh(store, device);
  PeerExchange exchange(options, /*in_place=*/true);
  GS_ASSIGN_OR_RETURN(
      const std::function<void()> allreduce,
      Allreduce(context, options.variant, exchange.input, static_cast<size_t>(options.bytes / 4)));
  exchange.run = [&] {
    allreduce();
    return absl::OkStatus();
  };
  return MeasurePeer(options, exchange);
}

}  // namespace
}  // namespace gradsync

int main(int argc, char** argv) {
  return gradsync::PeerMain("peer_gloo", argc, argv, gradsync::RunRank);
}
