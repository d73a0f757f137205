// Where parameter servers run, asked before a run begins.

#ifndef GRADSYNC_PS_SERVER_CLIENT_SERVER_HOSTS_H_
#define GRADSYNC_PS_SERVER_CLIENT_SERVER_HOSTS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/links/frame_stream.h"

namespace gradsync {

// Asks each server, on a stream of its own, which host it is on: the keys (HostIdentity::Key() in
// core/base/host_identity.h), by index. The question takes no part in the server's run.
// Thread-safe; blocks until all have answered, at most until `deadline`; no member of the job has
// seen them yet. Errors, all naming the server: those of ConnectToMember() for a peer that is no
// member; DEADLINE_EXCEEDED or UNAVAILABLE when it does not answer; INVALID_ARGUMENT when the
// answer is none; what it refuses with.
absl::StatusOr<std::vector<std::string>> AskServerHosts(StreamLink& link,
                                                        const std::vector<std::string>& servers,
                                                        Deadline deadline,
                                                        absl::Duration failure_timeout);

}  // namespace gradsync

#endif  // GRADSYNC_PS_SERVER_CLIENT_SERVER_HOSTS_H_
