#include "tools/local_job.h"

#include <poll.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "tools/subprocess.h"

namespace gradsync {
namespace {

constexpr absl::Duration kPollInterval = absl::Milliseconds(10);

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

class LocalJob {
 public:
  LocalJob(const LocalJobOptions& options, std::string folder)
      : options_(options), folder_(std::move(folder)) {}

  absl::StatusOr<LocalJobResult> Run() {
    GS_RETURN_IF_ERROR(StartAll());
    while (!Finished()) Turn();
    if (options_.collect_metrics && result_.exit_code == 0) CollectMetrics();
    return std::move(result_);
  }

 private:
  struct Member {
    std::string name;
    bool is_server = false;
    std::string port_file;
    std::string metrics_file;
    std::string last_error;
    std::unique_ptr<Subprocess> process;

    bool running() const { return process != nullptr && !process->exit_status().has_value(); }
  };

  // Servers first, because workers need their addresses; then rank 0, because it holds the store.
  absl::Status StartAll() {
    std::vector<std::string> servers;
    for (int i = 0; i < options_.servers; ++i) {
      GS_RETURN_IF_ERROR(Start(absl::StrCat("server ", i), true, options_.server_binary,
                               {"--listen=127.0.0.1:0"}, options_.server_flags));
    }
    for (int i = 0; i < options_.servers; ++i) {
      servers.push_back(AwaitPort(i));
      if (failed()) return absl::OkStatus();
    }
    std::string master = "127.0.0.1:0";
    for (int rank = 0; rank < options_.workers; ++rank) {
      std::vector<std::string> flags = {absl::StrCat("--rank=", rank),
                                        absl::StrCat("--world_size=", options_.workers),
                                        absl::StrCat("--master=", master)};
      if (!servers.empty()) {
        flags.push_back("--topology=ps");
        flags.push_back(absl::StrCat("--servers=", absl::StrJoin(servers, ",")));
      }
      GS_RETURN_IF_ERROR(Start(absl::StrCat("worker ", rank), false, options_.worker_binary, flags,
                               options_.worker_flags));
      if (rank == 0) master = AwaitPort(options_.servers);
      if (failed()) return absl::OkStatus();
    }
    return absl::OkStatus();
  }

  absl::Status Start(std::string name, bool is_server, const std::string& binary,
                     const std::vector<std::string>& own_flags,
                     const std::vector<std::string>& user_flags) {
    const int index = static_cast<int>(members_.size());
    Member& member = *members_.emplace_back(std::make_unique<Member>());
    member.name = std::move(name);
    member.is_server = is_server;
    member.port_file = absl::StrCat(folder_, "/port", index);
    member.metrics_file = absl::StrCat(folder_, "/metrics", index);
    std::vector<std::string> argv = {binary};
    argv.insert(argv.end(), own_flags.begin(), own_flags.end());
    argv.push_back(absl::StrCat("--port_file=", member.port_file));
    if (options_.collect_metrics) {
      argv.push_back(absl::StrCat("--metrics_json=", member.metrics_file));
    }
    argv.insert(argv.end(), user_flags.begin(), user_flags.end());
    GS_ASSIGN_OR_RETURN(member.process,
                        Subprocess::Start(argv, [this, &member](absl::string_view line, bool err) {
                          if (err) member.last_error = std::string(line);
                          if (options_.on_line) options_.on_line(member.name, line, err);
                        }));
    if (options_.on_start) options_.on_start(member.name, member.process->pid());
    return absl::OkStatus();
  }

  // The address that the member wrote, or "" after a failure.
  std::string AwaitPort(int index) {
    const Member& member = *members_[index];
    const absl::Time deadline = absl::Now() + options_.start_timeout;
    while (!failed()) {
      const std::string address = ReadFile(member.port_file);
      if (!address.empty()) return std::string(absl::StripAsciiWhitespace(address));
      if (absl::Now() > deadline) {
        Fail(absl::StrCat(member.name, " did not say where it listens within ",
                          absl::FormatDuration(options_.start_timeout)),
             member.last_error, 1);
      }
      Turn();
    }
    return "";
  }

  bool failed() const { return result_.exit_code != 0; }

  bool Finished() const {
    for (const auto& member : members_) {
      if (member->running()) return false;
    }
    return true;
  }

  // Waits for output or a short while, delivers it, and looks after the dead.
  void Turn() {
    std::vector<pollfd> fds;
    for (const auto& member : members_) {
      if (!member->running()) continue;
      for (int fd : {member->process->stdout_fd(), member->process->stderr_fd()}) {
        if (fd >= 0) fds.push_back({fd, POLLIN, 0});
      }
    }
    poll(fds.data(), fds.size(), static_cast<int>(absl::ToInt64Milliseconds(kPollInterval)));
    for (const auto& member : members_) {
      if (member->running()) member->process->Poll();
    }
    if (options_.interrupt != nullptr && options_.interrupt->load() != 0 && !failed()) {
      const int signal = options_.interrupt->load();
      Fail(absl::StrCat("interrupted by signal ", signal), "", 128 + signal);
    }
    if (!failed()) LookForFailure();
    if (failed()) EndTheRest();
  }

  // A process that was killed is the cause rather than one that only noticed, if both ended in the same turn.
  void LookForFailure() {
    const Member* first = nullptr;
    for (const auto& member : members_) {
      if (member->process == nullptr || !member->process->exit_status().has_value()) continue;
      const ExitStatus& status = *member->process->exit_status();
      if (status.ok()) continue;
      if (first == nullptr || status.signal != 0) first = member.get();
    }
    if (first == nullptr) return;
    const ExitStatus& status = *first->process->exit_status();
    Fail(absl::StrCat(first->name, " (pid ", first->process->pid(), "): ", status.ToString()),
         first->last_error, status.shell_code());
  }

  void Fail(std::string message, std::string detail, int exit_code) {
    result_.failure = std::move(message);
    result_.failure_detail = std::move(detail);
    result_.exit_code = exit_code;
    if (options_.on_failure) options_.on_failure(result_.failure);
    kill_at_ = absl::Now() + options_.grace;
    for (const auto& member : members_) {
      if (member->running()) member->process->Kill(SIGTERM);
    }
  }

  void EndTheRest() {
    if (absl::Now() < kill_at_) return;
    for (const auto& member : members_) {
      if (member->running()) member->process->Kill(SIGKILL);
    }
  }

  void CollectMetrics() {
    for (const auto& member : members_) {
      auto& list = member->is_server ? result_.server_metrics : result_.worker_metrics;
      list.push_back(ReadFile(member->metrics_file));
    }
  }

  const LocalJobOptions& options_;
  const std::string folder_;
  std::vector<std::unique_ptr<Member>> members_;  // servers, then workers
  LocalJobResult result_;
  absl::Time kill_at_ = absl::InfiniteFuture();
};

}  // namespace

absl::StatusOr<LocalJobResult> RunLocalJob(const LocalJobOptions& options) {
  std::error_code error;
  std::string folder = std::filesystem::temp_directory_path(error) / "gradsync-XXXXXX";
  if (error || mkdtemp(folder.data()) == nullptr) {
    return absl::UnavailableError(absl::StrCat("cannot make a temporary folder like ", folder));
  }
  const auto remove = absl::MakeCleanup([&] { std::filesystem::remove_all(folder, error); });
  return LocalJob(options, folder).Run();
}

}  // namespace gradsync
