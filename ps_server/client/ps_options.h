#ifndef GRADSYNC_PS_SERVER_CLIENT_PS_OPTIONS_H_
#define GRADSYNC_PS_SERVER_CLIENT_PS_OPTIONS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/deadline.h"
#include "core/group/side_channel.h"
#include "core/group/worker_group.h"
#include "core/links/frame_stream.h"
#include "core/plan/job_spec.h"
#include "core/plan/kinds.h"
#include "core/plan/plan.h"
#include "core/plan/shard_map.h"
#include "proto/parameter_server.pb.h"

namespace gradsync {

struct PsOptions {
  WorkerGroup group;
  // How frames move, and what identity() calls it, without windows.
  std::shared_ptr<StreamLink> link;
  Backend backend = Backend::kPsOverGrpc;
  std::vector<std::string> servers;  // "host:port"; the same list, in the same order, on every rank
  std::vector<int> numbers;          // each server's among all of the job's; empty: 0, 1, ...
  bool in_workers =
      false;  // server number i is in the process of rank i, by which messages call it
  std::vector<double> weights;  // each server's share of the bytes, in any unit; empty: equal
  // All servers are known to run, so one that cannot be reached for group.failure_timeout is cut off;
  // otherwise it may yet have to be started, unless it gives signs of life in the store.
  bool servers_run = false;
  UpdateSite update_site = UpdateSite::kWorker;
  // Others than bsp: with UpdateSite::kOwner, without windows, clipping or compression. Then ranks
  // may do different numbers of steps between two collective calls, all of which settle first.
  Consistency consistency;
  // Workers and servers are on one host and share their memory: gradients and parameters stay in
  // the workers' windows (core/shared_memory/window_owner.h), and what goes over `link` is only the
  // hello, the optimizer's state and the goodbye.
  bool windows = false;
  int connections = 2;  // streams per server; others if weights differ (core/plan/shard_map.h)
  int lead = kPsLead;   // see core/plan/shard_map.h
};

// What messages call the servers: "server 1 (127.0.0.1:4242)". Of options that are filled in.
std::vector<std::string> ServerNames(const PsOptions& options);

// `options` with defaults filled in. Errors: INVALID_ARGUMENT naming the option, what was expected
// and what came.
absl::StatusOr<PsOptions> CheckPsOptions(const PsOptions& options);

// What a worker's options say to servers and to other workers.

// The hello to every server, without what differs between them and between streams: server_index,
// connection and the plan. Thread-safe. Errors: with options.windows, those of ReadHostIdentity().
absl::StatusOr<proto::Hello> MakeHello(const PsOptions& options, const Plan& plan);

// Collective: every rank has rank 0's plan and consistency. Blocks until all have come or
// `deadline`. All ranks return the same code.
// Errors: FAILED_PRECONDITION with the first rank that differs and what both have; those of the
// side channel.
absl::Status AgreeOnTerms(const PsOptions& options, const Plan& plan, SideChannel& side_channel,
                          Deadline deadline);

// Errors: INVALID_ARGUMENT for a plan that compresses where nothing can be compressed: under
// another consistency than bsp, and in shared memory. Thread-safe.
absl::Status CheckCodec(const PsOptions& options, const Plan& plan);

}  // namespace gradsync

#endif  // GRADSYNC_PS_SERVER_CLIENT_PS_OPTIONS_H_
