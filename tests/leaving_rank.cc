// A rank of a program of one's own, that trains a small module and may end before the others:
//
//   leaving_rank RANK WORLD_SIZE MASTER PORT_FILE TOPOLOGY LINK STEPS HOW
//
// HOW it ends after its steps: "leaves" as it should, "returns" without Shutdown(), "exits" with 0 at
// once, or "throws".

#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <string>

#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/plan/job_spec.h"
#include "gradsync/ddp/ddp_engine.h"
#include "gradsync/join/join.h"
#include "gradsync/join/meet.h"
#include "gradsync/join/torch_adapters.h"
#include "torch/nn/modules/linear.h"

namespace gradsync {
namespace {

// Far longer than a test may take, so that no rank ends because it has waited for another.
constexpr absl::Duration kPatience = absl::Minutes(10);

absl::Status Train(const JoinOptions& options, int64_t steps, const std::string& how) {
  torch::nn::Linear model(4, 16);
  const at::Tensor inputs = at::ones({8, 4});
  auto member = Join(options);
  if (!member.ok()) return member.status();
  DdpEngineOptions ddp_options;
  ddp_options.optimizer = {OptimizerKind::kSgd, {{}}};
  ddp_options.forward_backward = [&] { model->forward(inputs).sum().backward(); };
  auto ddp =
      DdpEngine::Create(model.ptr(), &(*member)->sync(), &(*member)->side_channel(), ddp_options);
  if (!ddp.ok()) return (*member)->Fail(ddp.status());
  StepOptions step;
  for (step.step = 1, step.lr = 0.01; step.step <= steps; ++step.step) {
    absl::Status status = (*ddp)->BeginStep(step);
    model->forward(inputs).sum().backward();
    if (status.ok()) status = (*ddp)->FinishStep(Deadline::In(kPatience));
    if (!status.ok()) return (*member)->Fail(status);
  }
  if (how == "exits") _exit(0);
  if (how == "throws")
    model->forward(at::ones({8, 5}));  // LibTorch's exception, which is not caught
  if (how == "returns") return absl::OkStatus();
  const absl::Status left = (*member)->sync().Shutdown(Deadline::In(kPatience));
  return left.ok() ? (*member)->Leave() : left;
}

}  // namespace
}  // namespace gradsync

int main(int argc, char** argv) {
  using namespace gradsync;
  if (argc != 9) return 2;
  JoinOptions options;
  options.sync.adapters = TorchAdapters();
  options.meet.rank = std::atoi(argv[1]);
  options.meet.world_size = std::atoi(argv[2]);
  options.meet.master = argv[3];
  options.meet.on_store = WriteAddressTo(argv[4]);
  options.meet.timeout = kPatience;
  JobSpecText job;
  job.topology = argv[5];
  job.link = argv[6];
  const absl::StatusOr<JobSpec> parsed = ParseJobSpec(job);
  absl::Status status = parsed.status();
  if (parsed.ok()) {
    options.sync.job = *parsed;
    status = Train(options, std::atoi(argv[7]), argv[8]);
  }
  if (!status.ok()) std::cerr << status << std::endl;
  return status.ok() ? 0 : 1;
}
