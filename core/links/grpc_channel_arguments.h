// How our gRPC channels and servers are tuned: in one place, so that what a benchmark compares with
// is tuned alike.
#ifndef GRADSYNC_CORE_LINKS_GRPC_CHANNEL_ARGUMENTS_H_
#define GRADSYNC_CORE_LINKS_GRPC_CHANNEL_ARGUMENTS_H_

#include "absl/time/time.h"
#include "grpcpp/server_builder.h"
#include "grpcpp/support/channel_arguments.h"

namespace gradsync {

// See GrpcLinkOptions for what they do.
struct GrpcKeepalive {
  absl::Duration time;
  absl::Duration timeout;
};

struct GrpcTuning {
  GrpcKeepalive keepalive;
  bool probe_bandwidth = false;
};

// For one connection. Channels with different `connection` never share a TCP connection, nor do two
// with the same number. No retries, no proxy that the environment names.
grpc::ChannelArguments GrpcChannelArguments(const GrpcTuning& tuning, int connection);

// The same tuning for a server, which also refuses a port that another server holds.
void AddGrpcServerArguments(const GrpcTuning& tuning, grpc::ServerBuilder* builder);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_LINKS_GRPC_CHANNEL_ARGUMENTS_H_
