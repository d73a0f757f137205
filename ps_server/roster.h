// Who takes part in a run, and who has come and does not yet: gathers the workers' hellos and holds them
// against each other.

#ifndef GRADSYNC_PS_SERVER_ROSTER_H_
#define GRADSYNC_PS_SERVER_ROSTER_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/monotonic_time.h"
#include "core/links/frame_stream.h"
#include "core/plan/plan.h"
#include "core/plan/shard_map.h"
#include "google/protobuf/repeated_field.h"
#include "proto/parameter_server.pb.h"

namespace gradsync {

// Streams that have come to a server and have not been admitted to its run: workers whose hello is on
// its way, and strangers. They are counted, and their time is limited. Not thread-safe. Keeps no
// stream alive.
class Guests {
 public:
  // Enough for all streams of a large job at once.
  static constexpr size_t kMost = 1 << 14;

  // Errors: RESOURCE_EXHAUSTED when there are kMost guests already.
  absl::Status Enter(const std::shared_ptr<FrameStream>& stream);

  // The stream was admitted, or is closed.
  void Leave(const FrameStream* stream);

  // Takes out and returns those that came `patience` ago or earlier.
  std::vector<std::shared_ptr<FrameStream>> TakeLate(absl::Duration patience);

 private:
  struct Guest {
    const FrameStream* stream;
    std::weak_ptr<FrameStream> alive;
    MonotonicTime since;
  };

  std::vector<Guest> guests_;  // in the order in which they came
};

struct HelloLimits {
  // Bytes that a plan may make the server take (ServerMemory()).
  int64_t max_memory = std::numeric_limits<int64_t>::max();
  // Bytes of a message that can be received, which a chunk must fit in.
  int64_t max_message = std::numeric_limits<int64_t>::max();
};

// A hello that contradicts nothing in itself, and what was made of it.
struct CheckedHello {
  proto::Hello hello;
  std::string terms_digest;  // of the terms, but the fingerprint
  // On connection 0.
  std::shared_ptr<const Plan> plan;
  std::shared_ptr<const ShardMap> shards;
};

// Takes a time and a memory that the hello sizes, so no lock should be held. `known`: one that may
// have the same plan, whose layout is then not made again; may be null. Thread-safe.
// Errors: INVALID_ARGUMENT for values out of range, texts that are too long, a plan that is none, and
// fields that contradict each other, such as a plan of another fingerprint or for another number of
// workers than the terms say; RESOURCE_EXHAUSTED for a plan that takes more than `limits`.
absl::StatusOr<std::shared_ptr<const CheckedHello>> CheckHello(
    proto::Hello hello, const HelloLimits& limits,
    const std::shared_ptr<const CheckedHello>& known);

// Not thread-safe. No method takes a time that a hello sizes, but Missing().
class Roster {
 public:
  // An empty `run_id` takes the run of the first worker that says hello.
  Roster(std::string run_id, int attempt) : run_id_(std::move(run_id)), attempt_(attempt) {}

  // Whether the stream of such a hello may take part; if not, it alone is turned away. The hello's
  // texts have been checked, the rest may not have been.
  // Errors: FAILED_PRECONDITION for another run, for a second stream in one place, and for any hello
  // once complete(): what a stranger says then is no business of those who train.
  absl::Status CheckPlace(const proto::Hello& hello) const;

  // Why a hello ends the run; to be asked without a lock. Errors: FAILED_PRECONDITION when plans differ
  // (both fingerprints and the first difference) or consistencies; INVALID_ARGUMENT when other terms
  // do, naming the first that does.
  using Difference = std::function<absl::Status()>;

  // Takes in a hello that passed both checks, and returns null; or else the run is never complete.
  Difference Admit(const std::shared_ptr<const CheckedHello>& hello);

  // All streams of all workers are there. Then nothing changes any more.
  bool complete() const;

  // The first hello with a plan; null before.
  const std::shared_ptr<const CheckedHello>& first() const { return with_plan_; }

  // Valid when complete.
  const Plan& plan() const { return *with_plan_->plan; }
  const ShardMap& shards() const { return *with_plan_->shards; }
  const proto::Terms& terms() const { return first_->hello.terms(); }

  // Of rank's hello.
  const proto::Host& host(int rank) const { return workers_.at(rank).host; }

  // Addresses of all servers, by index, as rank 0 has them; with terms().windows().
  const google::protobuf::RepeatedPtrField<std::string>& servers() const {
    return of_rank_0_->hello.servers();
  }

  const std::string& run_id() const { return run_id_; }
  int attempt() const { return attempt_; }

  // What the worker is called, as it said itself, or else another on its first connection; else, and if
  // it is none of the run's, its rank.
  int Number(int rank) const;

  // "rank 1 (10.0.0.7)", by its number; without an address if it has not come.
  std::string Name(int rank) const;

  // "server 1", or "rank 1" where that is the worker that it is in, once a worker has said so.
  std::string ServerNumbered(int number) const;

  // "server 1 (10.0.0.7:4000)", by what the server is called; valid as servers() is.
  std::string ServerName(int index) const;

  // "no worker said hello", or "ranks 1, 3 did not say hello", by their numbers; names 16 at most.
  std::string Missing() const;

 private:
  struct Worker {
    int number = 0;  // what it is called
    std::string address;
    proto::Host host;
    std::vector<bool> connections;  // that said hello
  };

  std::string run_id_;
  int attempt_;
  std::shared_ptr<const CheckedHello> first_;      // of all
  std::shared_ptr<const CheckedHello> with_plan_;  // the first on a connection 0
  std::shared_ptr<const CheckedHello> of_rank_0_;  // on its connection 0
  absl::flat_hash_map<int, Worker> workers_;       // that have come, by rank
  int64_t streams_ = 0;
  bool differs_ = false;
};

}  // namespace gradsync

#endif  // GRADSYNC_PS_SERVER_ROSTER_H_
