// Real hosts: skipped where the system allows no namespaces, or has no iproute2.

#include "tools/network_lab.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/subprocess.h"

namespace gradsync {
namespace {

using testing::HasSubstr;

// Takes `sys.argv[2]` connections at argv[1], reads them to their ends, and prints bytes per second
// from the first byte to the last.
constexpr char kReceiver[] = R"(
import selectors, socket, sys, time
listener = socket.create_server((sys.argv[1], 7000))
print("ready", flush=True)
selector = selectors.DefaultSelector()
for _ in range(int(sys.argv[2])):
    selector.register(listener.accept()[0], selectors.EVENT_READ)
total, begin = 0, None
while selector.get_map():
    for key, _ in selector.select():
        piece = key.fileobj.recv(1 << 20)
        begin = begin or time.monotonic()
        total += len(piece)
        if not piece:
            selector.unregister(key.fileobj)
print(total / (time.monotonic() - begin), flush=True)
)";

constexpr char kSender[] = R"(
import socket, sys
socket.create_connection((sys.argv[1], 7000), timeout=20).sendall(bytes(int(sys.argv[2])))
)";

constexpr double kRate = 10e6;  // 80 Mbit/s
constexpr int kBytes = 5000000;

class NetworkLabTest : public testing::Test {
 protected:
  struct Python {
    std::vector<std::string> lines;
    std::unique_ptr<Subprocess> process;
  };

  void MakeHosts(int hosts) {
    NetworkLabOptions options;
    options.hosts = hosts;
    options.bytes_per_second = kRate;
    options.burst_bytes = 32 << 10;
    auto lab = NetworkLab::Create(options);
    if (absl::IsPermissionDenied(lab.status()) || absl::IsNotFound(lab.status())) {
      GTEST_SKIP() << lab.status();
    }
    ASSERT_TRUE(lab.ok()) << lab.status();
    lab_ = *std::move(lab);
  }

  std::unique_ptr<Python> Start(int host, const char* script, std::vector<std::string> arguments) {
    auto python = std::make_unique<Python>();
    std::vector<std::string> argv = {"/usr/bin/python3", "-c", script};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    SubprocessOptions where;
    where.inside = lab_->inside(host);
    auto process = Subprocess::Start(
        argv,
        [lines = &python->lines](absl::string_view line, bool) {
          lines->push_back(std::string(line));
        },
        where);
    EXPECT_TRUE(process.ok()) << process.status();
    if (process.ok()) python->process = *std::move(process);
    return python;
  }

  static void Await(Python* python, size_t lines) {
    const Deadline deadline = Deadline::In(absl::Seconds(30));
    while (python->lines.size() < lines && !python->process->exit_status().has_value() &&
           !deadline.passed()) {
      python->process->Poll();
    }
    ASSERT_GE(python->lines.size(), lines);
  }

  // Bytes per second that host 0 receives when all of `senders` send at once.
  double Receive(const std::vector<int>& senders) {
    const auto receiver = Start(0, kReceiver, {lab_->address(0), absl::StrCat(senders.size())});
    Await(receiver.get(), 1);
    std::vector<std::unique_ptr<Python>> started;
    for (int host : senders) {
      started.push_back(Start(host, kSender, {lab_->address(0), absl::StrCat(kBytes)}));
    }
    Await(receiver.get(), 2);
    double rate = 0;
    EXPECT_TRUE(absl::SimpleAtod(receiver->lines.back(), &rate)) << receiver->lines.back();
    return rate;
  }

  std::unique_ptr<NetworkLab> lab_;
};

TEST_F(NetworkLabTest, AHostSendsNoFasterThanItsLink) {
  MakeHosts(2);
  if (lab_ == nullptr) return;
  const double rate = Receive({1});
  EXPECT_LT(rate, 1.02 * kRate);
  EXPECT_GT(rate, 0.5 * kRate);  // it may have to share this machine's cores
}

TEST_F(NetworkLabTest, AHostReceivesNoFasterThanItsLinkWhoeverSends) {
  MakeHosts(4);
  if (lab_ == nullptr) return;
  const double rate = Receive({1, 2, 3});
  EXPECT_LT(rate, 1.02 * kRate);
  EXPECT_GT(rate, 0.5 * kRate);
}

TEST_F(NetworkLabTest, TcpIsSetUpAsAskedFor) {
  MakeHosts(1);
  if (lab_ == nullptr) return;
  const auto cat = Start(0,
                         "import sys; print(*[open('/proc/sys/net/ipv4/tcp_' + f).read() for f in "
                         "('congestion_control', 'rmem', 'wmem')], sep='')",
                         {});
  Await(cat.get(), 3);
  EXPECT_EQ(cat->lines[0], lab_->options().congestion_control);
  EXPECT_EQ(cat->lines[1], "4096\t131072\t131072");
  EXPECT_EQ(cat->lines[2], "4096\t131072\t131072");
}

// 256 KiB are a tenth of a second at 20 Mbit/s: what stages exchange then was half of it free.
TEST(NetworkLabOptionsTest, ABurstIsFiveMillisecondsBetweenTwoBounds) {
  EXPECT_EQ(DefaultBurstBytes(20e6 / 8), 64 << 10);
  EXPECT_EQ(DefaultBurstBytes(200e6 / 8), 125000);
  EXPECT_EQ(DefaultBurstBytes(1e9 / 8), 256 << 10);
  EXPECT_EQ(DefaultBurstBytes(0), 256 << 10);
}

TEST_F(NetworkLabTest, TheBurstFollowsTheRateUnlessItIsGiven) {
  NetworkLabOptions options;
  options.hosts = 1;
  options.bytes_per_second = 200e6 / 8;
  auto lab = NetworkLab::Create(options);
  if (absl::IsPermissionDenied(lab.status()) || absl::IsNotFound(lab.status())) {
    GTEST_SKIP() << lab.status();
  }
  ASSERT_TRUE(lab.ok()) << lab.status();
  EXPECT_EQ((*lab)->options().burst_bytes, 125000);
  lab_ = *std::move(lab);
  const auto show = Start(
      0,
      "import subprocess; print(subprocess.getoutput('PATH=$PATH:/sbin tc qdisc show dev eth0'))",
      {});
  Await(show.get(), 1);
  EXPECT_THAT(show->lines[0], HasSubstr("burst 125000b"));
}

TEST(NetworkLabOptionsTest, WhatCannotBeIsNamed) {
  NetworkLabOptions options;
  options.hosts = 0;
  EXPECT_THAT(std::string(NetworkLab::Create(options).status().message()),
              HasSubstr("hosts: expected 1 to 250, found 0"));
  options = NetworkLabOptions();
  options.bytes_per_second = -1;
  EXPECT_EQ(NetworkLab::Create(options).status().code(), absl::StatusCode::kInvalidArgument);
  options = NetworkLabOptions();
  options.burst_bytes = 10;
  EXPECT_THAT(std::string(NetworkLab::Create(options).status().message()), HasSubstr("burst"));
}

}  // namespace
}  // namespace gradsync
