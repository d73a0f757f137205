#include "core/program/metrics_server.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "prometheus/metric_family.h"
#include "prometheus/text_serializer.h"

namespace gradsync {
namespace {

std::vector<prometheus::ClientMetric::Label> LabelsOf(const Metric::Labels& labels) {
  std::vector<prometheus::ClientMetric::Label> result;
  for (const auto& [name, value] : labels) result.push_back({name, value});
  return result;
}

prometheus::ClientMetric HistogramOf(const Metric& metric) {
  prometheus::ClientMetric result;
  result.label = LabelsOf(metric.labels);
  result.histogram.sample_count = metric.counts.back();
  result.histogram.sample_sum = metric.sum;
  for (size_t i = 0; i < metric.bounds.size(); ++i) {
    result.histogram.bucket.push_back({metric.counts[i], metric.bounds[i]});
  }
  return result;
}

prometheus::MetricFamily FamilyOf(const Metric& metric) {
  prometheus::MetricFamily family;
  family.name = metric.name;
  family.help = metric.help;
  switch (metric.kind) {
    case Metric::Kind::kCounter:
      family.type = prometheus::MetricType::Counter;
      break;
    case Metric::Kind::kGauge:
      family.type = prometheus::MetricType::Gauge;
      break;
    case Metric::Kind::kHistogram:
      family.type = prometheus::MetricType::Histogram;
      family.metric.push_back(HistogramOf(metric));
      break;
  }
  for (const Metric::Sample& sample : metric.samples) {
    prometheus::ClientMetric& one = family.metric.emplace_back();
    one.label = LabelsOf(sample.labels);
    one.counter.value = one.gauge.value = sample.value;
  }
  return family;
}

// Of all that a peer may take: to say what it wants, and to read the page.
constexpr absl::Duration kPatience = absl::Seconds(2);
constexpr size_t kMostRequestBytes = 8192;

class File {
 public:
  explicit File(int file) : file_(file) {}
  ~File() {
    if (file_ >= 0) close(file_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return file_; }

 private:
  const int file_;
};

// Until when to deal with a peer: a time, or when `stop` is readable.
struct Patience {
  Deadline deadline;
  int stop;
};

// Whether `file` is ready for `events` by then.
bool Ready(int file, short events, const Patience& patience) {
  pollfd both[] = {{patience.stop, POLLIN, 0}, {file, events, 0}};
  return !patience.deadline.passed() && poll(both, 2, patience.deadline.PollTimeout()) > 0 &&
         both[0].revents == 0;
}

// A request up to its empty line; empty when none comes in time.
std::string ReadRequest(int peer, const Patience& patience) {
  std::string request;
  char some[1024];
  while (request.size() < kMostRequestBytes && Ready(peer, POLLIN, patience)) {
    const ssize_t bytes = recv(peer, some, sizeof(some), MSG_DONTWAIT);
    if (bytes <= 0) return "";
    request.append(some, static_cast<size_t>(bytes));
    if (absl::StrContains(request, "\r\n\r\n")) return request;
  }
  return "";
}

void Write(int peer, absl::string_view text, const Patience& patience) {
  while (!text.empty() && Ready(peer, POLLOUT, patience)) {
    const ssize_t bytes = send(peer, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (bytes <= 0) return;
    text.remove_prefix(static_cast<size_t>(bytes));
  }
}

std::string Response(absl::string_view status, absl::string_view body, bool with_body) {
  return absl::StrCat("HTTP/1.1 ", status,
                      "\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8"
                      "\r\nContent-Length: ",
                      body.size(), "\r\nConnection: close\r\n\r\n", with_body ? body : "");
}

// The library has an HTTP server too, whose threads have stacks of 100 KiB; in a process with
// LibTorch, whose thread-local variables take more than that, they cannot be started. A page of some
// kilobytes every few seconds needs no more than one thread and one connection at a time.
class Server : public MetricsServer {
 public:
  // Takes `listener` and `stop`, an eventfd.
  Server(const MetricsServerOptions& options, int listener, int port, int stop)
      : host_(options.host),
        port_(port),
        collect_(options.collect),
        listener_(listener),
        stop_(stop),
        thread_([this] { Serve(); }) {}

  ~Server() override {
    const uint64_t one = 1;
    (void)!write(stop_.get(), &one, sizeof(one));
    thread_.join();
  }

  std::string address() const override { return absl::StrCat(host_, ":", port_); }

 private:
  void Serve() {
    while (true) {
      pollfd both[] = {{stop_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
      if (poll(both, 2, -1) < 0) continue;
      if (both[0].revents != 0) return;
      const File peer(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (peer.get() >= 0) {
        Answer(peer.get());
      } else if (poll(both, 1, 100) > 0) {  // no descriptors left, say
        return;
      }
    }
  }

  void Answer(int peer) {
    const Patience patience = {Deadline::In(kPatience), stop_.get()};
    const std::string request = ReadRequest(peer, patience);
    if (request.empty()) return;
    const absl::string_view line = absl::string_view(request).substr(0, request.find("\r\n"));
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
    const bool head = words[0] == "HEAD";
    std::string response;
    if (words.size() != 3 || !absl::StartsWith(words[2], "HTTP/1.")) {
      response = Response("400 Bad Request", "expected HTTP\n", true);
    } else if (words[0] != "GET" && !head) {
      response = Response("405 Method Not Allowed", "expected GET\n", true);
    } else if (words[1].substr(0, words[1].find('?')) != "/metrics") {
      response = Response("404 Not Found", "there is only /metrics\n", !head);
    } else {
      std::vector<prometheus::MetricFamily> families;
      for (const Metric& metric : collect_()) families.push_back(FamilyOf(metric));
      response = Response("200 OK", prometheus::TextSerializer().Serialize(families), !head);
    }
    Write(peer, response, patience);
  }

  const std::string host_;
  const int port_;
  const std::function<std::vector<Metric>()> collect_;
  const File listener_;
  const File stop_;     // readable: the thread is to end
  std::thread thread_;  // last: uses all of the above
};

// A socket that listens, or -1.
int Listen(const addrinfo& at) {
  const int listener =
      socket(at.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
  if (listener < 0) return -1;
  const int one = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  if (bind(listener, at.ai_addr, at.ai_addrlen) == 0 && listen(listener, 16) == 0) return listener;
  close(listener);
  return -1;
}

int PortOf(int listener) {
  sockaddr_storage name = {};
  socklen_t bytes = sizeof(name);
  getsockname(listener, reinterpret_cast<sockaddr*>(&name), &bytes);
  return ntohs(name.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&name)->sin6_port
                                          : reinterpret_cast<sockaddr_in*>(&name)->sin_port);
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(
    const MetricsServerOptions& options) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  int listener = -1;
  if (getaddrinfo(options.host.c_str(), absl::StrCat(options.port).c_str(), &hints, &found) == 0) {
    // "localhost" may have an address of a kind that this host does not use.
    for (const addrinfo* at = found; at != nullptr && listener < 0; at = at->ai_next) {
      listener = Listen(*at);
    }
    freeaddrinfo(found);
  }
  if (listener < 0) {
    return absl::UnavailableError(absl::StrCat("expected to listen at ", options.host, ":",
                                               options.port,
                                               ", which is taken or not an address of this host"));
  }
  const int stop = eventfd(0, EFD_CLOEXEC);
  if (stop < 0) {
    const std::string why = std::strerror(errno);
    close(listener);
    return absl::ResourceExhaustedError(absl::StrCat("a page of metrics: no eventfd: ", why));
  }
  return std::make_unique<Server>(options, listener, PortOf(listener), stop);
}

}  // namespace gradsync
