#include "ps_server/roster.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/text_format.h"
#include "plan/codec.h"
#include "plan/consistency.h"
#include "plan/plan_proto.h"
#include "ps_server/hello_limits.h"

namespace gradsync {
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

}  // namespace

absl::Status Roster::Check(const proto::Hello& hello) const {
  GS_RETURN_IF_ERROR(CheckHelloTexts(hello));
  if (!run_id_.empty() && (hello.run_id() != run_id_ || hello.attempt() != attempt_)) {
    return absl::FailedPreconditionError(
        absl::StrCat("this server serves run \"", run_id_, "\" attempt ", attempt_,
                     ", found a worker of run \"", hello.run_id(), "\" attempt ", hello.attempt()));
  }
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
  GS_RETURN_IF_ERROR(
      CheckNumbers("server_numbers", hello.servers_size(), hello.server_numbers_size()));
  if (hello.rank() < static_cast<int>(workers_.size())) {
    const std::vector<bool>& connections = workers_[hello.rank()].connections;
    if (hello.connection() < static_cast<int>(connections.size()) &&
        connections[hello.connection()]) {
      return absl::FailedPreconditionError(absl::StrCat(
          Name(hello.rank()), " has connection ", hello.connection(), " already, found another"));
    }
  }
  if (complete()) {
    return absl::FailedPreconditionError(
        absl::StrCat("this server's run has all of its ", workers_.size(),
                     " workers already, found another: rank ", hello.rank(), " of ",
                     hello.terms().world_size(), ", connection ", hello.connection()));
  }
  if (hello.connection() != 0) return absl::OkStatus();
  GS_ASSIGN_OR_RETURN(const Plan plan, PlanFromProto(hello.plan()));
  GS_RETURN_IF_ERROR(CheckPlanFitsTerms(hello, plan));
  return CheckMemory(hello, plan);
}

// Nothing has been allocated for the plan but the plan itself, which is as long as its message.
absl::Status Roster::CheckMemory(const proto::Hello& hello, const Plan& plan) const {
  // A frame's header takes some more.
  constexpr int64_t kHeaderBytes = 4096;
  for (const BucketPlan& bucket : plan.buckets()) {
    const int64_t chunk = 4 * bucket.layout.chunk_elements();
    if (hello.terms().windows() || chunk <= max_message_ - kHeaderBytes) continue;
    return absl::ResourceExhaustedError(absl::StrCat(
        "hello of rank ", NumberOf(hello), ": the plan has chunks of ", chunk,
        " bytes, and this server receives messages of at most ", max_message_, " (--max_message)"));
  }
  const int64_t bytes = ServerMemory(plan, hello.terms());
  if (bytes <= max_memory_) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "hello of rank ", NumberOf(hello), ": the plan, of ", plan.total_bytes(),
      " bytes of gradient, would take ", bytes, " bytes of this server's memory; expected at most ",
      max_memory_, " (--max_memory)"));
}

absl::Status Roster::Admit(const proto::Hello& hello) {
  if (!terms_.has_value()) {
    run_id_ = hello.run_id();
    attempt_ = hello.attempt();
    first_number_ = NumberOf(hello);
    terms_ = hello.terms();
    workers_.resize(terms_->world_size());
    for (Worker& worker : workers_) worker.connections.resize(terms_->connections());
  }
  if (hello.terms().consistency() != terms_->consistency()) {
    const auto name = [](const std::string& text) { return text.empty() ? "bsp" : text; };
    return absl::FailedPreconditionError(absl::StrCat(
        "consistency differs: rank ", first_number_, " has ", name(terms_->consistency()),
        ", rank ", NumberOf(hello), " has ", name(hello.terms().consistency())));
  }
  proto::Terms found = hello.terms();
  found.set_fingerprint(terms_->fingerprint());
  if (found.SerializeAsString() != terms_->SerializeAsString()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "workers differ: ", FirstDifferentTerm(*terms_, first_number_, found, NumberOf(hello))));
  }
  Worker& worker = workers_[hello.rank()];
  worker.number = NumberOf(hello);
  worker.address = hello.address();
  if (hello.connection() == 0) {
    worker.host = hello.host();
    TakeNames(hello);
  }
  GS_RETURN_IF_ERROR(AdmitPlan(hello));
  worker.connections[hello.connection()] = true;
  return absl::OkStatus();
}

void Roster::TakeNames(const proto::Hello& hello) {
  for (int rank = 0; rank < hello.numbers_size(); ++rank) {
    if (!workers_[rank].number.has_value()) workers_[rank].number = hello.numbers(rank);
  }
  servers_in_workers_ = hello.servers_in_workers();
  if (hello.rank() != 0) return;
  servers_ = {hello.servers().begin(), hello.servers().end()};
  server_numbers_ = {hello.server_numbers().begin(), hello.server_numbers().end()};
}

absl::Status Roster::AdmitPlan(const proto::Hello& hello) {
  std::string difference;
  if (hello.connection() == 0) {
    GS_ASSIGN_OR_RETURN(Plan plan, PlanFromProto(hello.plan()));
    if (plan_.has_value()) {
      difference = absl::StrCat(": ", FirstDifference(plan_->Describe(), plan.Describe()));
    } else if (terms_->fingerprint() == plan.fingerprint()) {
      plan_ = std::move(plan);
    }
  }
  if (hello.terms().fingerprint() == terms_->fingerprint()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("plans differ: rank ", first_number_, " has ", terms_->fingerprint(), ", rank ",
                   NumberOf(hello), " has ", hello.terms().fingerprint(), difference));
}

bool Roster::complete() const {
  return plan_.has_value() && std::all_of(workers_.begin(), workers_.end(), [](const Worker& w) {
           return std::all_of(w.connections.begin(), w.connections.end(), [](bool c) { return c; });
         });
}

int Roster::Number(int rank) const {
  if (rank < 0 || rank >= static_cast<int>(workers_.size())) return rank;
  return workers_[rank].number.value_or(rank);
}

std::string Roster::Name(int rank) const {
  const bool came = rank >= 0 && rank < static_cast<int>(workers_.size()) &&
                    !workers_[static_cast<size_t>(rank)].address.empty();
  return absl::StrCat("rank ", Number(rank),
                      came ? absl::StrCat(" (", workers_[rank].address, ")") : "");
}

std::string Roster::ServerNumbered(int number) const {
  return absl::StrCat(servers_in_workers_ ? "rank " : "server ", number);
}

std::string Roster::ServerName(int index) const {
  const int number = server_numbers_.empty() ? index : server_numbers_[index];
  return absl::StrCat(ServerNumbered(number), " (", servers_[index], ")");
}

std::string Roster::Missing() const {
  if (workers_.empty()) return "no worker said hello";
  std::vector<int> named;
  size_t missing = 0;
  for (size_t rank = 0; rank < workers_.size(); ++rank) {
    const std::vector<bool>& connections = workers_[rank].connections;
    if (std::count(connections.begin(), connections.end(), false) == 0) continue;
    if (++missing <= kMostNamed) named.push_back(Number(static_cast<int>(rank)));
  }
  return absl::StrCat(
      missing == 1 ? "rank " : "ranks ", absl::StrJoin(named, ", "),
      missing > named.size() ? absl::StrCat(" and ", missing - named.size(), " more") : "",
      " did not say hello",
      terms_->connections() == 1
          ? ""
          : absl::StrCat(" on each of ", terms_->connections(), " connections"));
}

}  // namespace gradsync
