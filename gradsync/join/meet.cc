#include "gradsync/join/meet.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/deadline.h"
#include "core/base/host_port.h"
#include "core/base/local_address.h"
#include "core/base/secret_proof.h"
#include "core/base/status_macros.h"
#include "core/base/write_file.h"
#include "core/group/key_value_store.h"
#include "core/group/liveness.h"
#include "core/group/store_door.h"
#include "core/group/store_run.h"

namespace gradsync {
// A rank begins to be watched before it waits for anybody, so that set-up is watched too.
absl::Status Meeting::Watch(const MeetOptions& options,
                            const std::shared_ptr<ConnectedStore>& connected, Deadline deadline) {
  const absl::Duration timeout = group_.failure_timeout;
  if (timeout == absl::InfiniteDuration()) return absl::OkStatus();
  HeartbeatOptions heartbeat;
  heartbeat.store = group_.store;
  heartbeat.key = RankBeatKey(group_.Key(""), group_.rank);
  heartbeat.activity = options.activity;
  heartbeat.failure_timeout = timeout;
  if (connected == nullptr) {
    WatchdogOptions watchdog;
    watchdog.store = group_.store;
    watchdog.prefix = group_.Key("");
    watchdog.world_size = group_.world_size;
    watchdog.failure_timeout = timeout;
    watchdog.obstacle = GrpcStoreServer::WhyNobodyCanCome;
    watchdog_ = std::make_unique<Watchdog>(std::move(watchdog));
  } else {
    heartbeat.on_silence = [connected, reason = LostStoreHolder(connected->address(), timeout)] {
      connected->Abandon(reason);
    };
  }
  GS_ASSIGN_OR_RETURN(heartbeat_, Heartbeat::Start(heartbeat, deadline));
  if (connected != nullptr) presence_ = connected->Attend(GoneKey(heartbeat.key));
  return absl::OkStatus();
}

void Meeting::AddServer(absl::string_view address) {
  if (watchdog_ != nullptr) watchdog_->AddServer(address);
}

void Meeting::StopBeating() {
  if (heartbeat_ != nullptr) heartbeat_->Leave();
  heartbeat_.reset();
  presence_.reset();  // after the last beat, which says that this rank has left
}

void Meeting::Unwatch() {
  watchdog_.reset();
  StopBeating();
}

absl::Status Meeting::Leave() {
  StopBeating();
  if (group_.rank == 0) {
    const absl::Status left = AwaitOthers();
    watchdog_.reset();
    return left;
  }
  // Farewells are not answered if rank 0 is gone already.
  group_.store
      ->Set(group_.Key(absl::StrCat("left/", group_.rank)), "", Deadline::In(absl::Seconds(5)))
      .IgnoreError();
  return absl::OkStatus();
}

// One that is lost meanwhile fails the group, and with it these waits. One that is alive and does
// not leave is none of the others' business.
absl::Status Meeting::AwaitOthers() {
  absl::Duration patience = absl::Seconds(5);
  if (watchdog_ != nullptr) {
    patience = std::max(patience, group_.failure_timeout + absl::Seconds(2));
  }
  const Deadline deadline = Deadline::In(patience);
  for (int rank = 1; rank < group_.world_size; ++rank) {
    const absl::Status left =
        group_.store->Get(group_.Key(absl::StrCat("left/", rank)), deadline).status();
    if (absl::IsAborted(left)) return left;
  }
  return absl::OkStatus();
}

std::function<absl::Status(const std::string& address)> WriteAddressTo(const std::string& path) {
  if (path.empty()) return nullptr;
  return [path](const std::string& address) { return WriteFileAtomically(path, address + "\n"); };
}

namespace {

StoreDoorOptions DoorOf(const MeetOptions& options, const std::string& key) {
  StoreDoorOptions door;
  door.key = key;
  door.run_id = options.run_id;
  door.attempt = options.attempt;
  door.workers = options.world_size;
  door.servers = options.servers;
  return door;
}

// Without TLS, a secret or --insecure a process may listen for its own host alone.
bool MayBeReached(const Credentials& credentials) {
  return credentials.server == nullptr || CheckListener(credentials, "0.0.0.0:0").ok();
}

LocalAddressOptions WhereOf(const MeetOptions& options, Deadline deadline) {
  LocalAddressOptions where;
  where.master = options.master;
  where.interface = options.interface;
  where.open = MayBeReached(options.credentials);
  where.deadline = deadline;
  where.notice = options.notice;
  return where;
}

// DEADLINE_EXCEEDED with the flags that it is about.
absl::Status InTime(const absl::Status& status, const MeetOptions& options) {
  if (!absl::IsDeadlineExceeded(status)) return status;
  return absl::DeadlineExceededError(
      absl::StrCat("--master=", options.master, ": ", status.message(),
                   "; --timeout=", absl::FormatDuration(options.timeout), " ended the wait"));
}

}  // namespace

absl::Status Meeting::Explain(const absl::Status& status) const {
  if (!absl::IsDeadlineExceeded(status) || group_.store_address.empty()) return status;
  std::string where = absl::StrCat("rank 0 listens at ", absl::StrJoin(listens_, ", "));
  if (listens_.empty()) {
    where = absl::StrCat("rank 0's store is at ", group_.store_address);
    const absl::StatusOr<HostPort> store = ParseHostPort(group_.store_address);
    const std::string host = store.ok() ? DescribeHost(store->host) : "";
    if (!host.empty()) absl::StrAppend(&where, " (", host, ")");
  }
  return absl::DeadlineExceededError(
      absl::StrCat(status.message(), "; --timeout=", absl::FormatDuration(group_.timeout),
                   " ended the wait; ", where));
}

absl::Status CheckMeeting(const MeetOptions& options) {
  if (options.world_size < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--world_size: expected at least 1, found ", options.world_size));
  }
  if (options.rank < 0 || options.rank >= options.world_size) {
    return absl::InvalidArgumentError(absl::StrCat("--rank: expected 0 to ", options.world_size - 1,
                                                   " with --world_size=", options.world_size,
                                                   ", found ", options.rank));
  }
  if (options.master.empty() && options.world_size > 1) {
    return absl::InvalidArgumentError(
        "--master: expected host:port of rank 0 for more than one worker, found nothing");
  }
  if (!options.master.empty() && !ParseHostPort(options.master).ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--master: expected host:port, found \"", options.master, "\""));
  }
  return absl::OkStatus();
}

absl::StatusOr<Meeting> Meet(const MeetOptions& options) {
  GS_RETURN_IF_ERROR(CheckMeeting(options));
  Meeting meeting;
  WorkerGroup& group = meeting.group_;
  group.rank = options.rank;
  group.world_size = options.world_size;
  group.run_id = options.run_id;
  group.attempt = options.attempt;
  group.timeout = options.timeout;
  group.failure_timeout = FailureTimeout(options.failure_timeout, options.timeout);
  group.credentials = options.credentials;
  group.recorder = options.recorder;
  const Deadline deadline = Deadline::In(group.timeout);
  const LocalAddressOptions where = WhereOf(options, deadline);
  if (options.rank != 0 || options.master.empty()) {
    const absl::StatusOr<LocalAddresses> here = FindLocalAddress(where);
    if (!here.ok()) return InTime(here.status(), options);
    group.address = here->address;
    group.store_address = here->store;
  }
  if (options.master.empty()) {
    group.store = NewInMemoryStore();
    return meeting;
  }
  if (options.rank == 0) {
    GS_ASSIGN_OR_RETURN(const LocalAddresses here, FindStoreAddresses(where));
    group.address = here.address;
    GS_RETURN_IF_ERROR(CheckListener(options.credentials, absl::StrCat(group.address, ":0")));
    group.key = NewJobKey();
    GS_ASSIGN_OR_RETURN(meeting.server_,
                        GrpcStoreServer::Start(here.listen, group.credentials,
                                               DoorOf(options, group.key), options.health));
    if (options.health != nullptr) options.health->SetServing(true);
    // Not by a connection: for one, a process without free descriptors waits in vain.
    group.store = meeting.server_->local();
    GS_ASSIGN_OR_RETURN(const HostPort store, ParseHostPort(here.store));
    group.store_address = FormatHostPort(store.host, meeting.server_->port());
    meeting.listens_ = here.listen;
    if (store.port == 0) meeting.listens_ = {group.store_address};
    GS_RETURN_IF_ERROR(meeting.Watch(options, /*connected=*/nullptr, deadline));
    GS_RETURN_IF_ERROR(
        PublishRun(*group.store, {group.run_id, group.attempt, options.world_size, options.servers},
                   deadline));
    if (options.on_store) GS_RETURN_IF_ERROR(options.on_store(group.store_address));
    return meeting;
  }
  // Though it may not listen itself: the job would be open to strangers.
  if (options.credentials.server != nullptr) {
    GS_RETURN_IF_ERROR(CheckListener(options.credentials, absl::StrCat(group.address, ":0")));
  }
  StorePass pass;
  pass.run_id = options.run_id;
  pass.attempt = options.attempt;
  pass.rank = options.rank;
  const absl::StatusOr<std::shared_ptr<ConnectedStore>> entered =
      EnterStore(group.store_address, group.credentials, &pass, deadline, group.failure_timeout,
                 options.notice);
  if (!entered.ok()) return InTime(entered.status(), options);
  const std::shared_ptr<ConnectedStore>& connected = *entered;
  group.key = pass.key;
  group.store = connected;
  GS_RETURN_IF_ERROR(meeting.Watch(options, connected, deadline));
  return meeting;
}

}  // namespace gradsync
