#include "gradsync/join/own_server.h"

#include <cstdint>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/process_resources.h"
#include "core/base/status_macros.h"

namespace gradsync {

OwnServer::OwnServer(std::unique_ptr<ParameterServer> server, int rank)
    : rank_(rank), server_(std::move(server)), serving_([this] { ended_ = server_->Wait(); }) {}

absl::StatusOr<std::unique_ptr<OwnServer>> OwnServer::Start(const WorkerGroup& group,
                                                            std::shared_ptr<StreamLink> link) {
  ServerOptions options;
  options.link = std::move(link);
  options.listen = absl::StrCat(group.address, ":0");
  options.run_id = group.run_id;
  options.attempt = group.attempt;
  options.timeout = group.timeout;
  options.arrival_timeout = absl::InfiniteDuration();
  options.failure_timeout = group.failure_timeout;
  options.limits.max_memory = static_cast<int64_t>(AvailableMemory().bytes / 4 * 3);
  options.limits.key = group.key;
  options.limits.proof = true;
  options.limits.credentials = group.credentials;
  GS_ASSIGN_OR_RETURN(std::unique_ptr<ParameterServer> server, ParameterServer::Start(options));
  return absl::WrapUnique(new OwnServer(std::move(server), group.rank));
}

OwnServer::~OwnServer() {
  server_->Stop(absl::UnavailableError(
      absl::StrCat("rank ", rank_, " left before all others had done with its server")));
  if (serving_.joinable()) serving_.join();
}

absl::Status OwnServer::Wait() {
  serving_.join();
  return ended_;
}

}  // namespace gradsync
