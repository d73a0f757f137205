#include "core/links/tcp_connections.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace gradsync {
namespace {

constexpr int kEstablished = 1;  // TCP_ESTABLISHED of the kernel

// The beginning of the kernel's tcp_info (linux/tcp.h, which does not go with netinet/tcp.h), as far
// as it is read here. It only ever grows at its end.
struct TcpInfo {
  uint8_t states[8];
  uint32_t rto, ato, snd_mss, rcv_mss, unacked, sacked, lost, retrans, fackets;
  uint32_t last_data_sent, last_ack_sent, last_data_recv, last_ack_recv;  // milliseconds ago
};

std::string Remote(const inet_diag_msg& message) {
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(message.idiag_family, message.id.idiag_dst, text, sizeof(text));
  absl::string_view address = text;
  // A socket for both versions has IPv4 addresses in this form.
  const bool both = absl::ConsumePrefix(&address, "::ffff:");
  const bool brackets = message.idiag_family == AF_INET6 && !both;
  return absl::StrCat(brackets ? "[" : "", address, brackets ? "]" : "", ":",
                      ntohs(message.id.idiag_dport));
}

void Add(const nlmsghdr& header, std::vector<TcpConnection>* connections) {
  if (header.nlmsg_len < NLMSG_LENGTH(sizeof(inet_diag_msg))) return;
  const auto* message = static_cast<const inet_diag_msg*>(NLMSG_DATA(&header));
  TcpConnection connection;
  connection.id = message->idiag_inode;
  connection.remote = Remote(*message);
  connection.unacked = message->idiag_wqueue;
  size_t left = header.nlmsg_len - NLMSG_LENGTH(sizeof(inet_diag_msg));
  const char* at = reinterpret_cast<const char*>(message + 1);
  while (left >= sizeof(nlattr)) {
    nlattr attribute;
    std::memcpy(&attribute, at, sizeof(attribute));
    if (attribute.nla_len < NLA_HDRLEN || attribute.nla_len > left) return;
    if (attribute.nla_type == INET_DIAG_INFO && attribute.nla_len >= NLA_HDRLEN + sizeof(TcpInfo)) {
      TcpInfo info;
      std::memcpy(&info, at + NLA_HDRLEN, sizeof(info));
      connection.since_ack = absl::Milliseconds(info.last_ack_recv);
      connections->push_back(std::move(connection));
      return;
    }
    const size_t size = std::min<size_t>(NLA_ALIGN(attribute.nla_len), left);
    at += size;
    left -= size;
  }
}

// False when the kernel does not answer as expected.
bool AddFamily(int netlink, uint8_t family, std::vector<TcpConnection>* connections) {
  struct {
    nlmsghdr header;
    inet_diag_req_v2 request;
  } message = {};
  message.header.nlmsg_len = sizeof(message);
  message.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  message.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  message.request.sdiag_family = family;
  message.request.sdiag_protocol = IPPROTO_TCP;
  message.request.idiag_ext = 1 << (INET_DIAG_INFO - 1);
  message.request.idiag_states = 1 << kEstablished;
  if (send(netlink, &message, sizeof(message), 0) != sizeof(message)) return false;
  alignas(nlmsghdr) char buffer[32 << 10];
  for (;;) {
    const ssize_t received = recv(netlink, buffer, sizeof(buffer), 0);
    if (received <= 0) return false;
    size_t left = static_cast<size_t>(received);
    for (const auto* header = reinterpret_cast<const nlmsghdr*>(buffer); NLMSG_OK(header, left);
         header = NLMSG_NEXT(header, left)) {
      if (header->nlmsg_type == NLMSG_DONE) return true;
      if (header->nlmsg_type != SOCK_DIAG_BY_FAMILY) return false;
      Add(*header, connections);
    }
  }
}

}  // namespace

std::vector<TcpConnection> TcpConnections() {
  std::vector<TcpConnection> connections;
  const int netlink = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
  if (netlink < 0) return connections;
  const auto close_it = absl::MakeCleanup([netlink] { close(netlink); });
  // The kernel answers while it is asked; a limit all the same.
  const timeval limit = {1, 0};
  setsockopt(netlink, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  if (AddFamily(netlink, AF_INET, &connections)) AddFamily(netlink, AF_INET6, &connections);
  return connections;
}

void ShutTcpConnection(uint64_t id) {
  DIR* const descriptors = opendir("/proc/self/fd");
  if (descriptors == nullptr) return;
  const auto close_it = absl::MakeCleanup([descriptors] { closedir(descriptors); });
  while (const dirent* const entry = readdir(descriptors)) {
    struct stat named = {};
    if (fstatat(dirfd(descriptors), entry->d_name, &named, 0) != 0 || !S_ISSOCK(named.st_mode) ||
        named.st_ino != id) {
      continue;
    }
    // The number may be another file's by now; a copy is of one file, whichever that is.
    const int copy = dup(std::atoi(entry->d_name));
    struct stat held = {};
    if (copy >= 0 && fstat(copy, &held) == 0 && S_ISSOCK(held.st_mode) && held.st_ino == id) {
      shutdown(copy, SHUT_RDWR);
    }
    if (copy >= 0) close(copy);
    return;
  }
}

}  // namespace gradsync
