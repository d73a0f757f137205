#include "ps_server/roster.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/sha256.h"
#include "core/base/status_macros.h"
#include "core/plan/codec.h"
#include "core/plan/kinds.h"
#include "core/plan/plan_proto.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/text_format.h"
#include "ps_server/hello_limits.h"

namespace gradsync {

absl::Status Guests::Enter(const std::shared_ptr<FrameStream>& stream) {
  if (guests_.size() >= kMost) {
    return absl::ResourceExhaustedError(
        absl::StrCat("this server has ", guests_.size(),
                     " streams that have not said hello, and takes no more"));
  }
  guests_.push_back({stream.get(), stream, MonotonicTime::Now()});
  return absl::OkStatus();
}

void Guests::Leave(const FrameStream* stream) {
  const auto found = std::find_if(guests_.begin(), guests_.end(),
                                  [&](const Guest& guest) { return guest.stream == stream; });
  if (found != guests_.end()) guests_.erase(found);
}

std::vector<std::shared_ptr<FrameStream>> Guests::TakeLate(absl::Duration patience) {
  const MonotonicTime latest = MonotonicTime::Now() - patience;
  std::vector<std::shared_ptr<FrameStream>> late;
  auto next = guests_.begin();
  for (; next != guests_.end() && next->since <= latest; ++next) {
    if (auto stream = next->alive.lock()) late.push_back(std::move(stream));
  }
  guests_.erase(guests_.begin(), next);
  return late;
}

namespace {

using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::TextFormat;

constexpr int kMaxWorldSize = 1 << 16;
constexpr int kMaxConnections = 256;
constexpr int kMaxCredit = 1 << 12;

// Of those who did not come, so that a message stays one line.
constexpr size_t kMostNamed = 16;

// What the worker is called.
int NumberOf(const proto::Hello& hello) {
  return hello.number() > 0 ? hello.number() - 1 : hello.rank();
}

// A number of each of `expected`, or none.
absl::Status CheckNumbers(absl::string_view field, int64_t expected, int64_t found) {
  if (found == 0 || found == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("hello: ", field, ": expected ", expected, " or none, found ", found));
}

std::string ValueText(const proto::Terms& terms, const FieldDescriptor& field, int index) {
  if (field.is_repeated() && index >= terms.GetReflection()->FieldSize(terms, &field))
    return "none";
  std::string text;
  TextFormat::PrintFieldValueToString(terms, &field, index, &text);
  return text;
}

// "credit: rank 0 has 2, rank 1 has 3": the first field, or element of one, that differs.
std::string FirstDifferentTerm(const proto::Terms& a, int number_a, const proto::Terms& b,
                               int number_b) {
  const auto* const descriptor = proto::Terms::descriptor();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const FieldDescriptor& field = *descriptor->field(i);
    const bool repeated = field.is_repeated();
    const int values = repeated ? std::max(a.GetReflection()->FieldSize(a, &field),
                                           b.GetReflection()->FieldSize(b, &field))
                                : 1;
    for (int value = 0; value < values; ++value) {
      const int index = repeated ? value : -1;
      const std::string text_a = ValueText(a, field, index);
      const std::string text_b = ValueText(b, field, index);
      if (text_a == text_b) continue;
      return absl::StrCat(field.name(), repeated ? absl::StrCat("[", index, "]") : "", ": rank ",
                          number_a, " has ", text_a, ", rank ", number_b, " has ", text_b);
    }
  }
  return absl::StrCat("rank ", number_b, " has fields that are unknown here");
}

absl::Status CheckRange(absl::string_view field, int64_t low, int64_t high, int64_t found) {
  if (found >= low && found <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("hello: ", field, ": expected ", low, " to ", high, ", found ", found));
}

absl::Status CheckConsistency(const proto::Terms& terms) {
  const absl::StatusOr<Consistency> consistency = ParseConsistency(terms.consistency());
  if (!consistency.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("hello: consistency: ", consistency.status().message()));
  }
  if (consistency->bulk() || (terms.update_site() == proto::OWNER && !terms.windows())) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("hello: consistency ", terms.consistency(),
                   ": expected update at the owner and no windows, found update at the ",
                   terms.update_site() == proto::OWNER ? "owner" : "worker",
                   terms.windows() ? " with windows" : ""));
}

absl::Status CheckTerms(const proto::Terms& terms) {
  GS_RETURN_IF_ERROR(CheckRange("world_size", 1, kMaxWorldSize, terms.world_size()));
  GS_RETURN_IF_ERROR(CheckRange("connections", 1, kMaxConnections, terms.connections()));
  GS_RETURN_IF_ERROR(CheckRange("credit", 1, kMaxCredit, terms.credit()));
  GS_RETURN_IF_ERROR(CheckRange("number of weights", 1, kMaxWorldSize, terms.weights_size()));
  GS_RETURN_IF_ERROR(CheckRange("server_index", 0, terms.weights_size() - 1, terms.server_index()));
  if (terms.update_site() != proto::WORKER && terms.update_site() != proto::OWNER) {
    return absl::InvalidArgumentError(
        absl::StrCat("hello: update_site: expected WORKER or OWNER, found ", terms.update_site()));
  }
  GS_RETURN_IF_ERROR(CheckWeights(terms));
  return CheckConsistency(terms);
}

// What only a hello that contradicts itself breaks, whatever the others say.
absl::Status CheckPlanFitsTerms(const proto::Hello& hello, const Plan& plan) {
  const proto::Terms& terms = hello.terms();
  if (plan.fingerprint() != terms.fingerprint() || plan.world_size() != terms.world_size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("hello of rank ", NumberOf(hello), ": expected a plan for ",
                     terms.world_size(), " workers with fingerprint ", terms.fingerprint(),
                     ", found one for ", plan.world_size(), " with ", plan.fingerprint()));
  }
  GS_ASSIGN_OR_RETURN(const Consistency consistency, ParseConsistency(terms.consistency()));
  if (!consistency.bulk()) {
    GS_RETURN_IF_ERROR(CheckUncompressed(
        plan.codec(), absl::StrCat("under ", terms.consistency(),
                                   " there is no mean that could be rounded once")));
  }
  if (terms.windows()) {
    GS_RETURN_IF_ERROR(
        CheckUncompressed(plan.codec(), "servers read their workers' memory, which is no wire"));
  }
  if (plan.slots().parameters > 0 && (terms.update_site() != proto::OWNER || !consistency.bulk())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "hello of rank ", NumberOf(hello),
        ": expected update at the owner under bsp where servers alone keep parameters, found ",
        "update at the ", terms.update_site() == proto::OWNER ? "owner" : "worker", " under ",
        ConsistencyName(consistency)));
  }
  return absl::OkStatus();
}

// What is said of the plan's size, and of the server's share of it.
absl::Status CheckMemory(const proto::Hello& hello, const Plan& plan, const ShardMap& shards,
                         const HelloLimits& limits) {
  // A frame's header takes some more.
  constexpr int64_t kHeaderBytes = 4096;
  for (const BucketPlan& bucket : plan.buckets()) {
    const int64_t chunk = 4 * bucket.layout.chunk_elements();
    if (hello.terms().windows() || chunk <= limits.max_message - kHeaderBytes) continue;
    return absl::ResourceExhaustedError(
        absl::StrCat("hello of rank ", NumberOf(hello), ": the plan has chunks of ", chunk,
                     " bytes, and this server receives messages of at most ", limits.max_message,
                     " (--max_message)"));
  }
  const int64_t bytes = ServerMemory(plan, hello.terms(), shards);
  if (bytes <= limits.max_memory) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "hello of rank ", NumberOf(hello), ": the plan, of ", plan.total_bytes(),
      " bytes of gradient, would take ", bytes, " bytes of this server's memory; expected at most ",
      limits.max_memory, " (--max_memory)"));
}

absl::Status CheckFields(const proto::Hello& hello) {
  GS_RETURN_IF_ERROR(CheckTerms(hello.terms()));
  GS_RETURN_IF_ERROR(CheckRange("server_number", 0, kMaxWorldSize, hello.server_number()));
  GS_RETURN_IF_ERROR(CheckRange("rank", 0, hello.terms().world_size() - 1, hello.rank()));
  GS_RETURN_IF_ERROR(
      CheckRange("connection", 0, hello.terms().connections() - 1, hello.connection()));
  if (hello.terms().windows() && hello.connection() == 0) {
    const int servers = hello.terms().weights_size();
    GS_RETURN_IF_ERROR(CheckRange("number of servers", servers, servers, hello.servers_size()));
  }
  GS_RETURN_IF_ERROR(CheckNumbers("numbers", hello.terms().world_size(), hello.numbers_size()));
  return CheckNumbers("server_numbers", hello.servers_size(), hello.server_numbers_size());
}

std::string TermsDigest(proto::Terms terms) {
  terms.clear_fingerprint();
  return Sha256Hex(terms.SerializeAsString());
}

absl::Status TermsDiffer(const proto::Hello& a, const proto::Hello& b) {
  if (a.terms().consistency() != b.terms().consistency()) {
    const auto name = [](const std::string& text) { return text.empty() ? "bsp" : text; };
    return absl::FailedPreconditionError(absl::StrCat(
        "consistency differs: rank ", NumberOf(a), " has ", name(a.terms().consistency()),
        ", rank ", NumberOf(b), " has ", name(b.terms().consistency())));
  }
  proto::Terms found = b.terms();
  found.set_fingerprint(a.terms().fingerprint());
  return absl::InvalidArgumentError(absl::StrCat(
      "workers differ: ", FirstDifferentTerm(a.terms(), NumberOf(a), found, NumberOf(b))));
}

absl::Status PlansDiffer(const CheckedHello& a, const CheckedHello* plan_of_others,
                         const CheckedHello& b) {
  std::string difference;
  if (plan_of_others != nullptr && b.plan != nullptr) {
    difference =
        absl::StrCat(": ", FirstDifference(plan_of_others->plan->Describe(), b.plan->Describe()));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "plans differ: rank ", NumberOf(a.hello), " has ", a.hello.terms().fingerprint(), ", rank ",
      NumberOf(b.hello), " has ", b.hello.terms().fingerprint(), difference));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const CheckedHello>> CheckHello(
    proto::Hello hello, const HelloLimits& limits,
    const std::shared_ptr<const CheckedHello>& known) {
  GS_RETURN_IF_ERROR(CheckHelloTexts(hello));
  GS_RETURN_IF_ERROR(CheckFields(hello));
  auto checked = std::make_shared<CheckedHello>();
  checked->terms_digest = TermsDigest(hello.terms());
  if (hello.connection() == 0) {
    GS_ASSIGN_OR_RETURN(Plan plan, PlanFromProto(hello.plan()));
    GS_RETURN_IF_ERROR(CheckPlanFitsTerms(hello, plan));
    hello.clear_plan();
    if (known != nullptr && known->terms_digest == checked->terms_digest &&
        known->plan->fingerprint() == plan.fingerprint()) {
      checked->plan = known->plan;
      checked->shards = known->shards;
    } else {
      checked->plan = std::make_shared<const Plan>(std::move(plan));
      GS_RETURN_IF_ERROR(CheckLayout(*checked->plan, hello.terms(), limits.max_memory));
      const std::vector<double> weights(hello.terms().weights().begin(),
                                        hello.terms().weights().end());
      GS_ASSIGN_OR_RETURN(ShardMap shards, ShardMap::Create(*checked->plan, weights));
      checked->shards = std::make_shared<const ShardMap>(std::move(shards));
    }
    GS_RETURN_IF_ERROR(CheckMemory(hello, *checked->plan, *checked->shards, limits));
  }
  checked->hello = std::move(hello);
  return checked;
}

absl::Status Roster::CheckPlace(const proto::Hello& hello) const {
  if (!run_id_.empty() && (hello.run_id() != run_id_ || hello.attempt() != attempt_)) {
    return absl::FailedPreconditionError(
        absl::StrCat("this server serves run \"", run_id_, "\" attempt ", attempt_,
                     ", found a worker of run \"", hello.run_id(), "\" attempt ", hello.attempt()));
  }
  const auto worker = workers_.find(hello.rank());
  if (worker != workers_.end() && hello.connection() >= 0 &&
      hello.connection() < static_cast<int>(worker->second.connections.size()) &&
      worker->second.connections[hello.connection()]) {
    return absl::FailedPreconditionError(absl::StrCat(
        Name(hello.rank()), " has connection ", hello.connection(), " already, found another"));
  }
  if (!complete()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("this server's run has all of its ", terms().world_size(),
                   " workers already, found another: rank ", hello.rank(), " of ",
                   hello.terms().world_size(), ", connection ", hello.connection()));
}

Roster::Difference Roster::Admit(const std::shared_ptr<const CheckedHello>& checked) {
  const proto::Hello& hello = checked->hello;
  if (first_ == nullptr) {
    run_id_ = hello.run_id();
    attempt_ = hello.attempt();
    first_ = checked;
  }
  if (checked->terms_digest != first_->terms_digest) {
    differs_ = true;
    return [first = first_, checked] { return TermsDiffer(first->hello, checked->hello); };
  }
  const bool same_plan = hello.terms().fingerprint() == first_->hello.terms().fingerprint();
  if (same_plan && with_plan_ == nullptr && checked->plan != nullptr) with_plan_ = checked;
  Worker& worker = workers_[hello.rank()];
  worker.connections.resize(terms().connections());
  worker.number = NumberOf(hello);
  worker.address = hello.address();
  if (hello.connection() == 0) worker.host = hello.host();
  if (hello.connection() == 0 && hello.rank() == 0) of_rank_0_ = checked;
  if (!same_plan) {
    differs_ = true;
    return [first = first_, with_plan = with_plan_, checked] {
      return PlansDiffer(*first, with_plan.get(), *checked);
    };
  }
  worker.connections[hello.connection()] = true;
  ++streams_;
  return nullptr;
}

bool Roster::complete() const {
  return !differs_ && with_plan_ != nullptr &&
         streams_ == int64_t{terms().world_size()} * terms().connections();
}

int Roster::Number(int rank) const {
  const auto worker = workers_.find(rank);
  if (worker != workers_.end()) return worker->second.number;
  // As another says on its first connection.
  if (with_plan_ == nullptr || rank < 0 || rank >= with_plan_->hello.numbers_size()) return rank;
  return with_plan_->hello.numbers(rank);
}

std::string Roster::Name(int rank) const {
  const auto worker = workers_.find(rank);
  const bool came = worker != workers_.end() && !worker->second.address.empty();
  return absl::StrCat("rank ", Number(rank),
                      came ? absl::StrCat(" (", worker->second.address, ")") : "");
}

std::string Roster::ServerNumbered(int number) const {
  const bool in_workers = with_plan_ != nullptr && with_plan_->hello.servers_in_workers();
  return absl::StrCat(in_workers ? "rank " : "server ", number);
}

std::string Roster::ServerName(int index) const {
  const auto& numbers = of_rank_0_->hello.server_numbers();
  const int number = numbers.empty() ? index : numbers[index];
  return absl::StrCat(ServerNumbered(number), " (", servers()[index], ")");
}

std::string Roster::Missing() const {
  if (first_ == nullptr) return "no worker said hello";
  std::vector<int> named;
  size_t missing = 0;
  for (int rank = 0; rank < terms().world_size(); ++rank) {
    const auto worker = workers_.find(rank);
    if (worker != workers_.end() &&
        absl::c_count(worker->second.connections, true) == terms().connections()) {
      continue;
    }
    if (++missing <= kMostNamed) named.push_back(Number(rank));
  }
  return absl::StrCat(
      missing == 1 ? "rank " : "ranks ", absl::StrJoin(named, ", "),
      missing > named.size() ? absl::StrCat(" and ", missing - named.size(), " more") : "",
      " did not say hello",
      terms().connections() == 1
          ? ""
          : absl::StrCat(" on each of ", terms().connections(), " connections"));
}

}  // namespace gradsync
