#include "core/group/store_door.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/secret_proof.h"
#include "core/base/status_macros.h"

namespace gradsync {
namespace {

constexpr size_t kMaxQuoted = 100;

std::string Quoted(absl::string_view text) {
  return absl::StrCat("\"", text.substr(0, kMaxQuoted), text.size() > kMaxQuoted ? "..." : "",
                      "\"");
}

}  // namespace

absl::Status StoreDoor::CheckRun(const Comer& comer) const {
  const absl::string_view or_none = comer.server ? ", or none" : "";
  if (comer.run_id != options_.run_id && !(comer.server && comer.run_id.empty())) {
    return absl::FailedPreconditionError(absl::StrCat(
        "--run_id: expected the store's, ", Quoted(options_.run_id), or_none, ", found ",
        Quoted(comer.run_id), "; where the store is another job's, --master or MASTER_PORT gives ",
        "this one a port of its own"));
  }
  if (comer.attempt != options_.attempt && !(comer.server && comer.attempt < 0)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "--attempt: expected the store's, ", options_.attempt, or_none, ", found ", comer.attempt));
  }
  if (!comer.server && (comer.rank < 1 || comer.rank >= options_.workers)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--rank: expected a rank that the store's run of ", options_.workers,
                     " workers waits for, found ", comer.rank));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> StoreDoor::Join(const Comer& comer) {
  if (options_.key.empty()) return std::string();
  GS_RETURN_IF_ERROR(CheckRun(comer));
  MutexLock lock(&mutex_);
  if (!comer.server) {
    const auto [place, is_new] = workers_.try_emplace(comer.rank, comer.nonce);
    if (is_new || place->second == comer.nonce) return options_.key;
    return absl::AlreadyExistsError(
        absl::StrCat("rank ", comer.rank, " of run ", Quoted(options_.run_id),
                     " has come already, and this process is another: expected a free place, "
                     "perhaps the same command was started twice"));
  }
  if (servers_.count(comer.nonce) == 0) {
    if (options_.servers >= 0 && static_cast<int>(servers_.size()) >= options_.servers) {
      return absl::ResourceExhaustedError(
          absl::StrCat("run ", Quoted(options_.run_id), " expects ",
                       options_.servers == 0
                           ? "no servers that come by themselves, found one"
                           : absl::StrCat(options_.servers,
                                          " servers, which have come already, found another")));
    }
    servers_.insert(comer.nonce);
  }
  return options_.key;
}

absl::Status StoreDoor::Check(absl::string_view key) const {
  if (options_.key.empty() || SameSecret(key, options_.key)) return absl::OkStatus();
  return absl::PermissionDeniedError(
      key.empty() ? "the store is a job's that has a key, and the call brought none"
                  : "the store is a job's that has another key than the call's");
}

absl::Status StoreDoor::CheckPrefix(absl::string_view prefix) const {
  const std::string own =
      options_.key.empty() ? "" : absl::StrCat(options_.run_id, "/", options_.attempt, "/");
  if (!prefix.empty() && absl::StartsWith(prefix, own)) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("a failure: expected it for keys that begin with ",
                   own.empty() ? "something" : Quoted(own), ", found it for ", Quoted(prefix)));
}

}  // namespace gradsync
