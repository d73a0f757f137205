#include "core/gpu/element_steps.h"
#include "core/gpu/fold_kernel.h"
#include "core/gpu/kernel_operands.h"

namespace gradsync {
namespace {

constexpr int kThreads = 256;
// Blocks of a launch with few pieces: enough to fill the largest GPU twice.
constexpr size_t kFewPiecesBlocks = 132 * 8 * 2;
constexpr size_t kMostRows = 65535;  // CUDA's bound on gridDim.y

struct FoldArguments {
  const float* from[kMostFoldOperands];
  float* to[kMostFoldOperands];
  int num_from;
  int num_to;
  int phase;  // all pointers', or kNoPhase
  float a;
  float b;
  const FoldPiece* pieces;
  size_t num_pieces;
};

__device__ inline float Sum(float x, float y) { return x + y; }

__device__ inline float4 Sum(float4 x, float4 y) {
  return {x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w};
}

__device__ inline float Scaled(float x, float a, float b) { return ScaleTwiceElement(x, a, b); }

__device__ inline float4 Scaled(float4 x, float a, float b) {
  return {Scaled(x.x, a, b), Scaled(x.y, a, b), Scaled(x.z, a, b), Scaled(x.w, a, b)};
}

// The sources at a piece, in its order. kFrom of them, whose pointers stay in registers.
template <int kFrom>
class Order {
 public:
  __device__ Order(const FoldArguments& arguments, const FoldPiece& piece) {
#pragma unroll
    for (int k = 0; k < kFrom; ++k) {
      const int turn = piece.first + k;
      from_[k] = arguments.from[turn < kFrom ? turn : turn - kFrom] + piece.offset;
    }
  }
  __device__ int size() const { return kFrom; }
  __device__ const float* operator[](int k) const { return from_[k]; }

 private:
  const float* from_[kFrom];
};

// Any number of them.
template <>
class Order<0> {
 public:
  __device__ Order(const FoldArguments& arguments, const FoldPiece& piece)
      : arguments_(arguments), first_(piece.first), offset_(piece.offset) {}
  __device__ int size() const { return arguments_.num_from; }
  __device__ const float* operator[](int k) const {
    const int turn = first_ + k;
    return arguments_.from[turn < size() ? turn : turn - size()] + offset_;
  }

 private:
  const FoldArguments& arguments_;
  const int first_;
  const int64_t offset_;
};

// Folds kUnroll values of type Value, `stride` apart, whose loads are all on their way before the
// first is stored. A destination may be a source, so nothing here is __restrict__, and nobody else
// touches these values.
template <typename Value, int kUnroll, int kFrom>
__device__ __forceinline__ void FoldAt(const FoldArguments& arguments, const Order<kFrom>& order,
                                       int64_t offset, size_t at, size_t stride) {
  constexpr int kTurns = kFrom == 0 ? 8 : kFrom;
  Value sums[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    sums[u] = reinterpret_cast<const Value*>(order[0])[at + u * stride];
  }
#pragma unroll kTurns
  for (int k = 1; k < order.size(); ++k) {
    const Value* const from = reinterpret_cast<const Value*>(order[k]);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) sums[u] = Sum(sums[u], from[at + u * stride]);
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) sums[u] = Scaled(sums[u], arguments.a, arguments.b);
  for (int k = 0; k < arguments.num_to; ++k) {
    Value* const to = reinterpret_cast<Value*>(arguments.to[k] + offset);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) to[at + u * stride] = sums[u];
  }
}

// The part of a piece that this block's column has.
template <int kFrom, int kUnroll>
__device__ __forceinline__ void FoldPart(const FoldArguments& arguments, FoldPiece piece) {
  const size_t stride = size_t{gridDim.x} * kThreads;
  const size_t thread = size_t{blockIdx.x} * kThreads + threadIdx.x;
  const VectorSplit split = SplitVectors(arguments.phase, static_cast<size_t>(piece.offset),
                                         static_cast<size_t>(piece.count));
  const size_t singles = split.singles(static_cast<size_t>(piece.count));
  const Order<kFrom> ends(arguments, piece);
  for (size_t i = thread; i < singles; i += stride) {
    FoldAt<float, 1>(arguments, ends, piece.offset, split.Single(i), 0);
  }
  piece.offset += static_cast<int64_t>(split.head);
  const Order<kFrom> order(arguments, piece);
  size_t i = thread;
  for (; i + (kUnroll - 1) * stride < split.vectors; i += kUnroll * stride) {
    FoldAt<float4, kUnroll>(arguments, order, piece.offset, i, stride);
  }
  for (; i < split.vectors; i += stride) {
    FoldAt<float4, 1>(arguments, order, piece.offset, i, 0);
  }
}

// A row of blocks per piece, as far as there are rows. One thread reads the piece for its block:
// pieces may lie in the host's memory, which answers so many requests and not more.
template <int kFrom, int kUnroll>
__global__ void __launch_bounds__(kThreads) FoldMean(const __grid_constant__ FoldArguments args) {
  __shared__ FoldPiece piece;
  for (size_t p = blockIdx.y; p < args.num_pieces; p += gridDim.y) {
    __syncthreads();
    if (threadIdx.x == 0) piece = args.pieces[p];
    __syncthreads();
    FoldPart<kFrom, kUnroll>(args, piece);
  }
}

template <int kFrom, int kUnroll>
cudaError_t Start(const FoldArguments& arguments, cudaStream_t stream) {
  const size_t rows = arguments.num_pieces < kMostRows ? arguments.num_pieces : kMostRows;
  const size_t columns = (kFewPiecesBlocks + rows - 1) / rows;
  const dim3 grid(static_cast<unsigned>(columns), static_cast<unsigned>(rows));
  FoldMean<kFrom, kUnroll><<<grid, kThreads, 0, stream>>>(arguments);
  return cudaGetLastError();
}

}  // namespace

cudaError_t StartFoldMean(const FoldPiece* pieces, size_t num_pieces, const float* const* sources,
                          size_t num_sources, float* const* destinations, size_t num_destinations,
                          float a, float b, cudaStream_t stream) {
  if (num_pieces == 0) return cudaSuccess;
  FoldArguments arguments;
  arguments.num_from = static_cast<int>(num_sources);
  arguments.num_to = static_cast<int>(num_destinations);
  arguments.phase = VectorPhase(sources[0]);
  for (size_t k = 0; k < kMostFoldOperands; ++k) {
    arguments.from[k] = k < num_sources ? sources[k] : nullptr;
    arguments.to[k] = k < num_destinations ? destinations[k] : nullptr;
    if (k < num_sources) arguments.phase = CommonPhase(arguments.phase, sources[k]);
    if (k < num_destinations) arguments.phase = CommonPhase(arguments.phase, destinations[k]);
  }
  arguments.a = a;
  arguments.b = b;
  arguments.pieces = pieces;
  arguments.num_pieces = num_pieces;
  switch (num_sources) {
    case 1:
      return Start<1, 4>(arguments, stream);
    case 2:
      return Start<2, 4>(arguments, stream);
    case 3:
      return Start<3, 2>(arguments, stream);
    case 4:
      return Start<4, 2>(arguments, stream);
    case 5:
      return Start<5, 1>(arguments, stream);
    case 6:
      return Start<6, 1>(arguments, stream);
    case 7:
      return Start<7, 1>(arguments, stream);
    case 8:
      return Start<8, 1>(arguments, stream);
    default:
      return Start<0, 1>(arguments, stream);
  }
}

}  // namespace gradsync
