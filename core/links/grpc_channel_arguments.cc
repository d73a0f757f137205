#include "core/links/grpc_channel_arguments.h"

#include <string>
#include <utility>
#include <vector>

#include "grpc/grpc.h"

namespace gradsync {
namespace {

// What both ends set. Measured over loopback on gRPC 1.51, two connections, both directions: 256
// KiB messages go from 1.3 to 2.4 GB/s per direction. The lookahead is ignored unless BDP probing
// is off.
std::vector<std::pair<std::string, int>> CommonArguments(const GrpcTuning& tuning) {
  const int keepalive_time_ms = absl::ToInt64Milliseconds(tuning.keepalive.time);
  const int keepalive_timeout_ms = absl::ToInt64Milliseconds(tuning.keepalive.timeout);
  return {
      {GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 16777215},
      {GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 8 << 20},
      {GRPC_ARG_HTTP2_BDP_PROBE, tuning.probe_bandwidth ? 1 : 0},
      {GRPC_ARG_TCP_READ_CHUNK_SIZE, 1 << 20},
      {GRPC_ARG_TCP_MIN_READ_CHUNK_SIZE, 256 << 10},
      {GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, 4 << 20},
      {GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, -1},
      {GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, -1},
      {GRPC_ARG_KEEPALIVE_TIME_MS, keepalive_time_ms},
      {GRPC_ARG_KEEPALIVE_TIMEOUT_MS, keepalive_timeout_ms},
      {GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1},
      // Without these, gRPC allows two pings without data, then none for five minutes, and servers
      // punish more.
      {GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0},
      {GRPC_ARG_HTTP2_MIN_SENT_PING_INTERVAL_WITHOUT_DATA_MS, keepalive_time_ms / 2},
      {GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10},
      {GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0},
  };
}

}  // namespace

grpc::ChannelArguments GrpcChannelArguments(const GrpcTuning& tuning, int connection) {
  grpc::ChannelArguments arguments;
  for (const auto& [name, value] : CommonArguments(tuning)) arguments.SetInt(name, value);
  // Channels with equal arguments would share a connection.
  arguments.SetInt("gradsync.connection", connection);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  return arguments;
}

void AddGrpcServerArguments(const GrpcTuning& tuning, grpc::ServerBuilder* builder) {
  for (const auto& [name, value] : CommonArguments(tuning)) {
    builder->AddChannelArgument(name, value);
  }
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // Of strangers: connections that never become gRPC's, and calls beyond what any peer makes.
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 10'000);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 1024);
}

}  // namespace gradsync
