// What a worker's options say to servers and to other workers.

#ifndef GRADSYNC_PS_SERVER_CLIENT_PS_TERMS_H_
#define GRADSYNC_PS_SERVER_CLIENT_PS_TERMS_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/deadline.h"
#include "core/group/side_channel.h"
#include "core/plan/plan.h"
#include "proto/parameter_server.pb.h"
#include "ps_server/client/ps_options.h"

namespace gradsync {

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

#endif  // GRADSYNC_PS_SERVER_CLIENT_PS_TERMS_H_
