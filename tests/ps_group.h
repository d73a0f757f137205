// Servers and workers of one job as objects of one process, for tests of parameter servers.

#ifndef GRADSYNC_TESTS_PS_GROUP_H_
#define GRADSYNC_TESTS_PS_GROUP_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/group/key_value_store.h"
#include "core/plan/plan.h"
#include "core/sync/gradient_sync.h"
#include "ps_server/client/ps_gradient_sync.h"
#include "ps_server/server.h"
#include "ps_server/server_event.h"
#include "tests/run_step.h"

namespace gradsync {

class PsGroup {
 public:
  using EventSink = std::function<void(int server, const ServerEvent&)>;

  // Starts `servers` servers on `link`. `base` gives update site, consistency, weights, connections
  // and credit. `on_event` hears what servers log (ServerEventSink); may be empty.
  PsGroup(std::shared_ptr<StreamLink> link, int world_size, int servers, PsOptions base,
          EventSink on_event = {});

  std::unique_ptr<GradientSync> Worker(int rank) const;

  // A worker with another consistency than the group's.
  std::unique_ptr<GradientSync> Worker(int rank, Consistency consistency) const;

  // A worker whose errors no other worker hears of through the store, like one that was killed.
  std::unique_ptr<GradientSync> MuteWorker(int rank) const;

  // Ends a server as a crash would.
  void Kill(int server) { servers_[server].reset(); }

  ParameterServer& server(int index) { return *servers_[index]; }
  const std::string& address(int index) const { return base_.servers[index]; }

 private:
  PsOptions base_;
  std::vector<std::unique_ptr<ParameterServer>> servers_;
};

// Uneven: a bucket smaller than the number of workers, one of many stripes with a cut tail, one
// with empty chunks.
Plan UnevenPlan(int world_size);

// Launches all buckets and waits for all. The first error.
absl::Status RunStep(GradientSync& sync, const Plan& plan, int64_t number, double max_norm = 0);

}  // namespace gradsync

#endif  // GRADSYNC_TESTS_PS_GROUP_H_
