#include "ps_server/run_member.h"

#include <algorithm>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "core/base/deadline.h"
#include "core/base/status_macros.h"
#include "core/group/key_value_store.h"
#include "core/group/worker_group.h"

namespace gradsync {

namespace {

absl::StatusOr<std::shared_ptr<ConnectedStore>> Connect(const RunMemberOptions& options,
                                                        Deadline deadline) {
  return options.connect != nullptr
             ? options.connect(options.store, deadline, options.key)
             : ConnectStore(options.store, options.credentials, deadline, options.key);
}

WorkerGroup GroupOf(const RunMemberOptions& options, std::shared_ptr<KeyValueStore> store) {
  WorkerGroup group;
  group.rank = kNoRank;
  group.run_id = options.run_id;
  group.attempt = options.attempt;
  group.store = std::move(store);
  return group;
}

}  // namespace

absl::Status RunMember::AskToDrain(const RunMemberOptions& options, const DrainRequest& request) {
  const Deadline deadline = Deadline::In(absl::Seconds(5));
  GS_ASSIGN_OR_RETURN(const std::shared_ptr<ConnectedStore> store, Connect(options, deadline));
  return gradsync::AskToDrain(GroupOf(options, store), request, deadline).status();
}

absl::StatusOr<std::unique_ptr<RunMember>> RunMember::Create(const RunMemberOptions& options) {
  const absl::Duration timeout = options.failure_timeout;
  const absl::Duration patience = std::min(timeout / 2, options.patience);
  GS_ASSIGN_OR_RETURN(const std::shared_ptr<ConnectedStore> store,
                      Connect(options, Deadline::In(patience)));
  const WorkerGroup group = GroupOf(options, store);
  auto member = absl::WrapUnique(new RunMember());
  member->store_ = store;
  member->group_error_ = std::make_unique<GroupError>(group, options.on_failure);
  HeartbeatOptions heartbeat;
  heartbeat.store = store;
  heartbeat.key = ServerBeatKey(group.Key(""), options.server);
  heartbeat.activity = options.activity;
  heartbeat.failure_timeout = timeout;
  heartbeat.on_silence = [store, reason = LostStoreHolder(options.store, timeout)] {
    store->Abandon(reason);
  };
  GS_ASSIGN_OR_RETURN(member->heartbeat_, Heartbeat::Start(heartbeat, Deadline::In(patience)));
  member->presence_ = store->Attend(GoneKey(heartbeat.key));
  return member;
}

void RunMember::Leave() {
  group_error_->Leave();
  heartbeat_->Leave();
}

}  // namespace gradsync
