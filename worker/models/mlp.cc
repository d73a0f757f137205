#include "worker/models/mlp.h"

#include <string>

#include "ATen/ops/flatten.h"
#include "ATen/ops/relu.h"
#include "worker/models/layers.h"

namespace gradsync {
namespace {

class Mlp : public Model {
 public:
  Mlp(const MlpOptions& options, at::Generator generator) {
    std::vector<int64_t> widths = options.hidden;
    widths.push_back(options.classes);
    int64_t in = options.inputs;
    for (size_t i = 0; i < widths.size(); ++i) {
      const std::string name = "fc" + std::to_string(i + 1);
      const auto layer = register_module(name, std::make_shared<Linear>(in, widths[i], generator));
      const bool first = i == 0, last = i + 1 == widths.size();
      AddBlock({name,
                {name},
                [layer, first, last](const at::Tensor& x) {
                  at::Tensor y = layer->forward(first ? at::flatten(x, 1) : x);
                  return last ? y : y.relu_();
                },
                /*recompute=*/!last});
      in = widths[i];
    }
  }
};

}  // namespace

std::shared_ptr<Model> MakeMlp(const MlpOptions& options) {
  return std::make_shared<Mlp>(options, MakeGenerator(options.seed));
}

}  // namespace gradsync
