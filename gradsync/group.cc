#include "gradsync/group.h"

#include <atomic>
#include <exception>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/errors.h"
#include "core/base/status_macros.h"
#include "core/collectives/group_collectives.h"
#include "core/plan/job_spec.h"
#include "core/plan/plan.h"
#include "gradsync/group_impl.h"
#include "gradsync/join/environment_main.h"

namespace gradsync {
namespace {

std::atomic<Adapters (*)()> linked_adapters{nullptr};

absl::Duration FromChrono(std::chrono::milliseconds time) {
  return absl::Milliseconds(time.count());
}

absl::StatusOr<JoinOptions> ToJoinOptions(const Options& options) {
  PlaceByFlags place;
  if (options.rank >= 0) place.rank = options.rank;
  if (options.world_size >= 0) place.world_size = options.world_size;
  place.master = options.master;
  GS_ASSIGN_OR_RETURN(JoinOptions join, JoinOptionsFromEnvironment(/*server_tasks=*/0, place));
  MeetOptions& meet = join.meet;
  if (!options.run_id.empty()) meet.run_id = options.run_id;
  meet.interface = options.interface;
  if (options.on_listening) {
    meet.on_store = [on_listening = options.on_listening](const std::string& address) {
      return FromStatus(on_listening(address));
    };
  }
  meet.timeout = FromChrono(options.timeout);
  meet.failure_timeout = FromChrono(options.failure_timeout);
  if (meet.timeout <= absl::ZeroDuration()) {
    return FlagError("timeout", "a time above 0", absl::FormatDuration(meet.timeout));
  }
  if (meet.failure_timeout <= absl::ZeroDuration()) {
    return FlagError("failure_timeout", "a time above 0",
                     absl::FormatDuration(meet.failure_timeout));
  }
  if (!options.secret.empty()) meet.credentials.secret = options.secret;
  meet.credentials.insecure = options.insecure;
  JobSpecText text;
  text.topology = options.topology;
  text.update = options.update;
  text.link = options.link;
  text.compression = options.compression;
  GS_ASSIGN_OR_RETURN(join.sync.job, ParseJobSpec(text));
  join.sync.job.owners = options.owners;
  join.sync.job.connections = options.connections;
  join.sync.servers = options.servers;
  if (options.num_servers != 0) join.num_servers = options.num_servers;
  join.device.device = options.device;
  if (Adapters(*const adapters)() = linked_adapters) join.sync.adapters = adapters();
  return join;
}

// `text` as the type of a member of Options; false when it is none.
bool Parse(const std::string& text, std::string* value) {
  *value = text;
  return true;
}

bool Parse(const std::string& text, int* value) { return absl::SimpleAtoi(text, value); }

bool Parse(const std::string& text, bool* value) {
  *value = text == "true";
  return *value || text == "false";
}

bool Parse(const std::string& text, std::vector<std::string>* value) {
  *value = absl::StrSplit(text, ',', absl::SkipEmpty());
  return true;
}

bool Parse(const std::string& text, std::chrono::milliseconds* value) {
  absl::Duration time;
  if (!absl::ParseDuration(text, &time)) return false;
  *value = absl::ToChronoMilliseconds(time);
  return true;
}

template <typename T>
Status SetMember(const char* expected, const std::string& name, const std::string& text,
                 T* member) {
  T value{};
  if (!Parse(text, &value)) return ToStatus(FlagError(name, expected, text));
  *member = std::move(value);
  return Status();
}

}  // namespace

Status Options::Set(const std::string& name, const std::string& value) {
  constexpr char kNumber[] = "a number";
  if (name == "rank") return SetMember(kNumber, name, value, &rank);
  if (name == "world_size") return SetMember(kNumber, name, value, &world_size);
  if (name == "master") return SetMember("", name, value, &master);
  if (name == "run_id") return SetMember("", name, value, &run_id);
  if (name == "interface") return SetMember("", name, value, &interface);
  if (name == "topology") return SetMember("", name, value, &topology);
  if (name == "update") return SetMember("", name, value, &update);
  if (name == "link") return SetMember("", name, value, &link);
  if (name == "compression") return SetMember("", name, value, &compression);
  if (name == "servers") return SetMember("", name, value, &servers);
  if (name == "num_servers") return SetMember(kNumber, name, value, &num_servers);
  if (name == "owners") return SetMember(kNumber, name, value, &owners);
  if (name == "connections") return SetMember(kNumber, name, value, &connections);
  if (name == "device") return SetMember("", name, value, &device);
  if (name == "timeout") return SetMember("a time such as 30s", name, value, &timeout);
  if (name == "failure_timeout") {
    return SetMember("a time such as 10s", name, value, &failure_timeout);
  }
  if (name == "secret") return SetMember("", name, value, &secret);
  if (name == "insecure") return SetMember("true or false", name, value, &insecure);
  return Status(
      StatusCode::kInvalidArgument,
      absl::StrCat("expected the name of an option (gradsync/options.h), found \"", name, "\""));
}

Result<Options> Options::Parse(int count, const char* const* words) {
  Options options;
  for (int i = 0; i < count; ++i) {
    const std::string word = words[i];
    const size_t equals = word.find('=');
    if (equals == std::string::npos) {
      return Status(
          StatusCode::kInvalidArgument,
          absl::StrCat("expected NAME=VALUE, an option and its value, found \"", word, "\""));
    }
    Status set = options.Set(word.substr(0, equals), word.substr(equals + 1));
    if (!set.ok()) return set;
  }
  return options;
}

Status ToStatus(const absl::Status& status) {
  if (status.ok()) return Status();
  return Status(static_cast<StatusCode>(status.raw_code()), std::string(status.message()));
}

absl::Status FromStatus(const Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.code()), status.message());
}

bool SetAdapters(Adapters (*adapters)()) {
  linked_adapters = adapters;
  return true;
}

Group::Impl::Impl(std::unique_ptr<Member> member, absl::Duration timeout)
    : member_(std::move(member)), timeout_(timeout) {}

Group::Impl::~Impl() = default;

absl::Status Group::Impl::TakeSync(UpdateSite site) {
  if (over_) return absl::CancelledError("this rank has left its group");
  if (sync().update_site() != site) {
    return absl::InvalidArgumentError(absl::StrCat("--update: expected ", UpdateSiteName(site),
                                                   " for what is exchanged, found ",
                                                   UpdateSiteName(sync().update_site())));
  }
  if (std::exchange(taken_, true)) {
    return absl::FailedPreconditionError(
        "group: expected one whose gradients nothing exchanges yet, found one that has a model: "
        "use one for each (Group::New())");
  }
  return absl::OkStatus();
}

absl::StatusOr<GroupCollectives*> Group::Impl::CollectiveCalls() {
  if (over_) return absl::CancelledError("this rank has left its group");
  if (collectives_ == nullptr) {
    GS_ASSIGN_OR_RETURN(collectives_,
                        OpenCollectives(member_->options(), member_->group(), deadline()));
  }
  return collectives_.get();
}

absl::Status Group::Impl::Fail(const absl::Status& reason) {
  over_ = true;
  return member_->Fail(reason);
}

absl::Status Group::Impl::Leave() {
  if (over_.exchange(true)) return absl::OkStatus();
  // Collectives wait for all ranks too, and then nobody misses a backend that is not bound.
  const bool servers = member_->options().job.topology == Topology::kPs;
  if (taken_ || servers || collectives_ == nullptr) {
    if (!taken_) GS_RETURN_IF_ERROR(BindNothing());
    GS_RETURN_IF_ERROR(sync().Shutdown(deadline()));
  }
  if (collectives_ != nullptr) GS_RETURN_IF_ERROR(collectives_->Finish(deadline()));
  return member_->Leave();
}

// Only a backend that is bound can leave, and servers wait until it has.
absl::Status Group::Impl::BindNothing() {
  OptimizerSpec none;
  none.groups.emplace_back();
  PlanOptions options;
  options.world_size = member_->side_channel().world_size();
  GS_ASSIGN_OR_RETURN(const Plan plan, Plan::Create({{"nothing", {1}, {1}}}, {0}, none, options));
  return sync().Bind(plan, deadline()).status();
}

Group::Group(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Group::Group(Group&&) noexcept = default;

Group::~Group() {
  if (impl_ == nullptr || impl_->over()) return;
  if (std::uncaught_exceptions() > 0 || impl_->in_step()) {
    impl_->Fail(absl::CancelledError("this rank ended in the middle of its training"))
        .IgnoreError();
  } else {
    impl_->Leave().IgnoreError();
  }
}

Result<Group> Group::Join(const Options& options) {
  absl::StatusOr<JoinOptions> join = ToJoinOptions(options);
  if (!join.ok()) return ToStatus(join.status());
  const absl::Duration timeout = join->meet.timeout;
  absl::StatusOr<std::unique_ptr<Member>> member = gradsync::Join(*std::move(join));
  if (!member.ok()) return ToStatus(member.status());
  return Group(std::make_unique<Impl>(*std::move(member), timeout));
}

Result<Group> Group::New(const std::string& name) {
  absl::StatusOr<std::unique_ptr<Member>> member = impl_->member().NewGroup(name);
  if (!member.ok()) return Fail(ToStatus(member.status()));
  return Group(std::make_unique<Impl>(*std::move(member), impl_->timeout()));
}

int Group::rank() const { return impl_->member().group().rank; }
int Group::world_size() const { return impl_->member().group().world_size; }

Status Group::Fail(const Status& reason) { return ToStatus(impl_->Fail(FromStatus(reason))); }

Status Group::Leave() { return ToStatus(impl_->Leave()); }

}  // namespace gradsync
