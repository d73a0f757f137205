#include "core/program/metrics_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/time/time.h"
#include "core/base/monotonic_time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::vector<Metric> Page() {
  Metric counter;
  counter.name = "things_total";
  counter.help = "Things";
  counter.kind = Metric::Kind::kCounter;
  counter.samples = {{{{"kind", "a \"b\""}}, 1e15}, {{{"kind", "c"}}, 0.5}};
  Metric histogram;
  histogram.name = "sizes";
  histogram.help = "Sizes";
  histogram.kind = Metric::Kind::kHistogram;
  histogram.bounds = {0, 2};
  histogram.counts = {3, 4, 6};
  histogram.sum = 20;
  return {counter, histogram};
}

class MetricsServerTest : public ::testing::Test {
 protected:
  MetricsServerTest() {
    MetricsServerOptions options;
    options.collect = Page;
    server_ = MetricsServer::Start(options).value();
    EXPECT_TRUE(absl::SimpleAtoi(server_->address().substr(10), &port_));
  }

  int Connect() const {
    const int file = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in at = {};
    at.sin_family = AF_INET;
    at.sin_port = htons(static_cast<uint16_t>(port_));
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(file, reinterpret_cast<sockaddr*>(&at), sizeof(at)), 0);
    return file;
  }

  // What is answered to `request`, until the server hangs up.
  std::string Ask(const std::string& request) const {
    const int file = Connect();
    EXPECT_EQ(send(file, request.data(), request.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(request.size()));
    std::string answer;
    char some[1000];
    for (ssize_t bytes = 0; (bytes = recv(file, some, sizeof(some), 0)) > 0;) {
      answer.append(some, static_cast<size_t>(bytes));
    }
    close(file);
    return answer;
  }

  std::unique_ptr<MetricsServer> server_;
  int port_ = 0;
};

TEST_F(MetricsServerTest, ThePageIsWhatPrometheusReads) {
  const std::string page = Ask("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(page, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(page, HasSubstr("# TYPE things_total counter\n"));
  EXPECT_THAT(page, HasSubstr("things_total{kind=\"a \\\"b\\\"\"} 1000000000000000\n"));
  EXPECT_THAT(page, HasSubstr("things_total{kind=\"c\"} 0.5\n"));
  EXPECT_THAT(page, HasSubstr("sizes_bucket{le=\"0\"} 3\n"));
  EXPECT_THAT(page, HasSubstr("sizes_bucket{le=\"2\"} 4\n"));
  EXPECT_THAT(page, HasSubstr("sizes_bucket{le=\"+Inf\"} 6\n"));
  EXPECT_THAT(page, HasSubstr("sizes_sum 20\n"));
  EXPECT_THAT(Ask("GET /metrics?name=x HTTP/1.0\r\n\r\n"), HasSubstr("things_total"));
  EXPECT_THAT(Ask("HEAD /metrics HTTP/1.1\r\n\r\n"), EndsWith("\r\n\r\n"));
}

TEST_F(MetricsServerTest, WhatIsNoRequestForThePageIsRefusedAndTheNextOneServed) {
  EXPECT_THAT(Ask("GET / HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Ask("POST /metrics HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 405 "));
  EXPECT_THAT(Ask("\r\n\r\n"), StartsWith("HTTP/1.1 400 "));
  EXPECT_EQ(Ask(std::string(8192, 'x')), "");
  close(Connect());
  EXPECT_THAT(Ask("GET /metrics HTTP/1.1\r\n\r\n"), HasSubstr("things_total"));
}

// It waited for two seconds for who had connected and said nothing.
TEST_F(MetricsServerTest, ItsEndWaitsForNobody) {
  const auto open_files = [] { return ProcessMetrics().back().samples.at(0).value; };
  const double before = open_files();
  const int mute = Connect();
  while (open_files() < before + 2) std::this_thread::yield();  // until the server has its end, too
  const MonotonicTime start = MonotonicTime::Now();
  server_.reset();
  EXPECT_LT(MonotonicTime::Now() - start, absl::Seconds(1));
  close(mute);
}

TEST_F(MetricsServerTest, APortThatIsTakenAndAHostThatIsAnotherAreErrorsThatNameThem) {
  MetricsServerOptions options;
  options.port = port_;
  options.collect = Page;
  absl::Status status = MetricsServer::Start(options).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), server_->address())) << status;
  options.host = "192.0.2.1";
  status = MetricsServer::Start(options).status();
  EXPECT_TRUE(absl::StrContains(status.message(), "192.0.2.1")) << status;
}

TEST(ProcessMetricsTest, SaysWhatThisProcessTakes) {
  const std::vector<Metric> metrics = ProcessMetrics();
  ASSERT_EQ(metrics.size(), 3u);
  for (const Metric& metric : metrics) EXPECT_GT(metric.samples.at(0).value, 0) << metric.name;
}

}  // namespace
}  // namespace gradsync
