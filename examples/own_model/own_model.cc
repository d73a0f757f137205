// Trains a module of your own with gradsync, alone or on as many workers as a launcher starts:
//
//   bazel run //examples:own_model
//   torchrun --no_python --nproc_per_node=2 bazel-bin/examples/own_model ring
//   mpirun -n 2 bazel-bin/examples/own_model ring
//   mpirun -n 2 bazel-bin/examples/own_model ps      # workers are the servers, too
//   mpirun -n 2 bazel-bin/examples/own_model ps servers=127.0.0.1:4242   # of bazel run //ps_server
//
// After the topology come options by their names in gradsync/options.h.

#include <cstdint>
#include <iostream>

#include "gradsync/gradsync.h"
#include "torch/nn/modules/container/sequential.h"
#include "torch/nn/modules/linear.h"
#include "torch/optim/sgd.h"

namespace {

void Train(const gradsync::Options& options) {
  torch::nn::Sequential model(torch::nn::Linear(4, 16), torch::nn::Linear(16, 1));
  const at::Tensor inputs = at::randn({64, 4});  // each worker has data of its own
  const at::Tensor targets = inputs.sum(/*dim=*/1, /*keepdim=*/true);

  gradsync::Group group = gradsync::Group::Join(options).value();
  auto ddp = gradsync::DistributedDataParallel::Create(model.ptr(), group).value();
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  for (int64_t step = 1; step <= 100; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = (model->forward(inputs) - targets).pow(2).mean();
    loss.backward();
    optimizer.step();
    if (step % 20 != 0) continue;
    std::cout << "rank " << group.rank() << " of " << group.world_size() << ", step " << step
              << ": loss " << loss.item<float>() << std::endl;
  }
  std::cout << "params_sha256 " << ddp.ParametersSha256() << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    gradsync::Options options = gradsync::Options::Parse(argc - 2, argv + 2).value();
    options.topology = argc > 1 ? argv[1] : "local";
    Train(options);
  } catch (const gradsync::Error& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
  return 0;
}
