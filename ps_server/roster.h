// Who takes part in a run: gathers the workers' hellos and holds them against each other.

#ifndef GRADSYNC_PS_SERVER_ROSTER_H_
#define GRADSYNC_PS_SERVER_ROSTER_H_

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "plan/plan.h"
#include "proto/parameter_server.pb.h"

namespace gradsync {

// Not thread-safe.
class Roster {
 public:
  // An empty `run_id` takes the run of the first worker that says hello.
  // `max_memory`: bytes that a plan may make the server take (ServerMemory()). `max_message`: bytes
  // of a message that can be received, which a chunk must fit in.
  Roster(std::string run_id, int attempt, int64_t max_memory = std::numeric_limits<int64_t>::max(),
         int64_t max_message = std::numeric_limits<int64_t>::max())
      : run_id_(std::move(run_id)),
        attempt_(attempt),
        max_memory_(max_memory),
        max_message_(max_message) {}

  // Whether this stream may take part at all; if not, it alone is turned away.
  // Errors: INVALID_ARGUMENT for values out of range, texts that are too long, a plan that is none,
  // and fields that contradict each other, such as a plan of another fingerprint or for another
  // number of workers than the terms say; RESOURCE_EXHAUSTED for a plan that takes more than
  // `max_memory`; FAILED_PRECONDITION for another run, for a second stream in one place, and for
  // any hello once complete(): what a stranger says then is no business of those who train.
  absl::Status Check(const proto::Hello& hello) const;

  // Takes in a hello that passed Check(). An error ends the run.
  // Errors: FAILED_PRECONDITION when plans differ (both fingerprints and the first difference);
  // INVALID_ARGUMENT when other terms do, naming the first that does.
  absl::Status Admit(const proto::Hello& hello);

  // All streams of all workers are there.
  bool complete() const;

  // Valid when complete.
  const Plan& plan() const { return *plan_; }
  const proto::Terms& terms() const { return *terms_; }

  // Of rank's hello.
  const proto::Host& host(int rank) const { return workers_[rank].host; }

  // Addresses of all servers, by index, as rank 0 has them; with terms().windows().
  const std::vector<std::string>& servers() const { return servers_; }

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
    absl::optional<int> number;  // what it is called
    std::string address;
    proto::Host host;
    std::vector<bool> connections;  // that said hello
  };

  absl::Status CheckMemory(const proto::Hello& hello, const Plan& plan) const;
  void TakeNames(const proto::Hello& hello);
  absl::Status AdmitPlan(const proto::Hello& hello);

  std::string run_id_;
  int attempt_;
  const int64_t max_memory_, max_message_;
  absl::optional<proto::Terms> terms_;
  int first_number_ = 0;  // of the worker that set terms_
  absl::optional<Plan> plan_;
  std::vector<Worker> workers_;
  std::vector<std::string> servers_;
  std::vector<int> server_numbers_;  // empty: as their indices
  bool servers_in_workers_ = false;
};

}  // namespace gradsync

#endif  // GRADSYNC_PS_SERVER_ROSTER_H_
