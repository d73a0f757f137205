// The optimizers of the library itself, which may run where the mean of a gradient is: at its owner.

#ifndef GRADSYNC_GRADSYNC_OPTIMIZER_H_
#define GRADSYNC_GRADSYNC_OPTIMIZER_H_

#include <functional>
#include <string>
#include <vector>

namespace gradsync {

// For DdpOptions::optimizer: SGD, Adam and AdamW with the arithmetic of torch::optim's, within rounding.
// With Options::update "worker" each rank updates all parameters. With "owner" each is updated by one
// rank, or server, which alone has its optimizer state: ZeRO-1. Both end with the same bits. The same on
// all ranks.
struct OptimizerOptions {
  enum class Kind { kSgd, kAdam, kAdamW };

  // Of some parameters, named and meant as in torch::optim. Those of other kinds are ignored.
  struct Group {
    double lr_scale = 1;  // the group's learning rate is `lr` times this
    double weight_decay = 0;

    double momentum = 0;  // SGD
    double dampening = 0;
    bool nesterov = false;

    double beta1 = 0.9;  // Adam, AdamW
    double beta2 = 0.999;
    double eps = 1e-8;
  };

  Kind kind = Kind::kSgd;
  double lr = 0.001;    // until DistributedDataParallel::set_learning_rate()
  double max_norm = 0;  // clips the mean gradient to this global 2-norm; 0 does not
  std::vector<Group> groups = {Group()};
  // Which of the groups a parameter of this name is in, from 0; empty: all are in the first.
  std::function<int(const std::string& parameter)> group_of;
};

}  // namespace gradsync

#endif  // GRADSYNC_GRADSYNC_OPTIMIZER_H_
