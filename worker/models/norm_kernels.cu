#include "worker/models/channel_parts.h"
#include "worker/models/norm_kernels.h"

namespace gradsync {
namespace {

static_assert(kPart == kNormChannels, "what a thread has of a row");
constexpr int kWarp = 32;
// Parts next to each other that a block reads of a row, at most: 256 bytes of the short types.
constexpr int kMostColumns = 16;

// Passes that reduce: a block leaves two sums per channel, which one block adds up, so few large
// blocks. Passes that do not: more, smaller blocks hide more latency.
constexpr int kReduceThreads = 512;
constexpr int kMapThreads = 256;
constexpr int kForwardReduceBlocks = 2;  // on a multiprocessor at a time
constexpr int kBackwardReduceBlocks = 1;
constexpr int kMapBlocks = 3;
// Rows of a short type whose loads a thread has on their way at a time; half as many of floats.
constexpr int kForwardRows = 4;
constexpr int kResidualRows = 2;
constexpr int kBackwardReduceRows = 4;
constexpr int kBackwardMapRows = 2;

template <typename T, int kOfShortType>
constexpr int kRowsOf = sizeof(T) == 2 ? kOfShortType : kOfShortType / 2;

// How the tensor is laid over a grid. A block of `columns` * `lines` threads covers `columns` parts
// of a row; blocks with the same blockIdx.x (a group) share the rows.
struct Layout {
  int columns;  // a power of 2
  int groups;   // gridDim.x
  int blocks;   // gridDim.y: of each group
};

int DivideUp(int64_t a, int64_t b) { return static_cast<int>((a + b - 1) / b); }

Layout LayOut(const NormShape& shape, int threads, int wanted_blocks, int rows_at_a_time) {
  const int64_t parts = shape.channels / kPart;
  int columns = 1;
  while (columns < kMostColumns && columns < parts) columns *= 2;
  Layout layout;
  layout.columns = columns;
  layout.groups = DivideUp(parts, columns);
  const int most = DivideUp(shape.rows, int64_t{threads / columns} * rows_at_a_time);
  const int share = wanted_blocks / layout.groups;
  layout.blocks = share < 1 ? 1 : share < most ? share : most;
  return layout;
}

dim3 GridOf(const Layout& layout) {
  return dim3(static_cast<unsigned>(layout.groups), static_cast<unsigned>(layout.blocks));
}

Layout ForwardReduceLayout(const NormShape& shape, int multiprocessors) {
  return LayOut(shape, kReduceThreads, multiprocessors * kForwardReduceBlocks, kForwardRows);
}

Layout BackwardReduceLayout(const NormShape& shape, int multiprocessors) {
  return LayOut(shape, kReduceThreads, multiprocessors * kBackwardReduceBlocks,
                kBackwardReduceRows);
}

Layout MapLayout(const NormShape& shape, int multiprocessors, int rows_at_a_time) {
  return LayOut(shape, kMapThreads, multiprocessors * kMapBlocks, rows_at_a_time);
}

// Where a thread is. Threads of a group's last columns may have no channels.
struct Place {
  __device__ Place(int columns, int64_t channels, int threads)
      : line(static_cast<int>(threadIdx.x) / columns),
        channel(
            (static_cast<int64_t>(blockIdx.x) * columns + static_cast<int>(threadIdx.x) % columns) *
            kPart),
        row(static_cast<int64_t>(blockIdx.y) * (threads / columns) + line),
        stride(static_cast<int64_t>(gridDim.y) * (threads / columns)),
        exists(channel < channels) {}

  const int line;
  const int64_t channel;  // the first of 8
  const int64_t row;      // the first, then every stride-th
  const int64_t stride;
  const bool exists;
};

template <int kCount>
struct Count {
  static constexpr int kRows = kCount;
};

// Calls body(Count<n>(), row) for n rows from `row` on, `stride` apart, so that all rows of the
// thread are covered: kRows at a time, then one by one.
template <int kRows, typename Body>
__device__ __forceinline__ void ForRows(const Place& place, int64_t rows, const Body& body) {
  int64_t row = place.row;
  for (; row + (kRows - 1) * place.stride < rows; row += kRows * place.stride) {
    body(Count<kRows>(), row);
  }
  for (; row < rows; row += place.stride) body(Count<1>(), row);
}

// Where a thread's part of a row is.
template <typename T>
struct Rows {
  T* first;  // its part of row 0
  int64_t channels;

  __device__ T* operator[](int64_t row) const { return first + row * channels; }
};

template <typename T, typename Memory>
__device__ inline Rows<T> RowsOf(Memory* memory, const NormShape& shape, const Place& place) {
  return {static_cast<T*>(memory) + place.channel, shape.channels};
}

// The two sums of a thread's channels.
struct Sums {
  Floats first;
  Floats second;
};

// Adds up the threads of a warp that have the same channels. `columns` divides the warp.
__device__ inline void AddWithinWarp(int columns, Sums* sums) {
  for (int apart = kWarp / 2; apart >= columns; apart /= 2) {
#pragma unroll
    for (int k = 0; k < kPart; ++k) {
      sums->first.at[k] += __shfl_xor_sync(0xffffffffu, sums->first.at[k], apart);
      sums->second.at[k] += __shfl_xor_sync(0xffffffffu, sums->second.at[k], apart);
    }
  }
}

constexpr int kReduceWarps = kReduceThreads / kWarp;
constexpr int kMostWidth = kMostColumns * kPart;  // channels of a group

// Scratch memory: for each block of each group the first sums of the group's channels, then the
// second.
__device__ inline float* BlockSums(float* scratch, int width, unsigned block) {
  return scratch + (size_t{blockIdx.x} * gridDim.y + block) * 2 * static_cast<size_t>(width);
}

// Leaves the block's sums in scratch memory.
__device__ inline void LeaveSums(int columns, Sums sums, float* scratch) {
  __shared__ float by_warp[kReduceWarps][2][kMostWidth];
  AddWithinWarp(columns, &sums);
  const int thread = static_cast<int>(threadIdx.x);
  const int width = columns * kPart;
  if (thread % kWarp < columns) {
#pragma unroll
    for (int k = 0; k < kPart; ++k) {
      by_warp[thread / kWarp][0][thread % kWarp * kPart + k] = sums.first.at[k];
      by_warp[thread / kWarp][1][thread % kWarp * kPart + k] = sums.second.at[k];
    }
  }
  __syncthreads();
  if (thread >= 2 * width) return;
  const int which = thread / width;
  float sum = 0;
#pragma unroll
  for (int warp = 0; warp < kReduceWarps; ++warp) sum += by_warp[warp][which][thread % width];
  BlockSums(scratch, width, blockIdx.y)[thread] = sum;
}

// True in the block of a group that comes last, which then sees what the others left.
__device__ inline bool IsLastOfGroup(unsigned* tickets) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  // Counts to the number of blocks and starts again from 0.
  if (threadIdx.x == 0) last = atomicInc(&tickets[blockIdx.x], gridDim.y - 1) == gridDim.y - 1;
  __syncthreads();
  __threadfence();
  return last;
}

// In the last block: calls finish(channel, first sum, second sum) for each channel of the group.
template <typename Finish>
__device__ inline void AddBlocks(int columns, int64_t channels, const float* scratch,
                                 const Finish& finish) {
  __shared__ double by_slice[2][kReduceThreads];
  const int width = columns * kPart;
  const int slices = kReduceThreads / width;
  const int thread = static_cast<int>(threadIdx.x);
  double first = 0;
  double second = 0;
  // Past the first-level cache, where other blocks' sums are not.
#pragma unroll 4
  for (int block = thread / width; block < static_cast<int>(gridDim.y); block += slices) {
    const float* const sums =
        BlockSums(const_cast<float*>(scratch), width, static_cast<unsigned>(block));
    first += static_cast<double>(__ldcg(sums + thread % width));
    second += static_cast<double>(__ldcg(sums + width + thread % width));
  }
  by_slice[0][thread] = first;
  by_slice[1][thread] = second;
  __syncthreads();
  const int64_t channel = static_cast<int64_t>(blockIdx.x) * width + thread;
  if (thread >= width || channel >= channels) return;
  for (int slice = 1; slice < slices; ++slice) {
    first += by_slice[0][slice * width + thread];
    second += by_slice[1][slice * width + thread];
  }
  finish(channel, first, second);
}

// What backward's second pass needs of each channel, left in scratch memory by the first:
// dx = slope * dy + bend * (x - mean) + level.
struct Coefficients {
  float* bend;
  float* level;
};

struct Launch {
  NormShape shape;
  int columns;
};

template <typename T>
__global__ void __launch_bounds__(kReduceThreads, kForwardReduceBlocks)
    NormStatistics(Launch launch, NormForward args) {
  const NormShape& shape = launch.shape;
  const Place place(launch.columns, shape.channels, kReduceThreads);
  Sums sums = {};
  if (place.exists) {
    const Rows<const T> x = RowsOf<const T>(args.x, shape, place);
    const Floats shift = Parts<T>::Read(Parts<T>::Load(x[0]));
    ForRows<kRowsOf<T, kForwardRows>>(place, shape.rows, [&](auto count, int64_t row) {
      constexpr int kRows = decltype(count)::kRows;
      typename Parts<T>::Raw raw[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) raw[r] = Parts<T>::Load(x[row + r * place.stride]);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const Floats values = Parts<T>::Read(raw[r]);
#pragma unroll
        for (int k = 0; k < kPart; ++k) {
          const float d = values.at[k] - shift.at[k];
          sums.first.at[k] += d;
          sums.second.at[k] = fmaf(d, d, sums.second.at[k]);
        }
      }
    });
  }
  LeaveSums(launch.columns, sums, args.scratch);
  if (!IsLastOfGroup(args.tickets)) return;
  AddBlocks(launch.columns, shape.channels, args.scratch,
            [&](int64_t c, double sum, double squares) {
              const double rows = static_cast<double>(shape.rows);
              const T first = static_cast<const T*>(args.x)[c];
              const double mean = sum / rows;  // of the shifted values
              const double deviations = squares - sum * mean;
              const double kept = deviations < 0 ? 0.0 : deviations;  // rounding; NaN stays
              const float batch_mean =
                  static_cast<float>(static_cast<double>(static_cast<float>(first)) + mean);
              const float unbiased = static_cast<float>(kept / (rows - 1));
              const float momentum = static_cast<float>(args.momentum);
              args.mean[c] = batch_mean;
              args.inv_std[c] = static_cast<float>(1 / sqrt(kept / rows + args.eps));
              args.running_mean[c] += momentum * (batch_mean - args.running_mean[c]);
              args.running_variance[c] += momentum * (unbiased - args.running_variance[c]);
              if (c == 0) ++*args.batches;
            });
}

// What normalisation does to a thread's channels.
struct Normaliser {
  __device__ Normaliser(const float* weight, const float* bias, const float* mean,
                        const float* inv_std, int64_t channel)
      : mean(LoadFloats(mean + channel)), bias(LoadFloats(bias + channel)) {
    const Floats weights = LoadFloats(weight + channel);
    const Floats inverses = LoadFloats(inv_std + channel);
#pragma unroll
    for (int k = 0; k < kPart; ++k) slope.at[k] = weights.at[k] * inverses.at[k];
  }

  // The same operations in forward and backward, so that both agree on what is above 0.
  __device__ float operator()(int k, float centred) const {
    return fmaf(centred, slope.at[k], bias.at[k]);
  }

  Floats mean;
  Floats bias;
  Floats slope;
};

// NaNs pass, as in ReLU of torch.
__device__ inline bool Passes(float z) { return !(z <= 0); }

// From the last row to the first: what the pass before read last is still in the second-level
// cache.
template <typename T, bool kResidual, bool kRelu>
__global__ void __launch_bounds__(kMapThreads, kMapBlocks)
    NormApply(Launch launch, NormForward args) {
  const NormShape& shape = launch.shape;
  const Place place(launch.columns, shape.channels, kMapThreads);
  if (!place.exists) return;
  const Rows<const T> x = RowsOf<const T>(args.x, shape, place);
  const Rows<const T> residual = RowsOf<const T>(args.residual, shape, place);
  const Rows<T> y = RowsOf<T>(args.y, shape, place);
  const Normaliser normalise(args.weight, args.bias, args.mean, args.inv_std, place.channel);
  ForRows<kRowsOf<T, kResidual ? kResidualRows : kForwardRows>>(
      place, shape.rows, [&](auto count, int64_t from_end) {
        constexpr int kRows = decltype(count)::kRows;
        const int64_t row = shape.rows - 1 - from_end;
        typename Parts<T>::Raw raw[kRows], added[kRows];
#pragma unroll
        for (int r = 0; r < kRows; ++r) raw[r] = Parts<T>::Load(x[row - r * place.stride]);
        if (kResidual) {
#pragma unroll
          for (int r = 0; r < kRows; ++r)
            added[r] = Parts<T>::Load(residual[row - r * place.stride]);
        }
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          Floats values = Parts<T>::Read(raw[r]);
          Floats more = {};
          if (kResidual) more = Parts<T>::Read(added[r]);
          unsigned bits = 0;
#pragma unroll
          for (int k = 0; k < kPart; ++k) {
            float z = normalise(k, values.at[k] - normalise.mean.at[k]);
            if (kResidual) z += more.at[k];
            if (kRelu && !Passes(z)) z = 0;
            if (kRelu && kResidual) bits |= static_cast<unsigned>(Passes(z)) << k;
            values.at[k] = z;
          }
          const int64_t at = row - r * place.stride;
          Parts<T>::Store(y[at], values);
          if (kRelu && kResidual && args.mask != nullptr) {
            args.mask[(at * shape.channels + place.channel) / kPart] = static_cast<uint8_t>(bits);
          }
        }
      });
}

// How backward knows where ReLU let values through.
enum class Gate {
  kOpen,   // no ReLU, or dy is past it
  kAgain,  // from x
  kMask,
};

// With kTwo the gradient is dy + second_dy.
template <typename T, Gate kGate, bool kTwo>
__global__ void __launch_bounds__(kReduceThreads, kBackwardReduceBlocks)
    NormGradientSums(Launch launch, NormBackward args, Coefficients coefficients) {
  const NormShape& shape = launch.shape;
  const Place place(launch.columns, shape.channels, kReduceThreads);
  Sums sums = {};
  if (place.exists) {
    const Rows<const T> x = RowsOf<const T>(args.x, shape, place);
    const Rows<const T> dy = RowsOf<const T>(args.dy, shape, place);
    const Rows<const T> second_dy = RowsOf<const T>(args.second_dy, shape, place);
    const Rows<T> d_residual = RowsOf<T>(args.d_residual, shape, place);
    const Normaliser normalise(args.weight, args.bias, args.mean, args.inv_std, place.channel);
    ForRows<kRowsOf<T, kBackwardReduceRows>>(place, shape.rows, [&](auto count, int64_t row) {
      constexpr int kRows = decltype(count)::kRows;
      typename Parts<T>::Raw raw_x[kRows], raw_dy[kRows], raw_second[kRows];
      unsigned bits[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int64_t at = row + r * place.stride;
        raw_x[r] = Parts<T>::Load(x[at]);
        raw_dy[r] = Parts<T>::Load(dy[at]);
        if (kTwo) raw_second[r] = Parts<T>::Load(second_dy[at]);
        if (kGate == Gate::kMask) {
          bits[r] = args.mask[(at * shape.channels + place.channel) / kPart];
        }
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const Floats values = Parts<T>::Read(raw_x[r]);
        Floats gradients = Parts<T>::Read(raw_dy[r]);
        Floats more = {};
        if (kTwo) more = Parts<T>::Read(raw_second[r]);
#pragma unroll
        for (int k = 0; k < kPart; ++k) {
          const float centred = values.at[k] - normalise.mean.at[k];
          float& g = gradients.at[k];
          if (kTwo) g += more.at[k];
          if (kGate == Gate::kAgain && !Passes(normalise(k, centred))) g = 0;
          if (kGate == Gate::kMask && (bits[r] >> k & 1) == 0) g = 0;
          sums.first.at[k] += g;
          sums.second.at[k] = fmaf(g, centred, sums.second.at[k]);
        }
        if (kGate == Gate::kMask) {
          Parts<T>::Store(d_residual[row + r * place.stride], gradients);
        }
      }
    });
  }
  LeaveSums(launch.columns, sums, args.scratch);
  if (!IsLastOfGroup(args.tickets)) return;
  AddBlocks(
      launch.columns, shape.channels, args.scratch, [&](int64_t c, double sum, double product) {
        const double inv_std = static_cast<double>(args.inv_std[c]);
        const double slope = static_cast<double>(args.weight[c]) * inv_std;
        const double rows = static_cast<double>(shape.rows);
        args.d_bias[c] = static_cast<float>(sum);
        args.d_weight[c] = static_cast<float>(product * inv_std);
        coefficients.bend[c] = static_cast<float>(-slope * inv_std * inv_std * product / rows);
        coefficients.level[c] = static_cast<float>(-slope * sum / rows);
      });
}

template <typename T, Gate kGate>
__global__ void __launch_bounds__(kMapThreads, kMapBlocks)
    NormGradient(Launch launch, NormBackward args, Coefficients coefficients) {
  const NormShape& shape = launch.shape;
  const Place place(launch.columns, shape.channels, kMapThreads);
  if (!place.exists) return;
  const Rows<const T> x = RowsOf<const T>(args.x, shape, place);
  const Rows<const T> dy = RowsOf<const T>(args.dy, shape, place);
  const Rows<T> dx = RowsOf<T>(args.dx, shape, place);
  const Normaliser normalise(args.weight, args.bias, args.mean, args.inv_std, place.channel);
  const Floats bend = LoadFloats(coefficients.bend + place.channel);
  const Floats level = LoadFloats(coefficients.level + place.channel);
  ForRows<kRowsOf<T, kBackwardMapRows>>(place, shape.rows, [&](auto count, int64_t from_end) {
    constexpr int kRows = decltype(count)::kRows;
    const int64_t row = shape.rows - 1 - from_end;
    typename Parts<T>::Raw raw_x[kRows], raw_dy[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      raw_x[r] = Parts<T>::Load(x[row - r * place.stride]);
      raw_dy[r] = Parts<T>::Load(dy[row - r * place.stride]);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const Floats values = Parts<T>::Read(raw_x[r]);
      Floats gradients = Parts<T>::Read(raw_dy[r]);
#pragma unroll
      for (int k = 0; k < kPart; ++k) {
        const float centred = values.at[k] - normalise.mean.at[k];
        float& g = gradients.at[k];
        if (kGate == Gate::kAgain && !Passes(normalise(k, centred))) g = 0;
        g = fmaf(normalise.slope.at[k], g, fmaf(bend.at[k], centred, level.at[k]));
      }
      Parts<T>::Store(dx[row - r * place.stride], gradients);
    }
  });
}

size_t SumFloats(const Layout& layout) {
  return static_cast<size_t>(layout.groups) * static_cast<size_t>(layout.blocks) * 2 *
         static_cast<size_t>(layout.columns * kPart);
}

template <typename T>
cudaError_t Forward(const NormShape& shape, const NormForward& args, int multiprocessors,
                    cudaStream_t stream) {
  const Layout reduce = ForwardReduceLayout(shape, multiprocessors);
  NormStatistics<T>
      <<<GridOf(reduce), kReduceThreads, 0, stream>>>(Launch{shape, reduce.columns}, args);
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) return error;
  const Layout map =
      MapLayout(shape, multiprocessors, args.residual != nullptr ? kResidualRows : kForwardRows);
  const dim3 grid = GridOf(map);
  const Launch launch = {shape, map.columns};
  if (args.residual != nullptr && args.relu) {
    NormApply<T, true, true><<<grid, kMapThreads, 0, stream>>>(launch, args);
  } else if (args.residual != nullptr) {
    NormApply<T, true, false><<<grid, kMapThreads, 0, stream>>>(launch, args);
  } else if (args.relu) {
    NormApply<T, false, true><<<grid, kMapThreads, 0, stream>>>(launch, args);
  } else {
    NormApply<T, false, false><<<grid, kMapThreads, 0, stream>>>(launch, args);
  }
  return cudaGetLastError();
}

template <typename T>
cudaError_t Backward(const NormShape& shape, NormBackward args, int multiprocessors,
                     cudaStream_t stream) {
  const Layout reduce = BackwardReduceLayout(shape, multiprocessors);
  float* const bend = args.scratch + SumFloats(reduce);
  const Coefficients coefficients = {bend, bend + shape.channels};
  const Launch sums = {shape, reduce.columns};
  const dim3 sums_grid = GridOf(reduce);
  if (args.mask != nullptr && args.second_dy != nullptr) {
    NormGradientSums<T, Gate::kMask, true>
        <<<sums_grid, kReduceThreads, 0, stream>>>(sums, args, coefficients);
  } else if (args.mask != nullptr) {
    NormGradientSums<T, Gate::kMask, false>
        <<<sums_grid, kReduceThreads, 0, stream>>>(sums, args, coefficients);
  } else if (args.relu) {
    NormGradientSums<T, Gate::kAgain, false>
        <<<sums_grid, kReduceThreads, 0, stream>>>(sums, args, coefficients);
  } else {
    NormGradientSums<T, Gate::kOpen, false>
        <<<sums_grid, kReduceThreads, 0, stream>>>(sums, args, coefficients);
  }
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) return error;
  const Layout map = MapLayout(shape, multiprocessors, kBackwardMapRows);
  const dim3 grid = GridOf(map);
  const Launch launch = {shape, map.columns};
  if (args.mask != nullptr) {
    args.dy = args.d_residual;  // past ReLU
    NormGradient<T, Gate::kOpen><<<grid, kMapThreads, 0, stream>>>(launch, args, coefficients);
  } else if (args.relu) {
    NormGradient<T, Gate::kAgain><<<grid, kMapThreads, 0, stream>>>(launch, args, coefficients);
  } else {
    NormGradient<T, Gate::kOpen><<<grid, kMapThreads, 0, stream>>>(launch, args, coefficients);
  }
  return cudaGetLastError();
}

}  // namespace

size_t NormScratchFloats(const NormShape& shape, int multiprocessors) {
  const size_t forward = SumFloats(ForwardReduceLayout(shape, multiprocessors));
  const size_t backward = SumFloats(BackwardReduceLayout(shape, multiprocessors)) +
                          2 * static_cast<size_t>(shape.channels);
  return forward > backward ? forward : backward;
}

cudaError_t StartNormForward(const NormShape& shape, const NormForward& args, int multiprocessors,
                             cudaStream_t stream) {
  switch (shape.type) {
    case NormType::kFloat:
      return Forward<float>(shape, args, multiprocessors, stream);
    case NormType::kHalf:
      return Forward<__half>(shape, args, multiprocessors, stream);
    case NormType::kBfloat16:
      return Forward<__nv_bfloat16>(shape, args, multiprocessors, stream);
  }
  return cudaErrorInvalidValue;
}

cudaError_t StartNormBackward(const NormShape& shape, const NormBackward& args, int multiprocessors,
                              cudaStream_t stream) {
  switch (shape.type) {
    case NormType::kFloat:
      return Backward<float>(shape, args, multiprocessors, stream);
    case NormType::kHalf:
      return Backward<__half>(shape, args, multiprocessors, stream);
    case NormType::kBfloat16:
      return Backward<__nv_bfloat16>(shape, args, multiprocessors, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace gradsync
