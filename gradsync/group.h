// The processes of a job, as one of them sees them.

#ifndef GRADSYNC_GRADSYNC_GROUP_H_
#define GRADSYNC_GRADSYNC_GROUP_H_

#include <memory>
#include <string>

#include "gradsync/options.h"
#include "gradsync/status.h"

namespace gradsync {

// A rank that has joined a job. Movable; what is made with it must be destroyed before it, and keeps
// working where it is moved. Not thread-safe, but for Fail().
//
// Everybody's fate is one: when a rank fails, or is lost, every call of every rank that waits for it
// returns an error that names it, within Options::failure_timeout. There is no way on but a new
// group.
class Group {
 public:
  // Collective: meets the other ranks, and finds servers and hosts. Blocks for each of these for at
  // most options.timeout. Where a rank fails after it has met the others, all others fail too, at
  // once.
  // Errors: kInvalidArgument naming an option, before anybody is met; kFailedPrecondition when ranks
  // have different options; kDeadlineExceeded and kUnavailable naming who did not come or was lost.
  static Result<Group> Join(const Options& options = Options());

  // Collective, in the same order on all ranks: another group of the same ranks and options, for
  // another model, over connections of its own. It needs no other master, and its fate is that of
  // this group: where one fails, all do. It must have left, or been destroyed, before this one leaves;
  // this one may go without a model. Servers of the new group are in the workers.
  // Errors: kInvalidArgument for a `name` that is empty, has a slash or was taken before, and where
  // servers are processes of their own, which serve one group; kFailedPrecondition when ranks have
  // other names. This group has failed then.
  Result<Group> New(const std::string& name);

  // Leaves as Leave() does, which it has no way to say the outcome of, so that programs that need to
  // know call it. While an exception flies, or where a step was not finished, it fails the group
  // instead, so that no other rank waits for this one.
  ~Group();

  Group(Group&&) noexcept;
  Group& operator=(Group&&) = delete;

  int rank() const;
  int world_size() const;

  // Ends the job for all ranks because of `reason`, at any time. Returns what the group agreed on,
  // which names the first cause, of which `reason` may be a consequence. Waits for rank 0 for at most
  // two seconds. Thread-safe.
  Status Fail(const Status& reason);

  // Collective: leaves in good order, when all ranks do. Blocks until they have come, for at most
  // Options::timeout. Afterwards nothing is exchanged any more. A second call returns OK. Errors:
  // those of the group.
  Status Leave();

  // Of the library alone.
  class Impl;
  Impl* impl() const { return impl_.get(); }

 private:
  explicit Group(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace gradsync

#endif  // GRADSYNC_GRADSYNC_GROUP_H_
