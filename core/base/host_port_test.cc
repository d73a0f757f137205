#include "core/base/host_port.h"

#include "gtest/gtest.h"

namespace gradsync {
namespace {

TEST(HostPortTest, NamesAndAddressesComeApartAndTogether) {
  struct Case {
    const char* text;
    const char* host;
    int port;
  };
  for (const Case& c :
       {Case{"localhost:0", "localhost", 0}, Case{"10.0.0.1:29500", "10.0.0.1", 29500},
        Case{"gpu-01.cluster:65535", "gpu-01.cluster", 65535}, Case{"[::1]:80", "::1", 80},
        Case{"[fe80::1%eth0]:7", "fe80::1%eth0", 7}}) {
    const absl::StatusOr<HostPort> parsed = ParseHostPort(c.text);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->host, c.host);
    EXPECT_EQ(parsed->port, c.port);
    EXPECT_EQ(FormatHostPort(parsed->host, parsed->port), c.text);
  }
}

TEST(HostPortTest, AnythingElseIsAnErrorThatQuotesIt) {
  for (const char* text :
       {"", "localhost", ":80", "localhost:", "localhost:x", "localhost:-1", "localhost:+1",
        "localhost: 1", "localhost:65536", "localhost:99999999999", "::1:80", "[]:80", "[::1]",
        "unix:/tmp/socket:1", "a,b:80", "a b:80", "http://host:80"}) {
    const absl::Status status = ParseHostPort(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_NE(std::string(status.message()).find(absl::string_view(text).data()), std::string::npos)
        << status;
  }
}

}  // namespace
}  // namespace gradsync
