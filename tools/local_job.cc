#include "tools/local_job.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/deadline.h"
#include "core/base/errors.h"
#include "core/base/log_line.h"
#include "core/base/secret_proof.h"
#include "core/base/status_macros.h"
#include "core/base/temporary_folder.h"
#include "core/base/thread.h"
#include "core/plan/job_spec.h"
#include "tools/subprocess.h"

namespace gradsync {
namespace {

constexpr absl::Duration kPollInterval = absl::Milliseconds(20);
constexpr int kBadInput = 2;
constexpr char kRank0[] = "worker 0";

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// Of its first thread.
ThreadState StateOf(int pid) { return ReadThreadState(absl::StrCat("/proc/", pid)); }

class LocalJob {
 public:
  LocalJob(const LocalJobOptions& options, std::string folder)
      : options_(options), folder_(std::move(folder)) {}

  absl::StatusOr<LocalJobResult> Run() {
    GS_RETURN_IF_ERROR(StartAll());
    while (!Finished()) Turn();
    if (options_.collect_metrics && result_.exit_code == 0) CollectMetrics();
    ExplainDrain();
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
    Deadline stopped_until = Deadline::Never();  // while it is stopped

    bool running() const { return process != nullptr && !process->exit_status().has_value(); }
  };

  // Servers first, because workers need their addresses; then rank 0, because it holds the store.
  absl::Status StartAll() {
    std::vector<std::string> servers;
    for (int i = 0; i < options_.servers; ++i) {
      GS_RETURN_IF_ERROR(StartServer(i));
    }
    for (int i = 0; i < options_.servers; ++i) {
      servers.push_back(AwaitPort(i));
      if (failed()) return absl::OkStatus();
    }
    std::string master = absl::StrCat(Address(0), ":0");
    for (int rank = 0; rank < options_.workers; ++rank) {
      std::vector<std::string> flags = {absl::StrCat("--rank=", rank),
                                        absl::StrCat("--world_size=", options_.workers),
                                        absl::StrCat("--master=", master)};
      if (options_.tell_local_rank) {
        flags.push_back(absl::StrCat("--local_rank=", rank / options_.ranks_per_gpu));
      }
      if (!servers.empty()) {
        flags.push_back(absl::StrCat("--topology=", TopologyName(Topology::kPs)));
        flags.push_back(absl::StrCat("--servers=", absl::StrJoin(servers, ",")));
      }
      GS_RETURN_IF_ERROR(Start(absl::StrCat("worker ", rank), rank, options_.worker_binary, flags,
                               options_.worker_flags));
      if (rank == 0) master = AwaitPort(options_.servers);
      if (failed() || over_) return absl::OkStatus();
    }
    return absl::OkStatus();
  }

  absl::Status StartServer(int index) {
    const int process = options_.workers + index;
    return Start(absl::StrCat("server ", index), process, options_.server_binary,
                 {absl::StrCat("--listen=", Address(process), ":0")}, options_.server_flags);
  }

  // Where a process listens: workers by rank, then servers.
  std::string Address(int process) const {
    if (options_.lab == nullptr) return "127.0.0.1";
    return options_.lab->address(options_.hosts[process]);
  }

  absl::Status Start(std::string name, int process, const std::string& binary,
                     const std::vector<std::string>& own_flags,
                     const std::vector<std::string>& user_flags) {
    const int index = static_cast<int>(members_.size());
    Member& member = *members_.emplace_back(std::make_unique<Member>());
    member.name = std::move(name);
    member.is_server = process >= options_.workers;
    member.port_file = absl::StrCat(folder_, "/port", index);
    member.metrics_file = absl::StrCat(folder_, "/metrics", index);
    std::vector<std::string> argv = {binary};
    argv.insert(argv.end(), own_flags.begin(), own_flags.end());
    argv.push_back(absl::StrCat("--port_file=", member.port_file));
    if (options_.attempt > 0) argv.push_back(absl::StrCat("--attempt=", options_.attempt));
    if (options_.collect_metrics) {
      argv.push_back(absl::StrCat("--metrics_json=", member.metrics_file));
    }
    argv.insert(argv.end(), user_flags.begin(), user_flags.end());
    SubprocessOptions where;
    if (options_.lab != nullptr) where.inside = options_.lab->inside(options_.hosts[process]);
    if (!member.is_server && options_.worker_environment) {
      where.environment = options_.worker_environment(process);
    }
    where.environment.push_back(absl::StrCat(kJobKeyVariable, "=", key_));
    if (process == 0) {
      where.environment.insert(where.environment.end(), options_.rank_0_environment.begin(),
                               options_.rank_0_environment.end());
    }
    const auto on_line = [this, &member](absl::string_view line, bool is_stderr) {
      if (is_stderr) member.last_error = AsTextLine(line);
      if (options_.on_line) options_.on_line(member.name, line, is_stderr);
    };
    GS_ASSIGN_OR_RETURN(member.process, Subprocess::Start(argv, on_line, where));
    if (options_.on_start) options_.on_start(member.name, member.process->pid());
    return absl::OkStatus();
  }

  // The address that the member wrote, or "" after a failure, or when the job is over.
  std::string AwaitPort(int index) {
    const Member& member = *members_[index];
    const Deadline deadline = Deadline::In(options_.start_timeout);
    while (!failed()) {
      const std::string address = ReadFile(member.port_file);
      if (!address.empty()) return std::string(absl::StripAsciiWhitespace(address));
      // One that failed is judged with the others.
      const bool done = !member.running() && member.process->exit_status()->ok();
      if (done && !member.is_server && options_.may_end_at_once) {
        EndAsDone();
        return "";
      }
      if (done) {
        Fail(absl::StrCat(Describe(member), ": ended before it said where it listens"),
             member.last_error, 1);
      } else if (deadline.passed()) {
        Fail(absl::StrCat(Describe(member), ": did not say where it listens within ",
                          absl::FormatDuration(options_.start_timeout)),
             member.last_error, 1);
      } else {
        Turn();
      }
    }
    return "";
  }

  // Rank 0 has done all that was asked of it (--check_data, --describe_model), and needs nobody for it.
  void EndAsDone() {
    over_ = true;
    SignalAll(SIGKILL);  // servers, whom nobody has come to
  }

  static std::string Describe(const Member& member) {
    return absl::StrCat(member.name, " (pid ", member.process->pid(), ")");
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
    if (getpid() == 1) ReapOrphans();
    LookForInterrupt();
    LookForFailure();
    LookForRefusal();
    LookForDrainFailure();
    LookForIdleServers();
    LookForLateWorkers();
    LookForStopped();
    EndTheRest();
  }

  // To the first process of a container come all that lose their parent there, and stay until it asks
  // for them. A member that has ended is left to Poll().
  void ReapOrphans() {
    const auto is_member = [this](pid_t pid) {
      return std::any_of(members_.begin(), members_.end(),
                         [pid](const auto& member) { return member->process->pid() == pid; });
    };
    siginfo_t ended = {};
    while (waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && ended.si_pid != 0 &&
           !is_member(ended.si_pid)) {
      waitpid(ended.si_pid, nullptr, WNOHANG);
    }
  }

  void LookForInterrupt() {
    const int signal = options_.interrupt == nullptr ? 0 : options_.interrupt->load();
    if (interrupted_ && options_.interrupts != nullptr && *options_.interrupts > 1) {
      kill_at_ = Deadline::Now();
    }
    if (signal == 0 || interrupted_) return;
    interrupted_ = true;
    if (!failed()) {
      draining_ = signal;
      Fail(absl::StrCat("interrupted by signal ", signal, " (SIG", sigabbrev_np(signal), ")"), "",
           128 + signal);
    }
    terminate_at_ = Deadline::Never();
    kill_at_ = std::min(kill_at_, Deadline::In(options_.drain));
    SignalAll(signal);
  }

  // A process that was killed is the cause rather than one that only noticed, though its files are
  // closed before its end can be seen, so that whoever noticed may have ended first.
  void LookForFailure() {
    if (failed() || over_) return;
    const Member* first = nullptr;
    for (const auto& member : members_) {
      if (member->process == nullptr || !member->process->exit_status().has_value()) continue;
      const ExitStatus& status = *member->process->exit_status();
      if (status.ok()) continue;
      if (first == nullptr || status.signal != 0) first = member.get();
    }
    if (first == nullptr) return;
    const ExitStatus& status = *first->process->exit_status();
    if (status.signal == 0 && SomebodyIsEnding()) {
      if (judge_at_.never()) judge_at_ = Deadline::In(options_.settle);
      if (!judge_at_.passed()) return;
    }
    std::string how = status.ToString();
    // Nothing was ended from here yet.
    if (status.signal == SIGKILL) {
      absl::StrAppend(&how, ", ", ExplainForeignKill(oom_kills_, ReadOomKills(), HasTimeLimit()));
    }
    Fail(absl::StrCat(Describe(*first), ": ", how), first->last_error, status.code,
         /*killed=*/status.signal != 0);
  }

  // Whoever only hears that another refuses its input ends with 1, and may do so first.
  void LookForRefusal() {
    if (result_.exit_code != 1) return;
    for (const auto& member : members_) {
      if (member->process == nullptr || !member->process->exit_status().has_value()) continue;
      if (member->process->exit_status()->code != kBadInput) continue;
      result_.exit_code = kBadInput;
    }
  }

  // Who ends first with another code than that of a job that drained knows why it did not.
  void LookForDrainFailure() {
    if (draining_ == 0 || undrained_ != nullptr) return;
    for (const auto& member : members_) {
      if (member->process == nullptr || !member->process->exit_status().has_value()) continue;
      const ExitStatus& status = *member->process->exit_status();
      if (status.ok() || status.code == 128 + draining_) continue;
      undrained_ = member.get();
      return;
    }
  }

  void ExplainDrain() {
    if (undrained_ == nullptr) return;
    const bool hurried = options_.interrupts != nullptr && *options_.interrupts > 1;
    // Whom the signal killed had not begun to train, and then nobody could finish a step.
    const bool early = std::any_of(members_.begin(), members_.end(), [this](const auto& member) {
      return member->process != nullptr && member->process->exit_status().has_value() &&
             member->process->exit_status()->signal == draining_;
    });
    if (hurried || early) return;
    LocalJobResult drain;
    const ExitStatus& status = *undrained_->process->exit_status();
    drain.failure = absl::StrCat(Describe(*undrained_), ": ", status.ToString());
    if (drain_overdue_ && status.signal == SIGKILL) {
      absl::StrAppend(&drain.failure, ", for it had not ended within ",
                      absl::FormatDuration(options_.drain));
    } else if (status.signal == SIGKILL) {
      absl::StrAppend(&drain.failure, ", ",
                      ExplainForeignKill(oom_kills_, ReadOomKills(), HasTimeLimit()));
    } else if (status.signal == 0) {
      drain.failure_detail = undrained_->last_error;
    }
    result_.drain_failure = DescribeFailure(drain);
    result_.exit_code = status.code;
  }

  // Servers end by themselves when the last worker leaves.
  void LookForIdleServers() {
    const Member* server = nullptr;
    int workers = 0;
    for (const auto& member : members_) {
      if (member->is_server && member->running()) server = member.get();
      if (member->is_server) continue;
      if (member->running()) return;
      ++workers;
    }
    if (failed() || over_ || server == nullptr || workers < options_.workers) return;
    if (linger_until_.never()) linger_until_ = Deadline::In(options_.linger);
    if (!linger_until_.passed()) return;
    Fail(absl::StrCat(Describe(*server), ": still runs ", absl::FormatDuration(options_.linger),
                      " after all workers have ended"),
         server->last_error, 1);
  }

  // Rank 0 waits for the others before it leaves; whoever is left long after that hangs.
  void LookForLateWorkers() {
    if (failed() || over_ || options_.outlive == absl::InfiniteDuration()) return;
    const Member* late = nullptr;
    for (const auto& member : members_) {
      if (member->is_server || !member->running()) continue;
      if (member->name == kRank0) return;
      if (late == nullptr) late = member.get();
    }
    if (late == nullptr) return;
    if (outlive_until_.never()) outlive_until_ = Deadline::In(options_.outlive);
    if (!outlive_until_.passed()) return;
    Fail(absl::StrCat(Describe(*late), ": still runs ", absl::FormatDuration(options_.outlive),
                      " after rank 0 has ended"),
         "", 1);
  }

  // A process that somebody holds never ends, and where it has not met the others yet, or they have
  // left, nobody fails for it. A job that is stopped as a whole is to go on later.
  void LookForStopped() {
    if (failed() || over_ || options_.stopped == absl::InfiniteDuration()) return;
    bool whole = static_cast<int>(members_.size()) == options_.workers + options_.servers;
    for (const auto& member : members_) {
      const bool stopped = member->running() && StateOf(member->process->pid()).stopped;
      if (!stopped) {
        whole = false;
        member->stopped_until = Deadline::Never();
      } else if (member->stopped_until.never()) {
        member->stopped_until = Deadline::In(options_.stopped);
      }
    }
    for (const auto& member : members_) {
      if (whole) member->stopped_until = Deadline::Never();
      if (failed() || !member->stopped_until.passed()) continue;
      Fail(
          absl::StrCat(Describe(*member), ": stopped for ", absl::FormatDuration(options_.stopped)),
          "", 1);
      // Those who have met it meanwhile miss it as long after that, and say so.
      terminate_at_ = Deadline::In(std::max(options_.settle, options_.stopped));
    }
  }

  bool SomebodyIsEnding() const {
    return std::any_of(members_.begin(), members_.end(), [](const auto& member) {
      return member->running() && StateOf(member->process->pid()).ending;
    });
  }

  void Fail(std::string message, std::string detail, int exit_code, bool killed = false) {
    result_.failure = std::move(message);
    result_.failure_detail = std::move(detail);
    result_.exit_code = exit_code;
    // What a process said that was killed is not why it ended; of one that was told to end it is.
    if (options_.on_failure)
      options_.on_failure(killed ? result_.failure : DescribeFailure(result_));
    terminate_at_ = Deadline::In(exit_code == kBadInput ? absl::ZeroDuration() : options_.settle);
  }

  void EndTheRest() {
    if (terminate_at_.passed()) {
      terminate_at_ = Deadline::Never();
      kill_at_ = Deadline::In(options_.grace);
      SignalAll(SIGTERM);
    }
    if (!kill_at_.passed()) return;
    drain_overdue_ = draining_ != 0;
    SignalAll(SIGKILL);
  }

  void SignalAll(int signal) {
    for (const auto& member : members_) {
      if (member->running()) member->process->Kill(signal);
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
  const std::string key_ = NewJobKey();           // of the job; in no command line
  std::vector<std::unique_ptr<Member>> members_;  // servers, then workers
  const OomKills oom_kills_ = ReadOomKills();     // before the job
  LocalJobResult result_;
  bool over_ = false;  // before there was a job
  bool interrupted_ = false;
  int draining_ = 0;                   // the signal that interrupted a job which had not failed
  const Member* undrained_ = nullptr;  // who first ended otherwise then
  bool drain_overdue_ = false;
  Deadline judge_at_ = Deadline::Never();
  Deadline linger_until_ = Deadline::Never();
  Deadline outlive_until_ = Deadline::Never();
  Deadline terminate_at_ = Deadline::Never();
  Deadline kill_at_ = Deadline::Never();
};

absl::Status CheckHosts(const LocalJobOptions& options) {
  if (options.lab == nullptr) return absl::OkStatus();
  const size_t processes = static_cast<size_t>(options.workers + options.servers);
  if (options.hosts.size() != processes) {
    return absl::InvalidArgumentError(absl::StrCat("expected a host for each of ", processes,
                                                   " processes, found ", options.hosts.size()));
  }
  const int count = options.lab->options().hosts;
  for (int host : options.hosts) {
    if (host < 0 || host >= count) {
      return absl::InvalidArgumentError(
          absl::StrCat("expected one of the lab's hosts, 0 to ", count - 1, ", found ", host));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string DescribeFailure(const LocalJobResult& result) {
  if (result.failure_detail.empty()) return result.failure;
  return absl::StrCat(FromCulprit(result.failure_detail), " [", result.failure, "]");
}

absl::StatusOr<LocalJobResult> RunLocalJob(const LocalJobOptions& options) {
  if (options.workers < 1 || options.servers < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected at least 1 worker and 0 servers, found ", options.workers, " and ",
                     options.servers));
  }
  GS_RETURN_IF_ERROR(CheckHosts(options));
  GS_ASSIGN_OR_RETURN(const TemporaryFolder folder, TemporaryFolder::Create("gradsync-"));
  return LocalJob(options, folder.path()).Run();
}

absl::StatusOr<LocalJobResult> RunLocalJobOrFail(const LocalJobOptions& options) {
  GS_ASSIGN_OR_RETURN(LocalJobResult result, RunLocalJob(options));
  if (options.interrupt != nullptr && *options.interrupt != 0) {
    return absl::CancelledError(result.failure);
  }
  if (result.exit_code == kBadInput) return absl::InvalidArgumentError(DescribeFailure(result));
  if (result.exit_code != 0) return absl::AbortedError(DescribeFailure(result));
  return result;
}

}  // namespace gradsync
