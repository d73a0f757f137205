// A small language model in the form of GPT-2: learned positions, normalisation before attention
// and MLP, GELU (by tanh), a normalisation before the head.
//
// It differs from GPT-2 in one thing: the head has weights of its own and no bias (it is not tied
// to the embedding), so that the first and the last block share nothing.
//
// Source: Radford et al.: "Language Models are Unsupervised Multitask Learners", 2019.
#ifndef GRADSYNC_WORKER_MODELS_GPT_H_
#define GRADSYNC_WORKER_MODELS_GPT_H_

#include <cstdint>
#include <memory>

#include "worker/models/model.h"

namespace gradsync {

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
// (worker/models/transformer.h) under `layers.N`, `ln.weight`, `ln.bias` and `head.weight`. By
// default 10,942,464 of them. Input int64 [B, T] with T of at most `context`, output [B, T,
// vocabulary], where position t has seen tokens 0 to t. Blocks: the embedding, each layer, and the
// head with its normalisation. No global state is read or changed.
std::shared_ptr<Model> MakeGpt(const GptOptions& options);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_MODELS_GPT_H_
