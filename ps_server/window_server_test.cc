// Servers that share memory with their workers.

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/base/host_identity.h"
#include "core/links/in_process_stream.h"
#include "core/plan/shard_map.h"
#include "core/shared_memory/window.h"
#include "core/shared_memory/window_group.h"
#include "core/shared_memory/window_mesh.h"
#include "core/shared_memory/window_signals.h"
#include "gtest/gtest.h"
#include "ps_server/raw_worker.h"
#include "ps_server/server.h"

namespace gradsync {
namespace {

using Kind = proto::FrameHeader;

constexpr int kServers = 2;

// One worker, played by hand, and two servers.
class WindowServerTest : public testing::Test {
 protected:
  WindowServerTest()
      : plan_(*Plan::FromBuckets({{"a", {200}, {1}, 0}}, {{0}}, Optimizer(), 1, 64)),
        group_(plan_, *ShardMap::Create(plan_, {1, 1})) {
    Start(absl::Minutes(1));
  }

  // Other servers than there were.
  void Start(absl::Duration timeout) {
    servers_.clear();
    addresses_.clear();
    for (int i = 0; i < kServers; ++i) {
      ServerOptions options;
      options.link = link_;
      options.run_id = "test";
      options.timeout = timeout;
      servers_.push_back(*ParameterServer::Start(options));
      addresses_.push_back(servers_[i]->address());
    }
  }

  static OptimizerSpec Optimizer() {
    OptimizerSpec optimizer;
    optimizer.groups.resize(1);
    return optimizer;
  }

  // Among the servers of a job of three stages, of which these are the second's.
  static int Number(int server) { return 3 * server + 1; }

  proto::Hello HelloTo(int server) const {
    proto::Hello hello = RawStream::HelloFor(plan_, 0);
    hello.mutable_terms()->set_windows(true);
    hello.mutable_terms()->set_server_index(server);
    hello.mutable_terms()->add_weights(1);
    hello.mutable_host()->set_key(ReadHostIdentity()->Key());
    for (int i = 0; i < kServers; ++i) {
      hello.add_servers(addresses_[i]);
      hello.add_server_numbers(Number(i));
    }
    hello.set_server_number(Number(server) + 1);
    return hello;
  }

  // Makes a window, and says hello to all servers. Returns where all members listen.
  std::vector<std::string> Enter() {
    WindowMeshOptions options;
    options.members = group_.MeshMembers();
    options.greeting = WindowGroup::PsGreeting("test", 0, plan_);
    options.window = *Window::Create(static_cast<size_t>(group_.Layout(0).bytes()));
    options.on_lost = [](const absl::Status&) {};
    mesh_ = *WindowMesh::Create(std::move(options));
    std::vector<std::string> windows = {mesh_->address()};
    for (int i = 0; i < kServers; ++i) {
      streams_.push_back(std::make_unique<RawStream>(*link_, addresses_[i]));
      streams_[i]->SayHello(HelloTo(i));
      const absl::optional<std::string> welcome = streams_[i]->AwaitPayload(Kind::HELLO);
      proto::Host host;
      EXPECT_TRUE(welcome.has_value() && host.ParseFromString(*welcome));
      windows.push_back(host.window());
    }
    return windows;
  }

  void Tell(int server, const std::vector<std::string>& windows) {
    proto::FrameHeader header;
    header.set_kind(Kind::WINDOWS);
    proto::WindowAddresses addresses;
    for (const std::string& window : windows) addresses.add_addresses(window);
    streams_[server]->Send(header, addresses.SerializeAsString());
  }

  // Until all map each other's windows.
  void Join() {
    const std::vector<std::string> all = Enter();
    for (int i = 0; i < kServers; ++i) Tell(i, all);
    ASSERT_EQ(mesh_->Connect(all, Deadline::In(absl::Seconds(30))), absl::OkStatus());
    // The last one's heart beats once it is connected with all.
    const auto* last = reinterpret_cast<const WindowControl*>(mesh_->window(kServers)->data());
    while (last->heartbeat.value.load() == 0) std::this_thread::yield();
  }

  const Plan plan_;
  const WindowGroup group_;
  const std::shared_ptr<StreamLink> link_ = NewInProcessLink();
  std::vector<std::unique_ptr<ParameterServer>> servers_;
  std::vector<std::string> addresses_;
  std::unique_ptr<WindowMesh> mesh_;
  std::vector<std::unique_ptr<RawStream>> streams_;
};

// It was called by its place among the servers of its stage.
TEST_F(WindowServerTest, AServerThatIsGoneIsNamedByItsNumberAndAddressByTheOthers) {
  Join();
  servers_[1].reset();
  const absl::Status failed = streams_[0]->AwaitFailure();
  EXPECT_TRUE(absl::IsUnavailable(failed)) << failed;
  EXPECT_TRUE(absl::StrContains(failed.message(),
                                absl::StrCat("server ", Number(1), " (", addresses_[1], ")")))
      << failed;
}

// Its verdict named nobody.
TEST_F(WindowServerTest, AServerThatWaitsInVainForAnotherNamesBoth) {
  Start(absl::Seconds(2));
  const std::vector<std::string> all = Enter();
  Tell(0, all);  // and not the other, which does not come
  std::thread worker([&] { mesh_->Connect(all, Deadline::In(absl::Seconds(30))).IgnoreError(); });
  const absl::Status failed = streams_[0]->AwaitFailure();
  mesh_->Cancel();
  worker.join();
  EXPECT_TRUE(absl::IsDeadlineExceeded(failed)) << failed;
  EXPECT_TRUE(absl::StartsWith(
      failed.message(),
      absl::StrCat("nobody is known to have failed, but server ", Number(0), " (", addresses_[0],
                   ") waited in vain: waiting for server ", Number(1), " (", addresses_[1], ")")))
      << failed;
}

TEST_F(WindowServerTest, AWorkerOnAnotherHostIsToldToUseAnotherLink) {
  proto::Hello hello = HelloTo(0);
  hello.mutable_host()->set_key("another-boot/1");
  streams_.push_back(std::make_unique<RawStream>(*link_, addresses_[0]));
  streams_[0]->SayHello(hello);
  const absl::Status failed = streams_[0]->AwaitFailure();
  EXPECT_TRUE(absl::IsFailedPrecondition(failed)) << failed;
  EXPECT_TRUE(absl::StrContains(failed.message(), "use --link=grpc")) << failed;
  EXPECT_TRUE(absl::StrContains(failed.message(), absl::StrCat("server 1 (", addresses_[0], ")")))
      << failed;
}

}  // namespace
}  // namespace gradsync
