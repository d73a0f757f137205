// Trains a module of your own with gradsync, alone or on as many workers as a launcher starts:
//
//   bazel run //examples:own_model
//   torchrun --no_python --nproc_per_node=2 bazel-bin/examples/own_model ring
//   mpirun -n 2 bazel-bin/examples/own_model ring
//   mpirun -n 2 bazel-bin/examples/own_model ps                  # workers are the servers, too
//   mpirun -n 2 bazel-bin/examples/own_model ps 127.0.0.1:4242   # the server's address: bazel run //ps_server

#include <iostream>
#include <memory>

#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/plan/job_spec.h"
#include "gradsync/ddp/distributed_data_parallel.h"
#include "gradsync/join/environment_main.h"
#include "gradsync/join/join.h"
#include "gradsync/join/torch_adapters.h"
#include "torch/nn/modules/container/sequential.h"
#include "torch/nn/modules/linear.h"

namespace {

void Print(const gradsync::MeetOptions& self, int64_t step, const at::Tensor& loss) {
  std::cout << "rank " << self.rank << " of " << self.world_size << ", step " << step << ": loss "
            << loss.item<float>() << std::endl;
}

absl::Status Train(const gradsync::JoinOptions& options) {
  torch::nn::Sequential model(torch::nn::Linear(4, 16), torch::nn::Linear(16, 1));
  const at::Tensor inputs = at::randn({64, 4});  // each worker has data of its own
  const at::Tensor targets = inputs.sum(/*dim=*/1, /*keepdim=*/true);

  auto member = gradsync::Join(options);
  if (!member.ok()) return member.status();
  gradsync::DdpOptions ddp_options;
  ddp_options.optimizer = {gradsync::OptimizerKind::kSgd, {{}}};
  ddp_options.optimizer.groups[0].momentum = 0.9;
  ddp_options.forward_backward = [&] { model->forward(inputs).sum().backward(); };
  auto ddp = gradsync::DistributedDataParallel::Create(model.ptr(), &(*member)->sync(),
                                                       &(*member)->side_channel(), ddp_options);
  if (!ddp.ok()) return (*member)->Fail(ddp.status());

  gradsync::StepOptions step;
  for (step.step = 1, step.lr = 0.01; step.step <= 100; ++step.step) {
    absl::Status status = (*ddp)->BeginStep(step);
    const at::Tensor loss = (model->forward(inputs) - targets).pow(2).mean();
    loss.backward();
    if (status.ok()) status = (*ddp)->FinishStep(gradsync::Deadline::In(absl::Seconds(60)));
    if (!status.ok()) return (*member)->Fail(status);
    if (step.step % 20 == 0) Print(options.meet, step.step, loss);
  }
  const absl::Status left = (*member)->sync().Shutdown(gradsync::Deadline::In(absl::Seconds(60)));
  return left.ok() ? (*member)->Leave() : left;
}

}  // namespace

int main(int argc, char** argv) {
  auto options = gradsync::JoinOptionsFromEnvironment();
  absl::Status status = options.status();
  if (status.ok()) {
    const auto job = gradsync::ParseJobSpec({argc > 1 ? argv[1] : "local"});
    status = job.status();
    if (job.ok()) options->sync.job = *job;
    options->sync.adapters = gradsync::TorchAdapters();
    if (argc > 2) options->sync.servers = {argv[2]};
  }
  if (status.ok()) status = Train(*options);
  if (!status.ok()) std::cerr << status << std::endl;
  return status.ok() ? 0 : 1;
}
