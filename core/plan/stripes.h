// How a bucket is cut, and in which order its pieces are summed. Everything that decides bits is
// here.
//
// A bucket of E elements is cut into S = ceil(E / (n * chunk_elements)) *stripes* of n *chunks*
// each, n being the number of workers. All chunks of a bucket have the same size, ceil(E / (S * n))
// but at least chunk_elements / 16, rounded up to 16 elements (64 bytes), except that the tail is cut
// short: the last chunks may be smaller, or empty. The lower bound is for many workers: each chunk
// costs messages of all of them, so n chunks, however small, n * n messages.
//
//   element   0                                                                E
//             | chunk 0 | chunk 1 | ... | chunk n-1 | chunk 0 | ... | chunk n-1 |
//             |<------------- stripe 0 ------------>|<------ stripe S-1 ------->|
//   slot        0         1               n-1         n
//
// A chunk is named by its *slot*: slot = stripe * n + chunk. The *fold order* of chunk c is ranks
// c+1, c+2, ..., c+n (mod n), left to right, in fp32, starting from the first contribution (not
// from zero); then one multiplication by 1/n, then one by the inverse loss scale. This is the order
// in which a ring adds when rank r first sends chunk r-1, so that the chunk ends on rank c;
// parameter servers fold in the same order, which is why both topologies give the same bits.
//
// A run of a bucket's elements, which one stage of a model that is cut into stages exchanges by
// itself, keeps the chunks of the whole bucket, and so its order of addition: its layout begins
// `lead` elements into a stripe, and its first chunks may be cut short, or empty, as the last ones.

#ifndef GRADSYNC_CORE_PLAN_STRIPES_H_
#define GRADSYNC_CORE_PLAN_STRIPES_H_

#include <algorithm>
#include <cstdint>

namespace gradsync {

// A range of elements in a bucket's flat buffer. May be empty.
struct ElementRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  bool empty() const { return begin == end; }

  friend bool operator==(ElementRange a, ElementRange b) {
    return a.begin == b.begin && a.end == b.end;
  }
};

// One chunk of one bucket.
struct ChunkId {
  int bucket = 0;
  int slot = 0;

  friend bool operator==(ChunkId a, ChunkId b) { return a.bucket == b.bucket && a.slot == b.slot; }
};

// Rank at `position` (0 first) of the fold of chunk `chunk` among `world_size` workers; the last
// position is the ring's owner of the chunk, rank `chunk` itself.
inline int FoldRank(int chunk, int position, int world_size) {
  return (chunk + 1 + position) % world_size;
}

// Position of `rank` in the fold of chunk `chunk`: the inverse of FoldRank.
inline int FoldPosition(int chunk, int rank, int world_size) {
  return (rank - chunk - 1 + 2 * world_size) % world_size;
}

// The chunk that `rank` sends at `position` of a stripe, in the order that makes contributions
// arrive as they are folded: rank-1, rank-2, ..., rank-n (mod n). Rank r is at fold position 0 of
// the chunk it sends first.
inline int SendChunk(int rank, int position, int world_size) {
  return (rank - 1 - position + 2 * world_size) % world_size;
}

// The cut of one bucket. A small value; thread-compatible; copies freely.
class StripeLayout {
 public:
  StripeLayout() = default;

  // `numel` elements (at least 0), `world_size` workers (at least 1), `chunk_elements` (at least 1)
  // the upper bound of a chunk's size before rounding to 16.
  StripeLayout(int64_t numel, int world_size, int64_t chunk_elements);

  // A run of `numel` elements that begins `lead` elements into a stripe of chunks of just
  // `chunk_elements` (a multiple of 16).
  static StripeLayout OfRun(int64_t numel, int world_size, int64_t chunk_elements, int64_t lead);

  // The layout of the elements `run` of this bucket, 64 bytes aligned. The stripes before those that
  // it has elements of are left out, so slots are numbered anew, but no element is in another chunk.
  StripeLayout Run(ElementRange run) const;

  int64_t numel() const { return numel_; }
  int64_t lead() const { return lead_; }
  int world_size() const { return world_size_; }
  int stripes() const { return stripes_; }
  int slots() const { return stripes_ * world_size_; }
  int64_t chunk_elements() const {
    return chunk_elements_;
  }  // size of every chunk but those at the tail

  int slot(int stripe, int chunk) const { return stripe * world_size_ + chunk; }
  int stripe_of(int slot) const { return slot / world_size_; }
  int chunk_of(int slot) const { return slot % world_size_; }

  // Elements of `slot`, 0 <= slot < slots(). Empty past the end of the bucket, and before its lead.
  ElementRange range(int slot) const {
    const auto clamped = [this](int64_t element) {
      return std::clamp<int64_t>(element - lead_, 0, numel_);
    };
    return {clamped(slot * chunk_elements_), clamped((slot + 1) * chunk_elements_)};
  }

 private:
  int64_t numel_ = 0;
  int world_size_ = 1;
  int stripes_ = 0;
  int64_t chunk_elements_ = 0;
  int64_t lead_ = 0;  // elements of the first stripe that are not the bucket's
};

// Default chunk size for a bucket, in bytes: bucket_bytes / (16 * world_size), rounded down to 4
// KiB and clamped to 64 KiB..1 MiB. A function of bucket and world size only, because bits depend
// on it: never of link, topology or servers. Small chunks cost CPU time per message, large ones
// time until the first result; benchmarks/results/grpc_ceiling_2core_epyc.txt has the sweep.
int64_t DefaultChunkBytes(int64_t bucket_bytes, int world_size);

// The same where workers are on several hosts, for all buckets of a plan: gradient_bytes / (80 *
// world_size), rounded down to 4 KiB and clamped to 32..96 KiB. A network passes a chunk on only when
// all of it has come, at each hop, and a server when all workers' have, so an exchange takes some
// stripes longer than its bytes: this makes a stripe an 80th of it, where that is not too small for
// the cores (docs/internals/grpc_link.md). A function of plan and hosts alone, and so of no topology either.
int64_t NetworkChunkBytes(int64_t gradient_bytes, int world_size);

// PlanOptions::chunk_bytes that stands for NetworkChunkBytes().
constexpr int64_t kNetworkChunks = -1;

}  // namespace gradsync

#endif  // GRADSYNC_CORE_PLAN_STRIPES_H_
