// Two models and two groups in one process: a generator learns to draw points that a discriminator
// cannot tell from those of a circle, on as many ranks as a launcher starts. Arguments are options,
// by their names in gradsync/options.h:
//
//   torchrun --no_python --nproc_per_node=2 build/gan topology=ring

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>

#include "gradsync/gradsync.h"
#include "torch/nn/functional/loss.h"
#include "torch/nn/modules/activation.h"
#include "torch/nn/modules/container/sequential.h"
#include "torch/nn/modules/linear.h"
#include "torch/optim/adam.h"
#include "torch/types.h"
#include "torch/utils.h"

namespace {

namespace functional = torch::nn::functional;

// Where rank 0 of a second group listens: two ports above the launcher's. The first group has the
// launcher's, or, where torchrun itself listens there, the next.
std::string SecondMaster() {
  const char* host = std::getenv("MASTER_ADDR");
  const char* port = std::getenv("MASTER_PORT");
  if (host == nullptr || port == nullptr) return "";
  return std::string(host) + ":" + std::to_string(std::atoi(port) + 2);
}

torch::nn::Sequential Network(int64_t inputs, int64_t outputs) {
  return torch::nn::Sequential(torch::nn::Linear(inputs, 32), torch::nn::ReLU(),
                               torch::nn::Linear(32, outputs));
}

// What the generator is to imitate: points on a circle.
torch::Tensor Circle(int64_t count) {
  const torch::Tensor angles = torch::rand({count, 1}) * 6.2831853;
  return torch::cat({angles.cos(), angles.sin()}, /*dim=*/1);
}

void SetTrainable(torch::nn::Module& module, bool trainable) {
  for (torch::Tensor& parameter : module.parameters()) parameter.set_requires_grad(trainable);
}

void Train(const gradsync::Options& options) {
  torch::nn::Sequential generator = Network(8, 2);
  torch::nn::Sequential discriminator = Network(2, 1);

  // A group exchanges the gradients of one model.
  gradsync::Options second = options;
  second.master = SecondMaster();
  second.run_id = "discriminator";
  gradsync::Group generators = gradsync::Group::Join(options).value();
  gradsync::Group discriminators = gradsync::Group::Join(second).value();
  auto generator_ddp =
      gradsync::DistributedDataParallel::Create(generator.ptr(), generators).value();
  auto discriminator_ddp =
      gradsync::DistributedDataParallel::Create(discriminator.ptr(), discriminators).value();

  torch::manual_seed(generators.rank());  // each rank draws other points
  torch::optim::Adam generator_optimizer(generator->parameters(), 1e-3);
  torch::optim::Adam discriminator_optimizer(discriminator->parameters(), 1e-3);
  const torch::Tensor real = torch::ones({64, 1});
  const torch::Tensor made_up = torch::zeros({64, 1});
  for (int step = 1; step <= 100; ++step) {
    // One backward is one exchange: of the sum of both losses, and none reaches the generator.
    const torch::Tensor drawn = generator->forward(torch::randn({64, 8}));
    const torch::Tensor judged =
        functional::binary_cross_entropy_with_logits(discriminator->forward(Circle(64)), real) +
        functional::binary_cross_entropy_with_logits(discriminator->forward(drawn.detach()),
                                                     made_up);
    judged.backward();
    discriminator_optimizer.step();

    // The discriminator passes gradients on, and gets none itself.
    SetTrainable(*discriminator, false);
    const torch::Tensor deceived =
        functional::binary_cross_entropy_with_logits(discriminator->forward(drawn), real);
    deceived.backward();
    generator_optimizer.step();
    SetTrainable(*discriminator, true);

    if (step % 50 != 0 || generators.rank() != 0) continue;
    std::cout << "step " << step << ": losses " << judged.item<float>() << " and "
              << deceived.item<float>() << std::endl;
  }
  std::cout << "discriminator " << discriminator_ddp.ParametersSha256() << "\nparams_sha256 "
            << generator_ddp.ParametersSha256() << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Train(gradsync::Options::Parse(argc - 1, argv + 1).value());
  } catch (const gradsync::Error& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
  return 0;
}
