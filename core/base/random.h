// The one random number generator of the job's data: sampling, augmentation and synthetic images.
//
// The standard library leaves the results of std::shuffle and of its distributions to the
// implementation, so two builds could see different data. Everything here is integer arithmetic
// with a fixed meaning: the same arguments give the same values on every machine and compiler.
//
// Source: SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators", 2014).
// Not for secrets.
#ifndef GRADSYNC_CORE_BASE_RANDOM_H_
#define GRADSYNC_CORE_BASE_RANDOM_H_

#include <cstdint>

namespace gradsync {

// SplitMix64's finaliser: a bijection of 64-bit values in which every input bit moves every output
// bit.
inline uint64_t MixBits(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// A stream of 64-bit values. The stream is named by what it is for (`purpose`, a constant of the
// caller) and by up to three numbers (seed, epoch, sample index): neighbours in any of them, and
// two users with equal numbers, get unrelated streams, so no state is ever carried from one sample
// to the next. A value type of 8 bytes; each copy continues on its own.
class RandomStream {
 public:
  RandomStream(uint64_t purpose, uint64_t seed, uint64_t a = 0, uint64_t b = 0)
      : state_(Combine(Combine(Combine(MixBits(purpose), seed), a), b)) {}

  uint64_t Next() { return MixBits(state_ += kGolden); }

  // Uniform in [0, bound), without bias, for bound >= 1. Usually one Next(), rarely more.
  // Source: Lemire, "Fast Random Integer Generation in an Interval", 2019.
  uint64_t Below(uint64_t bound) {
    unsigned __int128 product = static_cast<unsigned __int128>(Next()) * bound;
    if (static_cast<uint64_t>(product) < bound) {
      const uint64_t threshold = (0 - bound) % bound;
      while (static_cast<uint64_t>(product) < threshold) {
        product = static_cast<unsigned __int128>(Next()) * bound;
      }
    }
    return static_cast<uint64_t>(product >> 64);
  }

 private:
  static constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;

  static uint64_t Combine(uint64_t state, uint64_t value) {
    return MixBits(state + kGolden + MixBits(value + kGolden));
  }

  uint64_t state_;
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_RANDOM_H_
