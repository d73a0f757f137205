// What the kernel knows of TCP connections.
#ifndef GRADSYNC_CORE_LINKS_TCP_CONNECTIONS_H_
#define GRADSYNC_CORE_LINKS_TCP_CONNECTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace gradsync {

struct TcpConnection {
  uint64_t id = 0;           // of the socket, while that exists
  std::string remote;        // "10.0.0.7:4000", "[fe80::1]:4000"
  int64_t unacked = 0;       // bytes that were written and not acknowledged, sent or not
  absl::Duration since_ack;  // since anything came that acknowledges, new data or old
};

// The established connections of all processes in this network namespace, by sock_diag(7); none
// where the kernel does not say. Takes some microseconds for each. Thread-safe.
std::vector<TcpConnection> TcpConnections();

// Ends that connection if it is one of this process: for whoever holds its descriptor it is as if the
// peer had closed it, whatever it has sent. Takes a microsecond for each descriptor. Thread-safe.
void ShutTcpConnection(uint64_t id);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_LINKS_TCP_CONNECTIONS_H_
