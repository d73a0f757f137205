// One parameter server, for one run of a job. `bazel run //ps_server -- --help` lists the flags;
// docs/use/running.md shows jobs.
//
// Exit codes: 0 when all workers said goodbye, 1 when the run failed or did not come about, as when
// rank 0 cannot be reached, 2 when this server could not begin
// (flags, port), 128 + the signal when this server was told to end by one (docs/operate/operations.md).

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/credentials.h"
#include "core/base/deadline.h"
#include "core/base/errors.h"
#include "core/base/grpc_health.h"
#include "core/base/host_port.h"
#include "core/base/launcher_process.h"
#include "core/base/local_address.h"
#include "core/base/log_line.h"
#include "core/base/process_main.h"
#include "core/base/process_resources.h"
#include "core/base/secret_proof.h"
#include "core/base/status_macros.h"
#include "core/base/write_file.h"
#include "core/group/group_error.h"
#include "core/group/grpc_store.h"
#include "core/group/launch_environment.h"
#include "core/group/liveness.h"
#include "core/group/store_run.h"
#include "core/links/frame_codec.h"
#include "core/links/server_link.h"
#include "core/program/byte_sizes.h"
#include "core/program/flag_effects.h"
#include "core/program/flags.h"
#include "core/program/grpc_reflection.h"
#include "core/program/last_words.h"
#include "core/program/metrics_server.h"
#include "core/program/program_main.h"
#include "core/program/security_flags.h"
#include "core/program/system_resolver.h"
#include "core/program/version.h"
#include "grpc/support/log.h"
#include "ps_server/metrics.h"
#include "ps_server/server.h"
#include "ps_server/server_event.h"

ABSL_FLAG(std::string, listen, "",
          "host:port to listen at; port 0: any free one; empty: any port of the address from which "
          "this host reaches the master, or without one 127.0.0.1:0");
ABSL_FLAG(std::string, port_file, "",
          "file to which the server writes its host:port once it listens");
ABSL_FLAG(std::string, master, "",
          "host:port of rank 0's store, in which the server registers; empty: workers are told by "
          "--servers");
ABSL_FLAG(
    int, server_tasks, 0,
    "how many tasks of one srun, mpirun or torchrun are parameter servers: the last ones, and "
    "this is one of them; the master and the run are then the launcher's; 0: only servers "
    "were started with this one, if any");
ABSL_FLAG(std::string, run_id, "",
          "serve workers of this run only; empty: with --master the run that its store is of, "
          "whatever launched that, else the run of the first worker that comes");
ABSL_FLAG(int, attempt, -1,
          "number of the run's attempt, counted by the launcher; -1: with --master as its store "
          "says, else 0");
ABSL_FLAG(std::string, metrics_json, "",
          "file for what the server measured, written at the end: ServerMetrics of "
          "proto/run_record.proto");
ABSL_FLAG(std::string, event_log, "",
          "file for what happens under ssp and asp, a line per event (docs/use/consistency.md)");
ABSL_FLAG(
    gradsync::ByteSize, max_memory, gradsync::ByteSize{},
    "bytes that the workers' plan may make this server take (8GiB); a plan that takes more is "
    "refused before anything is allocated; 0: three quarters of the memory that the machine "
    "has to give when the server starts");
ABSL_FLAG(gradsync::ByteSize, max_message, gradsync::ByteSize{64 << 20},
          "bytes of a message that this server receives; a plan with larger chunks is refused");
ABSL_FLAG(int, metrics_port, -1,
          "port of a page for Prometheus, http://127.0.0.1:PORT/metrics; 0: any free one, see "
          "--metrics_port_file; -1: there is none");
ABSL_FLAG(std::string, metrics_host, "127.0.0.1",
          "address at which --metrics_port listens, such as 0.0.0.0 for all of this host; anybody "
          "who reaches it can read the page");
ABSL_FLAG(std::string, metrics_port_file, "", "file to which the page's host:port is written");
ABSL_FLAG(std::string, log_format, "text",
          "how errors and notices are written to stderr: text, or json, an object per line");
ABSL_FLAG(bool, reflection, false,
          "the server describes itself to whoever asks (gRPC reflection), and reads what strangers "
          "send for it; for finding errors");
ABSL_FLAG(absl::Duration, timeout, absl::Seconds(60),
          "how long the server waits until all workers have come; without --master twice as long, "
          "since workers wait for each other first and name those that are missing");
ABSL_FLAG(absl::Duration, failure_timeout, absl::Seconds(10),
          "rank 0, of whose store workers tell the server, is lost when it gives no sign of life "
          "for longer; at most half of --timeout counts; inf: the server takes no part in that");

namespace gradsync {
namespace {

constexpr int kSignalled = 128;  // and the signal's number more: exit codes

std::string SignalName(int signal) { return absl::StrCat("SIG", sigabbrev_np(signal)); }

// Wakes the thread that waits for signals: none of those need be among them.
int WakingSignal() { return SIGRTMIN; }

sigset_t SignalsToWaitFor() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, WakingSignal());
  for (int signal : EndingSignals()) sigaddset(&signals, signal);
  return signals;
}

// Ends the server when the process is told to end: in good order if it can, and at once when it is
// told twice. The signals must be blocked in all threads.
class SignalWatch {
 public:
  explicit SignalWatch(std::shared_ptr<GrpcHealth> health)
      : health_(std::move(health)), thread_([this] { Watch(); }) {}

  ~SignalWatch() {
    done_ = true;
    pthread_kill(thread_.native_handle(), WakingSignal());
    thread_.join();
  }

  // From here on `server`, which must outlive this object, ends in good order; before, there is
  // nobody to tell.
  void Serving(ParameterServer* server) { server_ = server; }

  // The first signal that came, or 0.
  int signal() const { return signal_; }

 private:
  int AwaitSignal() {
    const sigset_t signals = SignalsToWaitFor();
    int signal = 0;
    do {
      sigwait(&signals, &signal);
    } while (signal == WakingSignal() && !done_);
    return signal;
  }

  void Watch() {
    int signal = AwaitSignal();
    if (done_) return;
    NoteInterrupt(signal);
    signal_ = signal;
    health_->SetServing(false);
    ParameterServer* const server = server_;
    if (server == nullptr) {
      PrintError("ps_server", absl::StrCat("told to end by ", SignalName(signal)));
      _exit(kSignalled + signal);
    }
    const absl::Status asked = server->Drain(signal);
    if (!asked.ok()) {
      server->Stop(
          absl::CancelledError(absl::StrCat("the server was told to end by ", SignalName(signal))));
    }
    do {
      signal = AwaitSignal();
    } while (!done_ && !NoteInterrupt(signal));
    if (!done_) _exit(kSignalled + signal);
  }

  const std::shared_ptr<GrpcHealth> health_;
  std::atomic<bool> done_{false};
  std::atomic<int> signal_{0};
  std::atomic<ParameterServer*> server_{nullptr};
  std::thread thread_;  // last: uses all of the above
};

struct Flags {
  std::string listen = absl::GetFlag(FLAGS_listen);
  std::string port_file = UserPath(absl::GetFlag(FLAGS_port_file));
  std::string master = absl::GetFlag(FLAGS_master);
  int server_tasks = absl::GetFlag(FLAGS_server_tasks);
  int number = -1;  // among the job's servers, where the launcher counts them
  std::string run_id = absl::GetFlag(FLAGS_run_id);
  int attempt = absl::GetFlag(FLAGS_attempt);
  std::string metrics_json = UserPath(absl::GetFlag(FLAGS_metrics_json));
  std::string event_log = UserPath(absl::GetFlag(FLAGS_event_log));
  int64_t max_memory = absl::GetFlag(FLAGS_max_memory).bytes;
  int64_t max_message = absl::GetFlag(FLAGS_max_message).bytes;
  absl::Duration timeout = absl::GetFlag(FLAGS_timeout);
  absl::Duration failure_timeout = absl::GetFlag(FLAGS_failure_timeout);
  int metrics_port = absl::GetFlag(FLAGS_metrics_port);
  std::string metrics_port_file = UserPath(absl::GetFlag(FLAGS_metrics_port_file));
  Credentials credentials;
};

// What is not given by flags, in a job whose launcher counts this server. Flags win.
absl::Status AskLauncher(Flags* flags) {
  if (flags->server_tasks == 0) return absl::OkStatus();
  GS_ASSIGN_OR_RETURN(const LaunchEnvironment environment,
                      DetectLaunchEnvironment(EnvironmentVariable, LauncherProcess));
  GS_ASSIGN_OR_RETURN(const TaskRole role, RoleOfTask(environment, flags->server_tasks));
  GS_RETURN_IF_ERROR(ExpectRole(role, flags->server_tasks, /*is_server=*/true));
  flags->number = role.number;
  if (flags->master.empty()) flags->master = environment.master.value_or("");
  if (flags->master.empty()) {
    return absl::InvalidArgumentError(
        "--master: expected host:port of rank 0, as the launcher does not say it, found nothing");
  }
  if (flags->run_id.empty()) flags->run_id = environment.run_id.value_or("");
  if (flags->attempt < 0) flags->attempt = environment.attempt;
  return absl::OkStatus();
}

void Notice(const std::string& text) { PrintNotice("ps_server", text); }

// Waits for the master's name to be found.
absl::StatusOr<LocalAddresses> FindHere(const Flags& flags, Deadline deadline) {
  LocalAddressOptions options;
  options.master = flags.master;
  options.open = CheckListener(flags.credentials, "0.0.0.0:0").ok();
  options.deadline = deadline;
  options.notice = Notice;
  return FindLocalAddress(options);
}

absl::Status ChooseListen(const LocalAddresses& here, Flags* flags) {
  if (flags->listen.empty()) flags->listen = absl::StrCat(here.address, ":0");
  return CheckListener(flags->credentials, flags->listen);
}

// As peers reach this server, which may listen at all addresses.
absl::StatusOr<std::string> ReachableAddress(const Flags& flags, const LocalAddresses& here,
                                             const std::string& bound) {
  GS_ASSIGN_OR_RETURN(const HostPort host_port, ParseHostPort(bound));
  if (host_port.host != "0.0.0.0" && host_port.host != "::") return bound;
  if (flags.master.empty()) return bound;
  return absl::StrCat(here.address, ":", host_port.port);
}

// Rank 0's store, null without --master, and which run to serve.
struct Master {
  std::shared_ptr<ConnectedStore> store;
  StoreRun run;
  std::string key;  // of the job
};

absl::StatusOr<Master> AskMaster(const Flags& flags, const LocalAddresses& here,
                                 Deadline deadline) {
  Master master;
  master.run = {flags.run_id, std::max(flags.attempt, 0)};
  if (flags.master.empty()) return master;
  StorePass pass;
  pass.server = true;
  pass.run_id = flags.run_id;
  pass.attempt = flags.attempt;
  GS_ASSIGN_OR_RETURN(master.store,
                      EnterStore(here.store, flags.credentials, &pass, deadline,
                                 FailureTimeout(flags.failure_timeout, flags.timeout), Notice));
  master.key = pass.key;
  GS_ASSIGN_OR_RETURN(master.run, AskForRun(*master.store, deadline));
  if (!flags.run_id.empty() && flags.run_id != master.run.run_id) {
    return absl::InvalidArgumentError(absl::StrCat("--run_id: expected the store's, \"",
                                                   master.run.run_id, "\", or none, found \"",
                                                   flags.run_id, "\""));
  }
  if (flags.attempt >= 0 && flags.attempt != master.run.attempt) {
    return absl::InvalidArgumentError(absl::StrCat("--attempt: expected the store's, ",
                                                   master.run.attempt, ", or none, found ",
                                                   flags.attempt));
  }
  return master;
}

// Takes the place `number` under <run_id>/<attempt>/server/, or the first free one if that is -1.
// Returns its number.
absl::StatusOr<int> Register(const Master& master, const std::string& address, int number,
                             Deadline deadline) {
  for (int i = std::max(number, 0);; ++i) {
    GS_ASSIGN_OR_RETURN(const std::string holder,
                        master.store->SetIfAbsent(RegisteredKey(master.run, i), address, deadline));
    if (holder == address) return i;
    if (number >= 0) {
      return absl::AlreadyExistsError(
          absl::StrCat("expected to be server ", number, " of the run, found ", holder, " there"));
    }
  }
}

// The flags that have an effect only beside others.
std::vector<FlagEffect> FlagEffects() {
  const FlagCase has_page = {"metrics_port", false, {"-1"}};
  return {{"metrics_host", {has_page}}, {"metrics_port_file", {has_page}, {""}}};
}

absl::Status CheckFlags(const Flags& flags) {
  if (const auto listen = ParseHostPort(flags.listen); !flags.listen.empty() && !listen.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--listen: ", listen.status().message()));
  }
  if (!flags.master.empty()) {
    if (const auto master = ParseHostPort(flags.master); !master.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--master: ", master.status().message()));
    }
  }
  if (flags.attempt < -1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--attempt: expected at least 0, found ", flags.attempt));
  }
  // Chunks, however small, may come as many as that together.
  if (flags.max_message < static_cast<int64_t>(kMostBytesTogether) ||
      flags.max_message > std::numeric_limits<int>::max()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--max_message: expected 1MiB to 2GiB less one byte, found ", flags.max_message));
  }
  if (flags.metrics_port < -1 || flags.metrics_port > 65535) {
    return FlagError("metrics_port", "a port up to 65535, 0 or -1",
                     absl::StrCat(flags.metrics_port));
  }
  GS_RETURN_IF_ERROR(CheckDistinct({{"port_file", flags.port_file},
                                    {"metrics_port_file", flags.metrics_port_file},
                                    {"metrics_json", flags.metrics_json},
                                    {"event_log", flags.event_log}},
                                   /*inputs=*/{}));
  GS_RETURN_IF_ERROR(CheckWritable("port_file", flags.port_file));
  GS_RETURN_IF_ERROR(CheckWritable("metrics_port_file", flags.metrics_port_file));
  GS_RETURN_IF_ERROR(CheckWritable("metrics_json", flags.metrics_json));
  if (flags.timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat("--timeout: expected a time above 0, found ",
                                                   absl::FormatDuration(flags.timeout)));
  }
  if (flags.failure_timeout < absl::Milliseconds(100)) {
    return FlagError("failure_timeout", "at least 100ms",
                     absl::FormatDuration(flags.failure_timeout));
  }
  return absl::OkStatus();
}

// Before anybody is asked for anything.
absl::Status ReadCredentials(Flags* flags) {
  const std::string key = EnvironmentVariable(kJobKeyVariable).value_or("");
  GS_ASSIGN_OR_RETURN(flags->credentials, CredentialsFromFlags(key));
  return flags->listen.empty() ? absl::OkStatus()
                               : CheckListener(flags->credentials, flags->listen);
}

int Complain(int code, absl::string_view what, const absl::Status& status) {
  PrintError("ps_server",
             absl::StrCat(what, code == 2 ? std::string(status.message()) : status.ToString()));
  return code;
}

// For why the server cannot begin: 2 unless others are to blame.
int Complain(absl::string_view what, const absl::Status& status) {
  return Complain(FailedByOthers(status) ? 1 : 2, what, status);
}

absl::Status AtMaster(const Flags& flags, const absl::Status& status) {
  if (status.ok() || BeginsWithCulprit(status.message())) return status;
  const std::string end =
      !absl::IsDeadlineExceeded(status)
          ? ""
          : absl::StrCat("; --timeout=", absl::FormatDuration(flags.timeout), " ended the wait");
  return absl::Status(status.code(),
                      absl::StrCat("--master=", flags.master, ": ", status.message(), end));
}

// Says where the server is, to whoever should know.
absl::Status Announce(const Flags& flags, const Master& master, const std::string& address,
                      ParameterServer* server, Deadline deadline) {
  if (!flags.port_file.empty()) {
    GS_RETURN_IF_ERROR(WriteFileAtomically(flags.port_file, address + "\n"));
  }
  std::printf("listening on %s\n", address.c_str());
  std::fflush(stdout);
  if (master.store == nullptr) return absl::OkStatus();
  const absl::StatusOr<int> number = Register(master, address, flags.number, deadline);
  return AtMaster(
      flags, number.ok() ? server->JoinRun(master.store->address(), *number) : number.status());
}

// The page of `server`, which must outlive it; null unless it is wanted.
absl::StatusOr<std::unique_ptr<MetricsServer>> ShowMetrics(const Flags& flags,
                                                           const std::string& run_id,
                                                           const ParameterServer& server) {
  if (flags.metrics_port < 0) return std::unique_ptr<MetricsServer>();
  MetricsServerOptions options;
  options.host = absl::GetFlag(FLAGS_metrics_host);
  options.port = flags.metrics_port;
  options.collect = [&server, run_id] { return MetricsOf(server.stats(), run_id); };
  GS_ASSIGN_OR_RETURN(std::unique_ptr<MetricsServer> page, MetricsServer::Start(options));
  if (!flags.metrics_port_file.empty()) {
    GS_RETURN_IF_ERROR(WriteFileAtomically(flags.metrics_port_file, page->address() + "\n"));
  }
  std::printf("metrics at http://%s/metrics\n", page->address().c_str());
  std::fflush(stdout);
  return page;
}

int Main(int argc, char** argv) {
  FlagOptions flag_options;
  flag_options.usage = "ps_server [flags]: serves parameters to the workers of one training job.";
  flag_options.version = VersionText("ps_server");
  const ParsedFlags parsed = ParseFlagsWithOriginsOrExit(argc, argv, flag_options);
  OutliveReaders();
  if (!parsed.positional.empty()) {
    return Complain(2, "",
                    absl::InvalidArgumentError(
                        absl::StrCat("expected flags only, found \"", parsed.positional[0], "\"")));
  }
  Flags flags;
  const absl::StatusOr<LogFormat> log_format = ParseLogFormat(absl::GetFlag(FLAGS_log_format));
  if (!log_format.ok()) return Complain(2, "", log_format.status());
  SetLog({*log_format, /*rank=*/-1, /*server=*/-1, /*step=*/nullptr});
  absl::Status status = AskLauncher(&flags);
  if (status.ok() && absl::GetFlag(FLAGS_reflection)) status = LoadGrpcReflection();
  if (status.ok()) status = CheckFlags(flags);
  if (status.ok()) status = CheckFlagEffects(FlagEffects(), parsed.flags);
  if (!status.ok()) return Complain(2, "", status);
  if (flags.max_memory == 0)
    flags.max_memory = static_cast<int64_t>(AvailableMemory().bytes / 4 * 3);

  gpr_set_log_function([](gpr_log_func_args*) {});  // what fails comes back as a status
  const sigset_t signals = SignalsToWaitFor();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // before any thread starts
  RaiseFileLimit();
  // Credentials are gRPC's, so they start threads.
  if (const absl::Status read = ReadCredentials(&flags); !read.ok()) return Complain(2, "", read);
  absl::StatusOr<std::unique_ptr<EventFile>> events = std::unique_ptr<EventFile>();
  if (!flags.event_log.empty()) events = EventFile::Create(flags.event_log);
  if (!events.ok()) return Complain(2, "--event_log: ", events.status());

  const auto health = std::make_shared<GrpcHealth>();
  std::unique_ptr<ParameterServer> server;
  SignalWatch watch(health);
  const Deadline found = Deadline::In(flags.timeout);  // by which the master is, and has answered
  const absl::StatusOr<LocalAddresses> here = FindHere(flags, found);
  if (!here.ok()) return Complain("", AtMaster(flags, here.status()));
  if (const absl::Status chosen = ChooseListen(*here, &flags); !chosen.ok()) {
    return Complain(2, "", chosen);
  }
  const absl::StatusOr<Master> master = AskMaster(flags, *here, found);
  if (!master.ok()) return Complain("", AtMaster(flags, master.status()));
  ServerOptions options;
  if (*events != nullptr) {
    options.on_event = [&events](const ServerEvent& event) { (*events)->Add(event); };
  }
  GrpcLinkOptions grpc;
  grpc.credentials = flags.credentials;
  grpc.failure_timeout = flags.failure_timeout;
  grpc.max_message_bytes = static_cast<int>(flags.max_message);
  grpc.health = health;
  TcpLinkOptions tcp;
  tcp.credentials = flags.credentials;
  tcp.failure_timeout = flags.failure_timeout;
  tcp.max_payload_bytes = static_cast<uint64_t>(flags.max_message);
  options.link = NewServerLink(grpc, tcp);
  options.listen = flags.listen;
  options.run_id = master->run.run_id;
  options.attempt = master->run.attempt;
  options.timeout = flags.timeout;
  // Workers wait as long for each other before they say hello, and name those that are missing.
  if (flags.master.empty()) options.arrival_timeout = 2 * flags.timeout;
  options.failure_timeout = flags.failure_timeout;
  options.limits.max_memory = flags.max_memory;
  options.limits.max_message = flags.max_message;
  options.limits.key = master->key;
  options.limits.proof = true;
  options.limits.credentials = flags.credentials;
  absl::StatusOr<std::unique_ptr<ParameterServer>> started = ParameterServer::Start(options);
  if (!started.ok()) return Complain(2, "--listen: ", started.status());
  server = *std::move(started);
  const auto page = ShowMetrics(flags, master->run.run_id, *server);
  if (!page.ok()) return Complain(2, "--metrics_port: ", page.status());
  const absl::StatusOr<std::string> address = ReachableAddress(flags, *here, server->address());
  if (!address.ok()) return Complain(2, "--listen: ", address.status());
  health->SetServing(true);  // before workers find it, who may be at work before Announce() returns
  if (const absl::Status status = Announce(flags, *master, *address, server.get(), found);
      !status.ok()) {
    return Complain("", status);
  }

  watch.Serving(server.get());
  const absl::Status ended = server->Wait();
  health->SetServing(false);
  const ServerStats stats = server->stats();
  if (stats.workers > 0) SetLog({*log_format, /*rank=*/-1, stats.server, /*step=*/nullptr});
  if (*events != nullptr) {
    const absl::Status written = (*events)->Close();
    if (!written.ok()) return Complain(1, "--event_log: ", written);
  }
  if (!flags.metrics_json.empty()) {
    const absl::Status written = WriteServerMetrics(stats, *address, flags.metrics_json);
    if (!written.ok()) return Complain(1, "--metrics_json: ", written);
  }
  const int signal = watch.signal();
  if (!ended.ok()) return Complain(signal == 0 ? 1 : kSignalled + signal, "", ended);
  std::printf("served %ld steps to %d workers: %.1f MB received, %.1f MB sent%s\n",
              static_cast<long>(stats.steps), stats.workers,
              static_cast<double>(stats.rx_bytes) * 1e-6,
              static_cast<double>(stats.tx_bytes) * 1e-6,
              stats.steps > 0 && stats.rx_bytes == 0 ? "; gradients through shared memory" : "");
  if (signal == 0) return 0;
  PrintNotice("ps_server",
              absl::StrCat("ended by ", SignalName(signal), " after all workers said goodbye"));
  return kSignalled + signal;
}

}  // namespace
}  // namespace gradsync

int main(int argc, char** argv) {
  gradsync::SayWhyItEnds();
  gradsync::KeepFreedMemory();
  gradsync::UseSystemResolver();
  return gradsync::ExitCode("ps_server", gradsync::Main(argc, argv));
}
