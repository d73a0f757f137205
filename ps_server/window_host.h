// A server on the host of its workers, where they can share memory.

#ifndef GRADSYNC_PS_SERVER_WINDOW_HOST_H_
#define GRADSYNC_PS_SERVER_WINDOW_HOST_H_

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/plan/shard_map.h"
#include "proto/parameter_server.pb.h"
#include "ps_server/roster.h"
#include "ps_server/window_shard.h"

namespace gradsync {

// Where this process runs, without an address of a window. Thread-safe; does not block.
// Errors: those of ReadHostIdentity().
absl::StatusOr<proto::Host> OwnHost();

// As WindowShardOptions has them.
struct WindowHostOptions {
  ShardMap shards;
  absl::Duration timeout;
  std::function<void(absl::Status)> on_failure;
};

// The shard that the roster, which is complete, asks this server for. Does not block.
// Errors: FAILED_PRECONDITION when a worker is on another host, naming both; those of OwnHost() and
// of WindowShard::Create().
absl::StatusOr<std::unique_ptr<WindowShard>> MakeWindowShard(const Roster& roster,
                                                             WindowHostOptions options);

}  // namespace gradsync

#endif  // GRADSYNC_PS_SERVER_WINDOW_HOST_H_
