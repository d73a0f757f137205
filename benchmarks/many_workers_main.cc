// What more workers cost: ranks by the dozen or the thousand, as threads of one process, which meet
// over a real store, bind, step and leave over gRPC or TCP, with what each phase takes of time, processor,
// memory, threads and files. Copy and try:
//
//   bazel run //benchmarks:many_workers
//   bazel run //benchmarks:many_workers -- --workers=256,1024 --topologies=ps:1 --link=tcp
//
// All ranks and servers share this machine's cores, so a phase takes at least their processor time
// over the cores: the columns of that say what a rank costs, those of time say whether anybody waits
// for more than a core. A row's last columns are exponents: of n in the total, from the row before.
// Each row runs in a process of its own, in which nobody gives signs of life: for each of them a rank
// looks at all threads of its process, which here are everybody's.
//
// Exit codes: 0; 1 a row failed; 2 bad flags.

#include <dirent.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "benchmarks/exchange/exact_input.h"
#include "benchmarks/exchange/exchange_plan.h"
#include "benchmarks/options/command_line.h"
#include "benchmarks/options/flag_checks.h"
#include "benchmarks/ranks/start_line.h"
#include "benchmarks/records/machine_info.h"
#include "benchmarks/records/terminal.h"
#include "core/base/deadline.h"
#include "core/base/errors.h"
#include "core/base/process_main.h"
#include "core/base/process_resources.h"
#include "core/base/status_macros.h"
#include "core/links/server_link.h"
#include "core/plan/job_spec.h"
#include "core/program/byte_sizes.h"
#include "core/program/program_main.h"
#include "gradsync/join/join.h"
#include "ps_server/server.h"

ABSL_FLAG(std::vector<std::string>, workers, (std::vector<std::string>{"16", "64", "256"}),
          "numbers of ranks");
ABSL_FLAG(std::vector<std::string>, topology,
          (std::vector<std::string>{"ring", "ps:1", "ps:4", "ps:16"}),
          "ring, or ps:K with K servers");
ABSL_FLAG(std::string, link, "grpc", "by what ranks talk: grpc or tcp");
ABSL_FLAG(gradsync::ByteSize, bytes, gradsync::ByteSize{400'000},
          "bytes of the gradient, in one bucket");
ABSL_FLAG(int, steps, 5, "exchanges; a row has their median");
ABSL_FLAG(absl::Duration, timeout, absl::Minutes(10), "of each wait for another rank");

namespace gradsync {
namespace {

constexpr char kUsage[] = "many_workers [flags]: what a rank costs, by the number of ranks.";
constexpr int kBadInput = 2;

struct Row {
  int workers = 0;
  int servers = 0;  // 0: a ring
};

std::string NameOf(const Row& row) {
  return row.servers == 0 ? "ring" : absl::StrCat("ps:", row.servers);
}

// Of this process.
struct Usage {
  double seconds = 0;  // of the clock
  double cpu = 0;      // s
  double memory = 0;   // bytes that are resident
  double threads = 0;
  double files = 0;
};

Usage UsageNow() {
  Usage usage;
  usage.seconds = MonotonicMicroseconds() * 1e-6;
  usage.cpu = CpuSeconds();
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    absl::string_view text = line;
    double value = 0;
    if (absl::ConsumePrefix(&text, "VmRSS:")) {
      if (absl::SimpleAtod(absl::StripSuffix(text, " kB"), &value)) usage.memory = value * 1024;
    } else if (absl::ConsumePrefix(&text, "Threads:")) {
      if (absl::SimpleAtod(text, &value)) usage.threads = value;
    }
  }
  if (DIR* const folder = opendir("/proc/self/fd")) {
    while (readdir(folder) != nullptr) ++usage.files;
    closedir(folder);
  }
  return usage;
}

// What all ranks together took.
struct Phases {
  Usage join;
  Usage bind;
  Usage step;  // the median in time
  Usage leave;
  Usage held;  // while they step: memory, threads and files
};

// Ranks wait here for each other, and for whoever measures.
class Barrier {
 public:
  explicit Barrier(int parties) : parties_(parties) {}

  void Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    const int64_t round = round_;
    if (++waiting_ == parties_) {
      waiting_ = 0;
      ++round_;
      all_.notify_all();
    }
    all_.wait(lock, [&] { return round_ != round; });
  }

 private:
  const int parties_;
  std::mutex mutex_;
  std::condition_variable all_;
  int waiting_ = 0;
  int64_t round_ = 0;
};

Deadline NewDeadline() { return Deadline::In(absl::GetFlag(FLAGS_timeout)); }

// The ranks and servers of one row.
class Job {
 public:
  explicit Job(const Row& row)
      : row_(row), barrier_(row.workers + 1), store_(promise_.get_future().share()) {}

  absl::StatusOr<Phases> Run() {
    GS_RETURN_IF_ERROR(StartServers());
    for (int step = 0; step <= absl::GetFlag(FLAGS_steps); ++step) {
      means_.emplace_back(Elements());
      FillMean(row_.workers, step, /*first=*/0, absl::MakeSpan(means_.back()));
    }
    statuses_.resize(row_.workers);
    std::vector<std::thread> ranks;
    const Usage none = UsageNow();
    for (int rank = 0; rank < row_.workers; ++rank) {
      ranks.emplace_back([this, rank] { statuses_[rank] = Rank(rank); });
    }
    Phases phases;
    phases.join = Phase();
    phases.bind = Phase();
    std::vector<Usage> steps;
    for (int step = 0; step < absl::GetFlag(FLAGS_steps); ++step) steps.push_back(Phase());
    phases.held = UsageNow();
    phases.held.memory -= none.memory;
    phases.held.threads -= none.threads;
    phases.held.files -= none.files;
    phases.leave = Phase();
    for (std::thread& rank : ranks) rank.join();
    for (const absl::Status& status : statuses_) GS_RETURN_IF_ERROR(status);
    std::sort(steps.begin(), steps.end(),
              [](const Usage& a, const Usage& b) { return a.seconds < b.seconds; });
    phases.step = steps[steps.size() / 2];
    return phases;
  }

 private:
  absl::Status StartServers() {
    for (int i = 0; i < row_.servers; ++i) {
      ServerOptions options;
      options.link = NewServerLink();
      options.timeout = absl::GetFlag(FLAGS_timeout);
      options.failure_timeout = absl::InfiniteDuration();
      GS_ASSIGN_OR_RETURN(auto server, ParameterServer::Start(options));
      addresses_.push_back(server->address());
      servers_.push_back(std::move(server));
    }
    return absl::OkStatus();
  }

  // From when all are at its beginning until all are at its end.
  Usage Phase() {
    barrier_.Wait();
    const Usage before = UsageNow();
    barrier_.Wait();
    const Usage after = UsageNow();
    Usage spent;
    spent.seconds = after.seconds - before.seconds;
    spent.cpu = after.cpu - before.cpu;
    return spent;
  }

  // Goes through all phases, so that nobody waits for it, and does nothing after a failure.
  absl::Status Rank(int rank) {
    absl::Status status;
    const auto phase = [&](const std::function<absl::Status()>& work) {
      barrier_.Wait();
      if (status.ok()) status = work();
      barrier_.Wait();
    };
    std::unique_ptr<Member> member;
    std::vector<GradBucket> buckets;
    phase([&] {
      absl::StatusOr<std::unique_ptr<Member>> joined = Join(OptionsOf(rank));
      if (joined.ok()) member = *std::move(joined);
      return joined.status();
    });
    phase([&]() -> absl::Status {
      ExchangeOptions exchange;
      exchange.rank = rank;
      exchange.world_size = row_.workers;
      exchange.bytes = exchange.bucket_bytes = absl::GetFlag(FLAGS_bytes).bytes;
      GS_ASSIGN_OR_RETURN(const Plan plan, ExchangePlan(exchange));
      GS_ASSIGN_OR_RETURN(buckets, member->sync().Bind(plan, NewDeadline()));
      return member->sync().BroadcastParameters(NewDeadline());
    });
    for (int i = 1; i <= absl::GetFlag(FLAGS_steps); ++i) {
      if (status.ok()) FillContribution(rank, i, /*first=*/0, Gradient(buckets));
      phase([&] {
        StepOptions step;
        step.step = i;
        step.lr = 1;
        return member->sync().Launch(step, 0).Wait(NewDeadline());
      });
      if (status.ok()) status = Verify(i, Gradient(buckets));
    }
    phase([&]() -> absl::Status {
      GS_RETURN_IF_ERROR(member->sync().Shutdown(NewDeadline()));
      return member->Leave();
    });
    return status;
  }

  static size_t Elements() {
    return static_cast<size_t>((absl::GetFlag(FLAGS_bytes).bytes + 3) / 4);
  }

  // Without the bucket's padding.
  static absl::Span<float> Gradient(const std::vector<GradBucket>& buckets) {
    return {buckets[0].grad.floats(), Elements()};
  }

  absl::Status Verify(int64_t step, absl::Span<const float> result) const {
    const int64_t wrong = CountWrong(result, means_[step]);
    if (wrong == 0) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat("step ", step, ": ", wrong, " elements are wrong"));
  }

  JoinOptions OptionsOf(int rank) {
    JoinOptions options;
    options.meet.rank = rank;
    options.meet.world_size = row_.workers;
    options.meet.timeout = absl::GetFlag(FLAGS_timeout);
    options.meet.failure_timeout = absl::InfiniteDuration();
    options.meet.master = rank == 0 ? "127.0.0.1:0" : store_.get();
    options.meet.on_store = [this](const std::string& address) {
      promise_.set_value(address);
      return absl::OkStatus();
    };
    options.sync.job.topology = row_.servers == 0 ? Topology::kRing : Topology::kPs;
    options.sync.job.link = *ParseLink(absl::GetFlag(FLAGS_link));
    options.sync.servers = addresses_;
    options.sync.job.servers = row_.servers;
    return options;
  }

  const Row row_;
  Barrier barrier_;
  std::promise<std::string> promise_;
  std::shared_future<std::string> store_;
  std::vector<std::unique_ptr<ParameterServer>> servers_;
  std::vector<std::string> addresses_;
  std::vector<std::vector<float>> means_;  // by step
  std::vector<absl::Status> statuses_;
};

// In a process of its own, which must have no other thread yet.
absl::StatusOr<Phases> RunApart(const Row& row) {
  int ends[2];
  if (pipe(ends) != 0) return absl::ErrnoToStatus(errno, "pipe");
  const pid_t child = fork();
  if (child < 0) return absl::ErrnoToStatus(errno, "fork");
  if (child == 0) {
    const absl::StatusOr<Phases> phases = Job(row).Run();
    if (!phases.ok()) PrintError("many_workers", phases.status().ToString());
    const bool told = phases.ok() && write(ends[1], &*phases, sizeof(Phases)) == sizeof(Phases);
    _exit(told ? 0 : 1);
  }
  close(ends[1]);
  Phases phases;
  const ssize_t size = read(ends[0], &phases, sizeof(Phases));
  close(ends[0]);
  int ended = 0;
  waitpid(child, &ended, 0);
  if (size != sizeof(Phases)) {
    return absl::AbortedError(absl::StrCat(NameOf(row), " of ", row.workers, " workers failed"));
  }
  return phases;
}

std::string Exponent(double before, double now, double growth) {
  return absl::StrFormat("%.2f", std::log(now / before) / std::log(growth));
}

std::vector<std::string> Cells(const Row& row, const Phases& now) {
  const double n = row.workers;
  const auto ms = [&](double seconds) { return Ms(seconds * 1e3); };
  const auto each = [&](double total) { return absl::StrFormat("%.1f", total / n); };
  return {NameOf(row),
          absl::StrCat(row.workers),
          ms(now.join.seconds),
          ms(now.bind.seconds),
          ms(now.step.seconds),
          ms(now.leave.seconds),
          ms(now.join.cpu / n),
          ms(now.bind.cpu / n),
          ms(now.step.cpu / n),
          ms(now.leave.cpu / n),
          absl::StrFormat("%.2f", now.held.memory / n / (1 << 20)),
          each(now.held.threads),
          each(now.held.files)};
}

std::vector<Column> Columns() {
  std::vector<Column> columns = {{"topology", Align::kLeft}, {"n"}};
  for (const char* kind : {"ms", "CPU ms\nper rank"}) {
    for (const char* phase : {"join", "bind", "step", "leave"}) {
      columns.push_back(
          {absl::StrCat(phase, "\n", kind), Align::kRight, phase == std::string("join")});
    }
  }
  columns.push_back({"MiB\nper rank", Align::kRight, true});
  columns.push_back({"threads\nper rank"});
  columns.push_back({"files\nper rank"});
  const char* const grows[] = {"join", "bind", "step", "leave", "memory"};
  for (const char* what : grows) {
    columns.push_back({absl::StrCat(what, "\n~ n^"), Align::kRight, what == grows[0]});
  }
  return columns;
}

absl::StatusOr<std::vector<Row>> RowsFromFlags() {
  GS_ASSIGN_OR_RETURN(const std::vector<int> workers,
                      ParseCounts("workers", absl::GetFlag(FLAGS_workers), kNoMost));
  std::vector<Row> rows;
  for (const std::string& topology : absl::GetFlag(FLAGS_topology)) {
    Row row;
    absl::string_view servers = topology;
    if (topology != "ring" && !(absl::ConsumePrefix(&servers, "ps:") &&
                                absl::SimpleAtoi(servers, &row.servers) && row.servers > 0)) {
      return FlagError("topology", "ring or ps:K", topology);
    }
    for (int n : workers) {
      row.workers = n;
      rows.push_back(row);
    }
  }
  if (absl::GetFlag(FLAGS_bytes).bytes < 1) return FlagError("bytes", "at least 1", "0");
  GS_RETURN_IF_ERROR(CheckAtLeast("steps", 1, absl::GetFlag(FLAGS_steps)));
  GS_RETURN_IF_ERROR(CheckNames("link", {absl::GetFlag(FLAGS_link)}, {"grpc", "tcp"}));
  return rows;
}

int Main(int argc, char** argv) {
  ParseFlagsOnly("many_workers", argc, argv, kUsage);
  const absl::StatusOr<std::vector<Row>> rows = RowsFromFlags();
  if (!rows.ok()) {
    PrintError("many_workers", rows.status().message());
    return kBadInput;
  }
  RaiseFileLimit();
  std::printf("%s\n", FormatMachine(DescribeMachine()).c_str());
  std::vector<std::vector<std::string>> table;
  absl::StatusOr<Phases> before;
  for (size_t i = 0; i < rows->size(); ++i) {
    const Row& row = (*rows)[i];
    const absl::StatusOr<Phases> now = RunApart(row);
    if (!now.ok()) {
      PrintError("many_workers", now.status().message());
      table.push_back({NameOf(row), absl::StrCat(row.workers), "failed"});
      before = now;
      continue;
    }
    std::vector<std::string> cells = Cells(row, *now);
    if (before.ok() && i > 0 && (*rows)[i - 1].servers == row.servers &&
        (*rows)[i - 1].workers < row.workers) {
      const double growth = static_cast<double>(row.workers) / (*rows)[i - 1].workers;
      for (const auto phase : {&Phases::join, &Phases::bind, &Phases::step, &Phases::leave}) {
        cells.push_back(Exponent((before.value().*phase).cpu, ((*now).*phase).cpu, growth));
      }
      cells.push_back(Exponent(before->held.memory, now->held.memory, growth));
    }
    table.push_back(cells);
    before = now;
    std::fprintf(stderr, "%s with %d workers: done\n", NameOf(row).c_str(), row.workers);
  }
  std::printf("%s", FormatTable(Columns(), table).c_str());
  const bool failed = std::any_of(table.begin(), table.end(),
                                  [](const auto& cells) { return cells.back() == "failed"; });
  return ExitCode("many_workers", failed ? 1 : 0);
}

}  // namespace
}  // namespace gradsync

int main(int argc, char** argv) {
  gradsync::KeepFreedMemory();  // as //worker does
  return gradsync::Main(argc, argv);
}
