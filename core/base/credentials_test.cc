#include "core/base/credentials.h"

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/base/grpc_conversions.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

TEST(CredentialsTest, InsecureChannelConnectsToInsecureServer) {
  Credentials credentials = InsecureCredentials();
  ASSERT_NE(credentials.channel, nullptr);
  ASSERT_NE(credentials.server, nullptr);

  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", credentials.server, &port);
  auto queue = builder.AddCompletionQueue();
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  ASSERT_NE(port, 0);

  auto channel = grpc::CreateChannel("127.0.0.1:" + std::to_string(port), credentials.channel);
  EXPECT_TRUE(channel->WaitForConnected(GrpcDeadline(Deadline::In(absl::Seconds(20)))));
  server->Shutdown();
  queue->Shutdown();
  void* tag;
  bool ok;
  while (queue->Next(&tag, &ok)) {
  }
}

// IPv4's loopback written as IPv6 was said to be reachable by other hosts.
TEST(CredentialsTest, WithoutASecretOnlyLoopbackAddressesAreListenedAt) {
  Credentials credentials = InsecureCredentials();
  credentials.insecure = false;
  for (const char* host : {"127.0.0.1", "127.9.9.9", "[::1]", "localhost", "[::ffff:127.0.0.1]"}) {
    EXPECT_TRUE(CheckListener(credentials, std::string(host) + ":7011").ok()) << host;
  }
  for (const char* host : {"0.0.0.0", "10.0.0.1", "[::]", "[::ffff:10.0.0.1]"}) {
    EXPECT_FALSE(CheckListener(credentials, std::string(host) + ":7011").ok()) << host;
  }
}

}  // namespace
}  // namespace gradsync
