#include "worker/models/paired_pixels.h"

#include <cstdint>

#include "ATen/ops/constant_pad_nd.h"
#include "ATen/ops/conv2d.h"
#include "ATen/ops/zeros.h"
#include "c10/core/GradMode.h"

namespace gradsync {
namespace {

constexpr auto kFormat = at::MemoryFormat::ChannelsLast;
constexpr int64_t kColours = 3;
constexpr int64_t kKernel = 7;
constexpr int64_t kBlock = 2;                      // pixels of a block, each way
constexpr int64_t kChannels = 16;                  // of a block: its values, and zeros
constexpr int64_t kTaps = (kKernel + 1) / kBlock;  // blocks of the kernel, each way
constexpr int64_t kBefore = 2;                     // blocks of border: (3 + 1) / 2 pixels
constexpr int64_t kBorder = kTaps - 1;             // of both sides together

// [n, 16, h / 2 + 3, w / 2 + 3]: channel (i * 2 + j) * 3 + c is colour c of pixel (i, j) of a block.
at::Tensor Blocks(const at::Tensor& x) {
  const c10::NoGradGuard no_grad;
  const int64_t n = x.size(0), rows = x.size(2) / kBlock, columns = x.size(3) / kBlock;
  const at::Tensor blocks =
      at::zeros({n, kChannels, rows + kBorder, columns + kBorder}, x.options()).contiguous(kFormat);
  blocks.narrow(2, kBefore, rows)
      .narrow(3, kBefore, columns)
      .narrow(1, 0, kBlock * kBlock * kColours)
      .permute({0, 2, 3, 1})
      .unflatten(3, {kBlock, kBlock, kColours})  // n, row, column, i, j, c
      .copy_(x.unflatten(2, {rows, kBlock})
                 .unflatten(4, {columns, kBlock})  // n, c, row, i, column, j
                 .permute({0, 2, 4, 3, 5, 1}));
  return blocks;
}

// [out, 16, 4, 4] of [out, 3, 7, 7]: a row and a column of zeros before the first, then in blocks.
at::Tensor BlocksOfWeight(const at::Tensor& weight) {
  const at::Tensor blocks = at::constant_pad_nd(weight, {1, 0, 1, 0})
                                .unflatten(2, {kTaps, kBlock})
                                .unflatten(4, {kTaps, kBlock})  // out, c, a, i, b, j
                                .permute({0, 2, 4, 3, 5, 1})    // out, a, b, i, j, c
                                .flatten(3);
  return at::constant_pad_nd(blocks, {0, kChannels - kBlock * kBlock * kColours})
      .permute({0, 3, 1, 2});
}

}  // namespace

bool TakesPairedPixels(const at::Tensor& x, const at::Tensor& weight) {
  return x.dim() == 4 && !x.requires_grad() && x.size(1) == kColours && x.size(2) % kBlock == 0 &&
         x.size(3) % kBlock == 0 && weight.dim() == 4 && weight.size(1) == kColours &&
         weight.size(2) == kKernel && weight.size(3) == kKernel;
}

at::Tensor ConvolvePairedPixels(const at::Tensor& x, const at::Tensor& weight) {
  return at::conv2d(Blocks(x), BlocksOfWeight(weight));
}

}  // namespace gradsync
