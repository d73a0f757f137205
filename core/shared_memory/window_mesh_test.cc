#include "core/shared_memory/window_mesh.h"

#include <dirent.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/base/fault_injection.h"
#include "core/base/monotonic_time.h"
#include "core/base/mutex.h"
#include "core/shared_memory/window_signals.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr size_t kBytes = 8192;

Deadline Soon() { return Deadline::In(absl::Seconds(60)); }

// What a mesh reports.
class Losses {
 public:
  void Add(absl::Status status) {
    MutexLock lock(&mutex_);
    losses_.push_back(std::move(status));
    changed_.SignalAll();
  }
  absl::Status First() {
    MutexLock lock(&mutex_);
    while (losses_.empty()) changed_.Wait(&mutex_);
    return losses_[0];
  }
  size_t count() {
    MutexLock lock(&mutex_);
    return losses_.size();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<absl::Status> losses_ ABSL_GUARDED_BY(mutex_);
};

WindowMeshOptions Options(int self, int members, Losses* losses) {
  WindowMeshOptions options;
  for (int i = 0; i < members; ++i)
    options.members.push_back({absl::StrCat("rank ", i), true, kBytes});
  options.self = self;
  options.greeting = "run 1";
  options.window = *Window::Create(kBytes);
  options.on_lost = [losses](absl::Status status) { losses->Add(std::move(status)); };
  return options;
}

// Members as threads. Returns what each one's Connect() said.
std::vector<absl::Status> ConnectAll(const std::vector<std::unique_ptr<WindowMesh>>& meshes,
                                     Deadline deadline) {
  std::vector<std::string> addresses;
  for (const auto& mesh : meshes) addresses.push_back(mesh->address());
  std::vector<absl::Status> results(meshes.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < meshes.size(); ++i) {
    threads.emplace_back([&, i] { results[i] = meshes[i]->Connect(addresses, deadline); });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

TEST(WindowMeshTest, EveryMemberMapsTheWindowsOfAllOthers) {
  constexpr int kMembers = 5;
  Losses losses;
  std::vector<std::unique_ptr<WindowMesh>> meshes;
  for (int i = 0; i < kMembers; ++i) {
    meshes.push_back(*WindowMesh::Create(Options(i, kMembers, &losses)));
  }
  for (const absl::Status& status : ConnectAll(meshes, Soon())) EXPECT_TRUE(status.ok()) << status;
  for (int i = 0; i < kMembers; ++i) {
    for (int k = 0; k < kMembers; ++k) meshes[i]->window(k)->data()[4096 + i] = 'a' + i;
  }
  for (const auto& mesh : meshes) {
    EXPECT_STREQ(mesh->window(mesh == meshes[0] ? 1 : 0)->data() + 4096, "abcde");
  }
  for (const auto& mesh : meshes) mesh->Leave();
  meshes.clear();
  EXPECT_EQ(losses.count(), 0u);
}

TEST(WindowMeshTest, MembersThatAreNotLinkedAreLeftAlone) {
  Losses losses;
  std::vector<std::unique_ptr<WindowMesh>> meshes;
  for (int i = 0; i < 4; ++i) {  // two workers, two servers
    WindowMeshOptions options = Options(i, 4, &losses);
    for (int k = 0; k < 4; ++k) options.members[k].linked = (i < 2) != (k < 2);
    meshes.push_back(*WindowMesh::Create(std::move(options)));
  }
  for (const absl::Status& status : ConnectAll(meshes, Soon())) EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(meshes[0]->window(1), nullptr);
  EXPECT_NE(meshes[0]->window(2), nullptr);
  EXPECT_NE(meshes[3]->window(1), nullptr);
  for (const auto& mesh : meshes) mesh->Leave();
}

// The message began with the member to which this one wanted to connect, which was blamed.
TEST(WindowMeshTest, WhoHasNoFileDescriptorsLeftBlamesNobodyElse) {
  Losses losses;
  const auto other = *WindowMesh::Create(Options(0, 2, &losses));
  const auto mesh = *WindowMesh::Create(Options(1, 2, &losses));
  // First with descriptors: the undefined behaviour sanitizer opens a pipe at what it sees first.
  EXPECT_TRUE(absl::IsUnavailable(mesh->Connect({"gradsync-nobody", ""}, Soon())));
  absl::Status status;
  {
    const NoDescriptorsLeft none;
    status = mesh->Connect({other->address(), ""}, Soon());
  }
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              StartsWith("no connection to rank 0: no file descriptors left in this process"));
}

TEST(WindowMeshTest, AMemberThatLeavesWithoutFarewellIsReportedByName) {
  Losses losses, quiet;
  std::vector<std::unique_ptr<WindowMesh>> meshes;
  meshes.push_back(*WindowMesh::Create(Options(0, 2, &losses)));
  meshes.push_back(*WindowMesh::Create(Options(1, 2, &quiet)));
  for (const absl::Status& status : ConnectAll(meshes, Soon())) EXPECT_TRUE(status.ok()) << status;
  meshes[1].reset();
  EXPECT_TRUE(absl::IsUnavailable(losses.First())) << losses.First();
  EXPECT_THAT(std::string(losses.First().message()), HasSubstr("rank 1"));
  EXPECT_EQ(quiet.count(), 0u);
}

TEST(WindowMeshTest, AMemberMayLeaveBeforeAllAreConnected) {
  Losses quiet, losses;
  std::vector<std::unique_ptr<WindowMesh>> meshes;
  for (int i = 0; i < 3; ++i) {
    meshes.push_back(*WindowMesh::Create(Options(i, 3, i == 1 ? &losses : &quiet)));
  }
  meshes[0]->Leave();
  for (const absl::Status& status : ConnectAll(meshes, Soon())) EXPECT_TRUE(status.ok()) << status;
  meshes[0].reset();
  meshes[2].reset();
  // It looks at rank 0 first, and takes it for lost unless it said farewell.
  EXPECT_THAT(std::string(losses.First().message()), HasSubstr("rank 2"));
  EXPECT_EQ(losses.count(), 1u);
}

TEST(WindowMeshTest, AMemberThatDoesNotComeIsNamedAtTheDeadline) {
  Losses losses;
  const auto mesh = *WindowMesh::Create(Options(0, 3, &losses));
  const absl::Status status = mesh->Connect({"", "", ""}, Deadline::In(absl::Milliseconds(50)));
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1, rank 2"));
}

TEST(WindowMeshTest, AMemberThatIsNotThereIsNamed) {
  Losses losses;
  const auto mesh = *WindowMesh::Create(Options(1, 2, &losses));
  const absl::Status status = mesh->Connect({"gradsync-nobody", ""}, Soon());
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0"));
}

TEST(WindowMeshTest, MembersOfDifferentJobsDoNotConnect) {
  Losses losses;
  std::vector<std::unique_ptr<WindowMesh>> meshes;
  meshes.push_back(*WindowMesh::Create(Options(0, 2, &losses)));
  WindowMeshOptions other = Options(1, 2, &losses);
  other.greeting = "run 2";
  meshes.push_back(*WindowMesh::Create(std::move(other)));
  const absl::Status first = ConnectAll(meshes, Deadline::In(absl::Seconds(1)))[0];
  EXPECT_TRUE(absl::IsFailedPrecondition(first)) << first;
  EXPECT_THAT(std::string(first.message()), HasSubstr("expected \"run 1\", found \"run 2\""));
}

TEST(WindowMeshTest, WindowsOfAnotherSizeAreRefused) {
  Losses losses;
  std::vector<std::unique_ptr<WindowMesh>> meshes;
  meshes.push_back(*WindowMesh::Create(Options(0, 2, &losses)));
  WindowMeshOptions other = Options(1, 2, &losses);
  other.window = *Window::Create(2 * kBytes);
  meshes.push_back(*WindowMesh::Create(std::move(other)));
  const absl::Status first = ConnectAll(meshes, Deadline::In(absl::Seconds(1)))[0];
  EXPECT_TRUE(absl::IsInvalidArgument(first)) << first;
  EXPECT_THAT(std::string(first.message()), HasSubstr("rank 1"));
}

TEST(WindowMeshTest, CancelEndsAWaitingConnect) {
  Losses losses;
  const auto mesh = *WindowMesh::Create(Options(0, 2, &losses));
  absl::Status status;
  std::thread connect([&] { status = mesh->Connect({"", ""}, Deadline::Never()); });
  mesh->Cancel();
  connect.join();
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
}

std::set<std::string> Names(const char* directory) {
  std::set<std::string> names;
  if (DIR* dir = opendir(directory)) {
    while (const dirent* entry = readdir(dir)) names.insert(entry->d_name);
    closedir(dir);
  }
  return names;
}

// Rank 1 as a process that connects to this process's rank 0 and then waits to be killed.
class Child {
 public:
  explicit Child(const std::string& address) {
    pid_ = fork();
    if (pid_ != 0) return;
    Losses losses;
    WindowMeshOptions options = Options(1, 2, &losses);
    options.silence = absl::Milliseconds(400);
    const auto mesh = *WindowMesh::Create(std::move(options));
    if (!mesh->Connect({address, ""}, Soon()).ok()) _exit(1);
    while (true) pause();
  }
  ~Child() {
    Signal(SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  void Signal(int signal) { kill(pid_, signal); }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

class WindowMeshProcessTest : public ::testing::Test {
 protected:
  WindowMeshProcessTest() {
    WindowMeshOptions options = Options(0, 2, &losses_);
    options.silence = absl::Milliseconds(400);
    mesh_ = *WindowMesh::Create(std::move(options));
  }

  Losses losses_;
  std::unique_ptr<WindowMesh> mesh_;
};

TEST_F(WindowMeshProcessTest, AKilledProcessIsNoticedAndLeavesNothingBehind) {
  const std::set<std::string> shm = Names("/dev/shm");
  Child child(mesh_->address());
  ASSERT_TRUE(mesh_->Connect({"", ""}, Soon()).ok());
  EXPECT_EQ(losses_.count(), 0u);
  child.Signal(SIGKILL);
  const MonotonicTime killed = MonotonicTime::Now();
  const absl::Status lost = losses_.First();
  EXPECT_LT(MonotonicTime::Now() - killed, absl::Seconds(5));
  EXPECT_TRUE(absl::IsUnavailable(lost)) << lost;
  EXPECT_THAT(std::string(lost.message()),
              HasSubstr(absl::StrCat("rank 1 (process ", child.pid())));
  // Its memory is still there for who maps it, and has no name.
  mesh_->window(1)->data()[5000] = 'x';
  EXPECT_EQ(mesh_->window(1)->data()[5000], 'x');
  EXPECT_EQ(Names("/dev/shm"), shm);
}

TEST_F(WindowMeshProcessTest, AStoppedProcessIsNoticedAfterItsSilence) {
  Child child(mesh_->address());
  ASSERT_TRUE(mesh_->Connect({"", ""}, Soon()).ok());
  const auto& control = *reinterpret_cast<const WindowControl*>(mesh_->window(1)->data());
  while (control.heartbeat.value.load() == 0) std::this_thread::yield();
  child.Signal(SIGSTOP);
  const absl::Status lost = losses_.First();
  EXPECT_TRUE(absl::IsDeadlineExceeded(lost)) << lost;
  EXPECT_THAT(std::string(lost.message()), HasSubstr("rank 1"));
}

}  // namespace
}  // namespace gradsync
