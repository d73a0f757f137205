// Trains a module of your own with gradsync: here on one worker, and on many with another `sync`.
//
//   bazel run //ddp:example

#include <iostream>

#include "absl/time/time.h"
#include "base/deadline.h"
#include "ddp/distributed_data_parallel.h"
#include "sync/local_sync.h"
#include "torch/nn/modules/container/sequential.h"
#include "torch/nn/modules/linear.h"

int main() {
  torch::nn::Sequential model(torch::nn::Linear(4, 16), torch::nn::Linear(16, 1));
  const at::Tensor inputs = at::randn({64, 4});
  const at::Tensor targets = inputs.sum(/*dim=*/1, /*keepdim=*/true);

  // On several workers: a parameter server's or a ring's GradientSync, and a SideChannel, one of
  // each on every rank.
  const auto sync = gradsync::CreateLocalSync(gradsync::UpdateSite::kWorker);

  gradsync::DdpOptions options;
  options.optimizer = {gradsync::OptimizerKind::kSgd, {{}}};
  options.optimizer.groups[0].momentum = 0.9;
  options.forward_backward = [&] { model->forward(inputs).sum().backward(); };
  auto ddp = gradsync::DistributedDataParallel::Create(model.ptr(), sync.get(),
                                                       /*side_channel=*/nullptr, options);
  if (!ddp.ok()) return std::cerr << ddp.status() << "\n", 1;

  gradsync::StepOptions step;
  for (step.step = 1, step.lr = 0.01; step.step <= 100; ++step.step) {
    absl::Status status = (*ddp)->BeginStep(step);
    const at::Tensor loss = (model->forward(inputs) - targets).pow(2).mean();
    loss.backward();
    if (status.ok()) status = (*ddp)->FinishStep(gradsync::Deadline::In(absl::Seconds(60)));
    if (!status.ok()) return std::cerr << status << "\n", 1;
    if (step.step % 20 == 0) std::cout << step.step << ": " << loss.item<float>() << "\n";
  }
}
