// A rank of a program as users write it, of a job that a launcher's environment describes:
//
//   ddp_rank WHAT TOPOLOGY LINK
//
// WHAT it trains: "uneven", a module of which ranks have different numbers of batches; "dies", the same,
// but that rank 1 dies when rank 0 has none left; "gan", two modules over a group each. Prints
// "params_sha256 HEX" of each, or "error: TEXT".

#include <unistd.h>

#include <cstdint>
#include <iostream>
#include <string>

#include "gradsync/gradsync.h"
#include "torch/nn/modules/linear.h"
#include "torch/optim/sgd.h"

namespace {

using gradsync::DistributedDataParallel;
using gradsync::Group;

at::Tensor InputsOf(int64_t step, int rank) {
  return at::sin(at::arange(20).reshape({4, 5}) * 0.7 + static_cast<double>(10 * step + rank));
}

torch::optim::SGD OptimizerOf(const torch::nn::Module& module) {
  return torch::optim::SGD(module.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
}

void Print(const DistributedDataParallel& ddp) {
  std::cout << "params_sha256 " << ddp.ParametersSha256() << std::endl;
}

void TrainUneven(const gradsync::Options& options, bool dies) {
  torch::nn::Linear model(5, 3);
  Group group = Group::Join(options).value();
  auto ddp = DistributedDataParallel::Create(model.ptr(), group).value();
  torch::optim::SGD optimizer = OptimizerOf(*model);
  for (int epoch : {0, 1}) {
    // The last rank has the most batches in the first epoch, the first in the second.
    const int rank = epoch == 0 ? group.rank() : group.world_size() - 1 - group.rank();
    auto join = ddp.join();
    for (int64_t step = 0; step < 3 * rank; ++step) {
      if (dies && step == 2 && group.rank() == 1) _exit(9);
      optimizer.zero_grad();
      model->forward(InputsOf(step, group.rank())).pow(2).mean().backward();
      optimizer.step();
    }
    join.Finish([&] { optimizer.step(); }).OrThrow();
  }
  Print(ddp);
  group.Leave().OrThrow();
}

void TrainTwo(const gradsync::Options& options) {
  torch::nn::Linear generator(5, 3), discriminator(3, 1);
  Group group = Group::Join(options).value();
  Group other = group.New("discriminator").value();
  auto of_generator = DistributedDataParallel::Create(generator.ptr(), group).value();
  auto of_discriminator = DistributedDataParallel::Create(discriminator.ptr(), other).value();
  torch::optim::SGD generators = OptimizerOf(*generator);
  torch::optim::SGD discriminators = OptimizerOf(*discriminator);
  for (int64_t step = 0; step < 10; ++step) {
    const at::Tensor inputs = InputsOf(step, group.rank());
    discriminators.zero_grad();
    const at::Tensor made = generator->forward(inputs);
    (discriminator->forward(made.detach()).pow(2).mean() +
     (discriminator->forward(inputs.slice(1, 0, 3)) - 1).pow(2).mean())
        .backward();
    discriminators.step();
    generators.zero_grad();
    const auto held = of_discriminator.no_sync();
    (discriminator->forward(generator->forward(inputs)) - 1).pow(2).mean().backward();
    generators.step();
  }
  Print(of_generator);
  Print(of_discriminator);
  other.Leave().OrThrow();
  group.Leave().OrThrow();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const std::string what = argv[1];
  gradsync::Options options;
  options.topology = argv[2];
  options.link = argv[3];
  try {
    if (what == "gan") {
      TrainTwo(options);
    } else {
      TrainUneven(options, what == "dies");
    }
  } catch (const gradsync::Error& error) {
    std::cout << "error: " << error.what() << std::endl;
    return 1;
  }
  return 0;
}
