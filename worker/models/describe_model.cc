#include "worker/models/describe_model.h"

#include <algorithm>
#include <cstdint>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "c10/core/GradMode.h"

namespace gradsync {
namespace {

// 11181642 as 11,181,642.
std::string Grouped(int64_t count) {
  std::string text = absl::StrCat(count);
  for (int64_t at = static_cast<int64_t>(text.size()) - 3; at > 0; at -= 3) text.insert(at, ",");
  return text;
}

std::string ShapeOf(const at::Tensor& t) { return absl::StrJoin(t.sizes(), "x"); }

}  // namespace

std::string DescribeModel(const std::string& name, Model& model, const at::Tensor& example) {
  const c10::NoGradGuard no_grad;
  const bool was_training = model.is_training();
  model.eval();
  std::map<std::string, int64_t> sizes;
  int64_t total = 0;
  for (const auto& parameter : model.named_parameters()) {
    sizes[parameter.key()] = parameter.value().numel();
    total += parameter.value().numel();
  }
  size_t width = 5;
  for (const ModelBlock& block : model.blocks()) width = std::max(width, block.name.size());
  std::string table = absl::StrFormat("%5s  %-*s %14s  output of an input of %s\n", "block", width,
                                      "name", "parameters", ShapeOf(example));
  at::Tensor x = example;
  for (size_t i = 0; i < model.blocks().size(); ++i) {
    const ModelBlock& block = model.blocks()[i];
    int64_t parameters = 0;
    for (const std::string& member : model.ParametersOf(block)) parameters += sizes[member];
    x = block.forward(x);
    absl::StrAppendFormat(&table, "%5d  %-*s %14s  %s\n", i, width, block.name, Grouped(parameters),
                          ShapeOf(x));
  }
  if (was_training) model.train();
  absl::StrAppendFormat(&table, "%s: %d blocks, %s parameters, %.1f MB of gradients\n", name,
                        model.blocks().size(), Grouped(total), 4e-6 * static_cast<double>(total));
  return table;
}

}  // namespace gradsync
