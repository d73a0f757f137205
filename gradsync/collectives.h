// Collective calls between the ranks of a group, over the program's own memory: what other libraries
// call allreduce, broadcast and so on. Gradients of a model have gradsync/ddp.h and gradsync/exchange.h.

#ifndef GRADSYNC_GRADSYNC_COLLECTIVES_H_
#define GRADSYNC_GRADSYNC_COLLECTIVES_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "gradsync/group.h"
#include "gradsync/status.h"

namespace gradsync {

// What elements are. A kBool is a byte, 0 or 1; others than 0 count as 1.
enum class DataType : int {
  kFloat32 = 0,
  kFloat64 = 1,
  kFloat16 = 2,
  kBfloat16 = 3,
  kInt8 = 4,
  kUint8 = 5,
  kInt16 = 6,
  kInt32 = 7,
  kInt64 = 8,
  kBool = 9,
};

// How elements of all ranks become one. kAvg, of floats alone, is the sum times 1/n for n ranks. kBand,
// kBor and kBxor are of integers, bit by bit, and of bools. Of bools kSum and kMax are as kBor,
// kProduct and kMin as kBand. Integers wrap around; kMin and kMax of a NaN are a NaN; sums of 16-bit
// floats are rounded after each addition.
enum class ReduceOp : int {
  kSum = 0,
  kAvg = 1,
  kProduct = 2,
  kMin = 3,
  kMax = 4,
  kBand = 5,
  kBor = 6,
  kBxor = 7,
};

// Of all ranks of a group, over its link, or through memory where that is shm (all ranks are on one
// host). With parameter servers the workers do the servers' part in these. With topology local each
// rank is alone, in a world of one.
//
//   auto collectives = gradsync::Collectives::Open(group).value();
//   collectives.AllReduce(values.data(), values.size(), DataType::kFloat32, ReduceOp::kSum).OrThrow();
//
// Calls block until results are here and inputs may change again, at most for Options::timeout. All
// ranks make the same calls in the same order, with the same sizes, types, operations and roots, but
// for Send() and Recv(). Contributions are added in the same order in every run, whatever the topology
// and the link, so the bits are the same. `input` and `output` may overlap only where this says so.
//
// Movable; one thread at a time, any thread, for the group and all that is made with it. Must not
// outlive its group, whose Leave() ends it too; an Exchange or a DistributedDataParallel of the same
// group may be used between calls.
//
// Errors: kInvalidArgument for arguments that are wrong by themselves, which changes nothing;
// kFailedPrecondition, on all ranks, where two make different calls, naming both; those of the group.
// But for the first they are final: the group has failed, and what outputs hold has no meaning.
class Collectives {
 public:
  // Collective, the first time for a group, when ranks connect; later ones return the same.
  static Result<Collectives> Open(Group& group);

  ~Collectives();
  Collectives(Collectives&&) noexcept;
  Collectives& operator=(Collectives&&) = delete;

  // Of those who take part: the group's, or with topology local 0 of 1.
  int rank() const;
  int world_size() const;

  // In place, element by element: `op` of all ranks' data, on all ranks.
  Status AllReduce(void* data, int64_t count, DataType type, ReduceOp op);

  // All ranks' data become those of rank `root`.
  Status Broadcast(void* data, int64_t bytes, int root);

  // Each rank gives `bytes`; `output` has room for all ranks', in their order. `input` may be this
  // rank's place in it.
  Status AllGather(const void* input, void* output, int64_t bytes);

  // Each rank gives n times `count` elements, and gets `op` of all ranks' elements from its own number
  // times `count` on. `output` may be that place in `input`.
  Status ReduceScatter(const void* input, void* output, int64_t count, DataType type, ReduceOp op);

  // Gives rank r input_bytes[r] of `input`, and takes output_bytes[r] from it into `output`, each one
  // behind the other in the order of ranks.
  Status AllToAll(const void* input, const std::vector<int64_t>& input_bytes, void* output,
                  const std::vector<int64_t>& output_bytes);

  // Match up by their order between two ranks, other than one with itself. Send() returns when `data`
  // may change, which may be before they are received, but needs the other rank to be in some call.
  Status Send(const void* data, int64_t bytes, int to);
  Status Recv(void* data, int64_t bytes, int from);

  // Returns when all ranks have come.
  Status Barrier();

 private:
  class Impl;
  explicit Collectives(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace gradsync

#endif  // GRADSYNC_GRADSYNC_COLLECTIVES_H_
