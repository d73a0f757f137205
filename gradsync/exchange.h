// Averages gradients that lie in the library's own memory: for programs that do not use LibTorch.
// Those that do have gradsync/ddp.h.

#ifndef GRADSYNC_GRADSYNC_EXCHANGE_H_
#define GRADSYNC_GRADSYNC_EXCHANGE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gradsync/group.h"
#include "gradsync/status.h"

namespace gradsync {

// A parameter, and so a gradient: contiguous fp32 elements.
struct Tensor {
  std::string name;
  int64_t numel = 0;
};

struct ExchangeOptions {
  // A bucket is what is exchanged at a time. It is closed before a tensor that would make it larger
  // than this; a tensor larger than it has a bucket of its own.
  int64_t bucket_bytes = int64_t{25} << 20;
  int64_t first_bucket_bytes = int64_t{1} << 20;  // the same for the first
};

// Where a tensor lies: elements [offset, offset + numel) of a bucket's gradients, and of its
// parameters.
struct Place {
  int bucket = 0;
  int64_t offset = 0;
};

// Memory of the library, `numel` elements each, on the host, 64-byte aligned, zero at first. What lies
// between tensors must stay zero in the gradients.
struct Bucket {
  float* gradients = nullptr;
  float* parameters = nullptr;
  int64_t numel = 0;
};

// Of one model's gradients. Movable; not thread-safe. Must not outlive its group.
//
//   for each step: for each bucket, as its gradients are ready: Launch(bucket)
//                  for each bucket: Wait(bucket), after which its gradients are the mean of all ranks'
class Exchange {
 public:
  // Collective, once per group: `tensors` in the order in which their gradients become ready, the
  // same on all ranks, which is compared. Errors: kInvalidArgument for an empty or repeated name or a
  // size below 1; kFailedPrecondition when ranks have different tensors, naming the first
  // difference; kResourceExhausted without memory for the buckets; those of the group.
  static Result<Exchange> Bind(Group* group, const std::vector<Tensor>& tensors,
                               const ExchangeOptions& options = ExchangeOptions());

  ~Exchange();
  Exchange(Exchange&&) noexcept;
  Exchange& operator=(Exchange&&) = delete;

  // The number of a bucket or a tensor, from 0, must be below these.
  int buckets() const;
  int tensors() const;

  // The bucket's memory, which stays where it is until this object is destroyed.
  Bucket bucket(int number) const;

  // Of the tensor of that number in the list that was bound.
  Place place(int tensor) const;

  // Collective, between steps: all ranks' parameters become rank 0's. Errors: those of the group.
  Status Broadcast();

  // Begins the exchange of a bucket whose gradients are complete; until its Wait() its gradients
  // belong to the library. Buckets in the order of their numbers, each once a step; the first begins
  // a step, when all buckets of the step before have been waited for. Never waits for another rank.
  // Errors: kFailedPrecondition for another order, which fails the group; those of the group.
  Status Launch(int number);

  // Blocks until the bucket's gradients are the mean over ranks, for at most Options::timeout, and
  // for less where a rank is lost. Errors: kFailedPrecondition where it was not launched;
  // kDeadlineExceeded; those of the group.
  Status Wait(int number);

 private:
  class Impl;
  explicit Exchange(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace gradsync

#endif  // GRADSYNC_GRADSYNC_EXCHANGE_H_
