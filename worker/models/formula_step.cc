#include "worker/models/formula_step.h"

#include <cmath>

#include "ATen/ops/empty.h"
#include "c10/core/GradMode.h"
#include "core/base/random.h"
#include "worker/models/loss.h"

namespace gradsync {
namespace {

constexpr double kLearningRate = 0.1;
constexpr double kWeightDecay = 1e-4;

// Element `index` in [-1, 1), exact in 24 bits.
double Uniform(uint64_t name_hash, int64_t index) {
  return static_cast<double>(FormulaBits(name_hash, index) >> 40) * std::ldexp(1.0, -23) - 1.0;
}

bool EndsWith(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

at::Tensor FormulaWeights(const std::string& name, at::IntArrayRef shape) {
  at::Tensor out = at::empty(shape, at::kFloat);
  const uint64_t hash = FormulaHash(name);
  float* values = out.data_ptr<float>();
  for (int64_t i = 0; i < out.numel(); ++i) {
    double v = Uniform(hash, i);
    if (shape.size() == 4) {
      v *= std::sqrt(6.0 / static_cast<double>(shape[0] * shape[2] * shape[3]));
    } else if (shape.size() == 2) {
      v /= std::sqrt(static_cast<double>(shape[1]));
    } else if (EndsWith(name, "weight")) {
      v = 1.0 + 0.2 * v;
    } else {
      v *= 0.1;
    }
    values[i] = static_cast<float>(v);
  }
  return out;
}

at::Tensor FormulaImages(int64_t batch, int64_t size) {
  at::Tensor images = at::empty({batch, 3, size, size}, at::kFloat);
  const uint64_t hash = FormulaHash("images");
  float* values = images.data_ptr<float>();
  for (int64_t i = 0; i < images.numel(); ++i) {
    values[i] = static_cast<float>(2 * Uniform(hash, i));
  }
  return images;
}

at::Tensor FormulaLabels(int64_t count) {
  at::Tensor labels = at::empty({count}, at::kLong);
  for (int64_t i = 0; i < count; ++i) labels.data_ptr<int64_t>()[i] = (3 * i + 1) % 10;
  return labels;
}

at::Tensor FormulaTokens(int64_t count) {
  at::Tensor tokens = at::empty({count}, at::kLong);
  for (int64_t i = 0; i < count; ++i) tokens.data_ptr<int64_t>()[i] = (7 * i + i / 5) % 10;
  return tokens;
}

}  // namespace

uint64_t FormulaHash(absl::string_view name) {
  uint64_t hash = 14695981039346656037u;
  for (char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

uint64_t FormulaBits(uint64_t name_hash, int64_t index) {
  return MixBits(name_hash + static_cast<uint64_t>(index) * 0x9e3779b97f4a7c15u);
}

std::vector<NamedTensor> FormulaStep(Model& model, int64_t batch, int64_t size, at::ScalarType type,
                                     bool tokens) {
  model.to(type);
  {
    c10::NoGradGuard no_grad;
    for (auto& p : model.named_parameters()) {
      p.value().copy_(FormulaWeights(p.key(), p.value().sizes()));
    }
  }
  const at::Tensor input = tokens ? FormulaTokens(batch * size).view({batch, size})
                                  : FormulaImages(batch, size).to(type);
  const at::Tensor labels =
      tokens ? FormulaLabels(batch * size).view({batch, size}) : FormulaLabels(batch);
  const at::Tensor logits = model.forward(input);
  const at::Tensor loss = CrossEntropy(logits, labels);
  loss.backward();

  c10::NoGradGuard no_grad;
  std::vector<NamedTensor> results = {{"output", "loss", loss.detach()},
                                      {"output", "logits", logits.detach()}};
  for (auto& p : model.named_parameters()) {
    results.push_back({"gradient", p.key(), p.value().grad()});
  }
  for (auto& p : model.named_parameters()) {
    at::Tensor& value = p.value();
    value.add_(value.grad().add(value, kWeightDecay), -kLearningRate);
    results.push_back({"updated", p.key(), value.detach()});
  }
  for (auto& b : model.named_buffers()) {
    results.push_back({"buffer", b.key(), b.value().to(type)});
  }
  return results;
}

}  // namespace gradsync
