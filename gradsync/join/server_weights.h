// Which share of the gradient each parameter server gets.
//
// A server beside a worker shares its host's interface with it, one on a machine of its own does
// not, so in a mixed placement equal shares would leave one kind idle. docs/compare/cost_model.md derives
// the shares for which all hosts are equally busy. Pure functions, thread-safe.

#ifndef GRADSYNC_GRADSYNC_JOIN_SERVER_WEIGHTS_H_
#define GRADSYNC_GRADSYNC_JOIN_SERVER_WEIGHTS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gradsync {

// --server_weights: "auto", "equal" or "w0,w1,...".
struct ServerWeights {
  bool by_host = true;          // WeightsByHost()
  std::vector<double> weights;  // otherwise: of each server, in any unit; empty: equal
};

// Errors: INVALID_ARGUMENT naming the flag, what was expected and what came: other words, or
// weights that are not positive and finite.
absl::StatusOr<ServerWeights> ParseServerWeights(absl::string_view text);

// By the hosts (any names) of workers and servers. MixedWeights() of core/plan/cost_model.h, each
// in its server's place, when every worker has a host of its own with one server on it, and further
// servers, fewer than workers, have hosts of their own; equal ones for anything else.
std::vector<double> WeightsByHost(const std::vector<std::string>& worker_hosts,
                                  const std::vector<std::string>& server_hosts);

}  // namespace gradsync

#endif  // GRADSYNC_GRADSYNC_JOIN_SERVER_WEIGHTS_H_
