#include <torch/torch.h>

#include <cstdint>
#include <cstdlib>
#include <iostream>

#include "digits.h"

int main(int argc, char** argv) {
  const int epochs = argc > 1 ? std::atoi(argv[1]) : 2;
  torch::manual_seed(1);
  Digits digits = Digits::Make(2048);
  torch::nn::Sequential net(torch::nn::Linear(784, 64), torch::nn::ReLU(),
                            torch::nn::Linear(64, 10));
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-3));
  torch::optim::StepLR scheduler(optimizer, /*step_size=*/1, /*gamma=*/0.5);
  for (int epoch = 1; epoch <= epochs; ++epoch) {
    torch::Tensor loss;
    for (int64_t begin = 0; begin + 64 <= digits.size(); begin += 64) {
      optimizer.zero_grad();
      loss = torch::nn::functional::cross_entropy(net->forward(digits.images.narrow(0, begin, 64)),
                                                  digits.labels.narrow(0, begin, 64));
      loss.backward();
      optimizer.step();
    }
    scheduler.step();
    std::cout << "epoch " << epoch << ": loss " << loss.item<float>() << std::endl;
  }
  return 0;
}
