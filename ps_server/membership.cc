#include "ps_server/membership.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace gradsync {
namespace {

// How often to look whether there is a store to try again, and how long another attempt may take.
constexpr absl::Duration kWatch = absl::Milliseconds(500);

// What this server is called, as a worker says it.
int NumberIn(const proto::Hello& hello) {
  return hello.server_number() > 0 ? hello.server_number() - 1 : hello.terms().server_index();
}

}  // namespace

Membership::~Membership() {
  End();
  JoinThread();
}

void Membership::Watch(absl::Duration failure_timeout, StoreConnector connect) {
  failure_timeout_ = failure_timeout;
  connect_ = std::move(connect);
  if (failure_timeout < absl::InfiniteDuration()) {
    MutexLock lock(&thread_mutex_);
    thread_ = Thread([this] { Seek(); });
  }
}

// From the first hello on, so that set-up is watched too. A server that cannot reach the store is
// watched by its streams alone, until it can.
void Membership::Seek() {
  mutex_.Lock();
  while (!ended_ && run_ == nullptr) {
    if (!MayBecome()) {
      changed_.WaitWithDeadline(&mutex_, Deadline::In(kWatch));
      continue;
    }
    mutex_.Unlock();
    Become().IgnoreError();
    mutex_.Lock();
  }
  mutex_.Unlock();
}

void Membership::JoinThread() {
  MutexLock lock(&thread_mutex_);
  if (thread_.joinable()) thread_.join();
}

bool Membership::KnowsRun() const { return !ended_ && !store_.empty() && number_.has_value(); }

bool Membership::MayBecome() const {
  return KnowsRun() && !joined_ && failure_timeout_ < absl::InfiniteDuration() &&
         next_attempt_.passed();
}

RunMemberOptions Membership::RunOptions() const {
  RunMemberOptions options;
  options.store = store_;
  options.run_id = options_.run_id;
  options.attempt = options_.attempt;
  options.server = *number_;
  options.key = options_.key;
  options.credentials = options_.credentials;
  return options;
}

absl::Status Membership::Become() {
  RunMemberOptions options;
  bool again = false;
  {
    MutexLock lock(&mutex_);
    if (!MayBecome()) return absl::OkStatus();
    options = RunOptions();
    options.activity = options_.activity;
    options.on_failure = options_.on_failure;
    joined_ = true;
    again = next_attempt_ != Deadline::At(MonotonicTime::InfinitePast());
  }
  options.failure_timeout = failure_timeout_;
  if (again) options.patience = std::min(options.patience, kWatch);
  options.connect = connect_;
  absl::StatusOr<std::unique_ptr<RunMember>> run = RunMember::Create(options);
  MutexLock lock(&mutex_);
  joined_ = run.ok();
  if (!run.ok()) {
    next_attempt_ = Deadline::In(failure_timeout_ / 2);
    return run.status();
  }
  run_ = *std::move(run);
  return absl::OkStatus();
}

absl::Status Membership::Join(const std::string& store, int server) {
  {
    MutexLock lock(&mutex_);
    store_ = store;
    number_ = server;
  }
  return Become();
}

void Membership::Learn(const proto::Hello& hello, const std::string& key) {
  MutexLock lock(&mutex_);
  options_.run_id = hello.run_id();
  options_.attempt = hello.attempt();
  options_.key = key;
  if (store_.empty()) store_ = hello.store();
  if (!number_.has_value()) number_ = NumberIn(hello);
  changed_.SignalAll();
}

absl::optional<int> Membership::number() const {
  MutexLock lock(&mutex_);
  return number_;
}

std::shared_ptr<RunMember> Membership::run() const {
  MutexLock lock(&mutex_);
  return run_;
}

bool Membership::member() const { return run() != nullptr; }

bool Membership::Report(const absl::Status& status) {
  const std::shared_ptr<RunMember> member = run();
  if (member == nullptr) return false;
  member->Report(status);
  return true;
}

std::string Membership::DescribeMissing() const {
  const std::shared_ptr<RunMember> member = run();
  return member == nullptr ? "" : member->DescribeMissing();
}

absl::Status Membership::AskToDrain(int signal, absl::string_view address) {
  RunMemberOptions options;
  {
    MutexLock lock(&mutex_);
    if (!KnowsRun()) {
      return absl::FailedPreconditionError("expected a run under way whose store is known");
    }
    options = RunOptions();
  }
  return RunMember::AskToDrain(
      options, {signal, absl::StrCat("server ", options.server, " (", address, ")")});
}

void Membership::End() {
  MutexLock lock(&mutex_);
  ended_ = true;
  changed_.SignalAll();
}

void Membership::Leave(const absl::Status& status) {
  JoinThread();
  std::shared_ptr<RunMember> run;
  {
    MutexLock lock(&mutex_);
    run.swap(run_);
  }
  if (run == nullptr) return;
  if (status.ok()) return run->Leave();
  // Else this server, which ends, would be what is missed. The group may know better already.
  if (absl::IsUnavailable(status)) run->Report(status);
}

}  // namespace gradsync
