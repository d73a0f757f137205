// For programs that are to run where Prometheus's library is not.
#include "absl/status/status.h"
#include "core/program/metrics_server.h"

namespace gradsync {

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(const MetricsServerOptions&) {
  return absl::FailedPreconditionError(
      "expected none in a build without Prometheus's library (third_party/README.md)");
}

}  // namespace gradsync
