// Parts of images in channels-last format: neighbouring channels of a pixel, which a thread of a
// kernel has at a time.

#ifndef GRADSYNC_WORKER_MODELS_CHANNEL_PARTS_H_
#define GRADSYNC_WORKER_MODELS_CHANNEL_PARTS_H_

namespace gradsync {

// 16 bytes of the short types.
constexpr int kPart = 8;

struct Floats {
  float at[kPart];
};

}  // namespace gradsync

#ifdef __CUDACC__

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace gradsync {

__device__ inline Floats LoadFloats(const float* from) {
  Floats floats;
  const float4 low = reinterpret_cast<const float4*>(from)[0];
  const float4 high = reinterpret_cast<const float4*>(from)[1];
  floats.at[0] = low.x;
  floats.at[1] = low.y;
  floats.at[2] = low.z;
  floats.at[3] = low.w;
  floats.at[4] = high.x;
  floats.at[5] = high.y;
  floats.at[6] = high.z;
  floats.at[7] = high.w;
  return floats;
}

// What a type's parts are loaded as, and what they mean.
template <typename T>
struct Parts;

template <>
struct Parts<float> {
  struct Raw {
    float4 low, high;
  };
  static __device__ Raw Load(const float* from) {
    return {reinterpret_cast<const float4*>(from)[0], reinterpret_cast<const float4*>(from)[1]};
  }
  static __device__ Floats Read(const Raw& raw) {
    return {{raw.low.x, raw.low.y, raw.low.z, raw.low.w, raw.high.x, raw.high.y, raw.high.z,
             raw.high.w}};
  }
  static __device__ void Store(float* to, const Floats& f) {
    reinterpret_cast<float4*>(to)[0] = {f.at[0], f.at[1], f.at[2], f.at[3]};
    reinterpret_cast<float4*>(to)[1] = {f.at[4], f.at[5], f.at[6], f.at[7]};
  }
};

__device__ inline float2 ToFloats(__half2 pair) { return __half22float2(pair); }
__device__ inline float2 ToFloats(__nv_bfloat162 pair) { return __bfloat1622float2(pair); }
__device__ inline void FromFloats(float2 pair, __half2* to) { *to = __float22half2_rn(pair); }
__device__ inline void FromFloats(float2 pair, __nv_bfloat162* to) {
  *to = __float22bfloat162_rn(pair);
}

template <typename T, typename Pair>
struct ShortParts {
  using Raw = uint4;
  static __device__ Raw Load(const T* from) { return *reinterpret_cast<const uint4*>(from); }
  static __device__ Floats Read(const Raw& raw) {
    Floats floats;
    const unsigned words[kPart / 2] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int k = 0; k < kPart / 2; ++k) {
      const float2 pair = ToFloats(reinterpret_cast<const Pair&>(words[k]));
      floats.at[2 * k] = pair.x;
      floats.at[2 * k + 1] = pair.y;
    }
    return floats;
  }
  static __device__ void Store(T* to, const Floats& floats) {
    unsigned words[kPart / 2];
#pragma unroll
    for (int k = 0; k < kPart / 2; ++k) {
      FromFloats({floats.at[2 * k], floats.at[2 * k + 1]}, reinterpret_cast<Pair*>(&words[k]));
    }
    *reinterpret_cast<uint4*>(to) = {words[0], words[1], words[2], words[3]};
  }
};

template <>
struct Parts<__half> : ShortParts<__half, __half2> {};
template <>
struct Parts<__nv_bfloat16> : ShortParts<__nv_bfloat16, __nv_bfloat162> {};

}  // namespace gradsync

#endif  // __CUDACC__

#endif  // GRADSYNC_WORKER_MODELS_CHANNEL_PARTS_H_
