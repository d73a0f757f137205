#include "models/mlp.h"

#include <string>

#include "ATen/ops/flatten.h"
#include "ATen/ops/relu.h"
#include "models/layers.h"

namespace gradsync {
namespace {

class Mlp : public Model {
 public:
  Mlp(const MlpOptions& options, at::Generator generator) {
    std::vector<int64_t> widths = options.hidden;
    widths.push_back(options.classes);
    int64_t in = options.inputs;
    for (int64_t out : widths) {
      layers_.push_back(register_module("fc" + std::to_string(layers_.size() + 1),
                                        std::make_shared<Linear>(in, out, generator)));
      in = out;
    }
  }

  at::Tensor forward(at::Tensor images) override {
    at::Tensor x = layers_[0]->forward(at::flatten(images, 1));
    for (size_t i = 1; i < layers_.size(); ++i) x = layers_[i]->forward(x.relu_());
    return x;
  }

 private:
  std::vector<std::shared_ptr<Linear>> layers_;
};

}  // namespace

std::shared_ptr<Model> MakeMlp(const MlpOptions& options) {
  return std::make_shared<Mlp>(options, MakeGenerator(options.seed));
}

}  // namespace gradsync
