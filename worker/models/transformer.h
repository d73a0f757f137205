// Transformers: the layer that vision transformers and language models are made of, and one of
// each.
//
// Sources: Vaswani et al.: "Attention Is All You Need", 2017; normalisation before attention and
// MLP: Radford et al.: "Language Models are Unsupervised Multitask Learners", 2019.

#ifndef GRADSYNC_WORKER_MODELS_TRANSFORMER_H_
#define GRADSYNC_WORKER_MODELS_TRANSFORMER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "ATen/core/Generator.h"
#include "ATen/core/Tensor.h"
#include "torch/nn/module.h"
#include "worker/models/dropout.h"
#include "worker/models/layers.h"
#include "worker/models/model.h"
#include "worker/models/slices.h"

namespace gradsync {

struct TransformerOptions {
  int64_t width = 0;
  int64_t heads = 1;  // Divides `width`.
  int64_t mlp_width = 0;
  double eps = 1e-5;             // of the normalisations
  bool causal = false;           // A position sees itself and those before it.
  bool tanh_gelu = false;        // GELU's approximation by tanh, as GPT-2, instead of erf.
  double dropout = 0;            // of what is added to the residual,
  double attention_dropout = 0;  // of attention weights, and
  double mlp_dropout = 0;        // between the two linear layers of the MLP
  bool gpt_weights = false;  // Initial weights: GPT-2's, else torchvision's vision transformer's.
  int64_t residual_layers = 1;  // How many such layers there are, for GPT-2's.
};

// torch.nn.MultiheadAttention of a sequence with itself: `in_proj_weight` [3 width, width],
// `in_proj_bias`, `out_proj`.
class SelfAttention : public torch::nn::Module {
 public:
  SelfAttention(const TransformerOptions& options, std::shared_ptr<StepRandom> random,
                at::Generator& generator);

  // [B, T, width] to the same.
  at::Tensor forward(const at::Tensor& x) const;

  // From here on it has a slice's part of the heads.
  void BecomeSlice(const SliceOf& of);

 private:
  const int64_t head_width_;
  const bool causal_;
  int64_t heads_;  // of this slice
  SliceOf slice_;
  at::Tensor in_weight_, in_bias_;
  std::shared_ptr<Linear> out_;
  std::shared_ptr<Dropout> dropout_;
};

// x + attention(norm(x)), then x + mlp(norm(x)), with the names of torchvision's EncoderBlock:
// `ln_1`, `self_attention`, `ln_2`, `mlp.0` and `mlp.3`.
class TransformerLayer : public torch::nn::Module {
 public:
  TransformerLayer(const TransformerOptions& options, const std::shared_ptr<StepRandom>& random,
                   at::Generator& generator);

  // [B, T, width] to the same; [B, T/n, width] of a slice that has a part of the sequence.
  at::Tensor forward(const at::Tensor& x) const;

  // As SliceableModel has them: attention is cut by heads, the MLP by what is between its two
  // linear layers.
  static std::map<std::string, int64_t> SlicedParameters(const TransformerOptions& options);
  void BecomeSlice(const SliceOf& of);

 private:
  const bool tanh_gelu_;
  SliceOf slice_;
  std::shared_ptr<LayerNorm> norm1_, norm2_;
  std::shared_ptr<SelfAttention> attention_;
  std::shared_ptr<Linear> wide_, narrow_;
  std::shared_ptr<Dropout> dropout1_, dropout2_;
  std::shared_ptr<Dropout> wide_dropout_;  // null without
};

// A small language model in the form of GPT-2: learned positions, normalisation before attention
// and MLP, GELU (by tanh), a normalisation before the head.
//
// It differs from GPT-2 in one thing: the head has weights of its own and no bias (it is not tied
// to the embedding), so that the first and the last block share nothing.
//
// Source: Radford et al.: "Language Models are Unsupervised Multitask Learners", 2019.
struct GptOptions {
  int64_t width = 384;
  int64_t layers = 6;
  int64_t heads = 6;         // Divides `width`.
  int64_t context = 256;     // The most tokens that it sees at once.
  int64_t vocabulary = 256;  // Tokens are in [0, vocabulary).
  double dropout = 0.1;  // of the embedding, attention weights and what is added to the residual
  uint64_t seed = 0;     // of GPT-2's initial weights, drawn in the order of the parameters
};

// Parameters: `tokens.weight`, `positions.weight`, then for each layer those of TransformerLayer
// under `layers.N`, `ln.weight`, `ln.bias` and `head.weight`. By
// default 10,942,464 of them. Input int64 [B, T] with T of at most `context`, output [B, T,
// vocabulary], where position t has seen tokens 0 to t. Blocks: the embedding, each layer, and the
// head with its normalisation. No global state is read or changed.
std::shared_ptr<Model> MakeGpt(const GptOptions& options);

// A small vision transformer, in the form of torchvision's VisionTransformer.
//
// Source: Dosovitskiy et al.: "An Image is Worth 16x16 Words", 2020; the small size: Steiner et
// al.: "How to train your ViT?", 2021.
struct VitOptions {
  int64_t image_size = 32;  // Height and width, a multiple of `patch`.
  int64_t patch = 16;
  int64_t width = 384;
  int64_t layers = 12;
  int64_t heads = 6;
  int64_t classes = 10;
  // As torchvision's `dropout`: of the embedding, within the MLP, and of what is added to the
  // residual. Not of attention weights, which is its `attention_dropout`.
  double dropout = 0;
  // The initial weights are those of Python's `torch.manual_seed(seed); VisionTransformer(...)` of
  // torchvision with these sizes and mlp_dim = 4 width.
  uint64_t seed = 0;
};

// Parameters have the names, order, shapes and initial values of torchvision's class; the head
// starts at zero, as there. By default, with 10 classes and images of 32x32, 21,595,786 parameters.
// Input float [B, 3, image_size, image_size]. Blocks: the embedding, each layer, and the head with
// its normalisation. No global state is read or changed.
std::shared_ptr<Model> MakeVit(const VitOptions& options);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_MODELS_TRANSFORMER_H_
