#include "tools/worker_flags.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "core/base/status_macros.h"
#include "core/plan/job_spec.h"
#include "core/program/flags.h"
#include "core/program/program_main.h"
#include "core/program/yaml_flags.h"
#include "worker/effective_flags.h"

namespace gradsync {
namespace {

absl::string_view WithoutDashes(absl::string_view word) {
  return absl::StripPrefix(absl::StripPrefix(word, "-"), "-");
}

std::string NameAsWritten(absl::string_view word) {
  word = WithoutDashes(word);
  return std::string(word.substr(0, word.find('=')));
}

// As the flag is declared.
std::string NameOf(absl::string_view word) {
  return absl::StrReplaceAll(NameAsWritten(word), {{"-", "_"}});
}

// What the last --`flag` says, as the workers will take it; empty: there is none.
std::string LastValue(const std::vector<std::string>& words, absl::string_view flag) {
  std::string value;
  for (size_t i = 0; i < words.size(); ++i) {
    absl::string_view word = words[i];
    if (!absl::StartsWith(word, "-")) continue;
    word = WithoutDashes(word);
    if (absl::ConsumePrefix(&word, absl::StrCat(flag, "="))) {
      value = std::string(word);
    } else if (word == flag && i + 1 < words.size()) {
      value = words[++i];
    }
  }
  return value;
}

}  // namespace

bool WorkerFlags::Has(absl::string_view flag) const {
  if (file.count(std::string(flag)) > 0) return true;
  return std::any_of(words.begin(), words.end(), [flag](absl::string_view word) {
    word = WithoutDashes(word);
    return word == flag || absl::StartsWith(word, absl::StrCat(flag, "="));
  });
}

std::vector<std::string> WorkerFlags::TimeoutOfServers(const std::string& own, bool given) const {
  const std::string of_words = LastValue(words, "timeout");
  if (!of_words.empty()) return {absl::StrCat("--timeout=", of_words)};
  const auto of_file = file.find("timeout");
  const bool use_file = !given && of_file != file.end();
  return {absl::StrCat("--timeout=", use_file ? of_file->second : own)};
}

std::vector<std::string> WorkerFlags::TimeoutOfWorkers(const std::string& own, bool given) const {
  if (!given && file.count("timeout") > 0) return {};
  return {absl::StrCat("--timeout=", own)};
}

std::string WorkerFlags::TextOf(const std::string& flag) const {
  const std::string value = LastValue(words, flag);
  const auto of_file = file.find(flag);
  return value.empty() && of_file != file.end() ? of_file->second : value;
}

bool WorkerFlags::Synchronised(int servers) const {
  if (!TextOf("mesh").empty()) return true;  // stages and slices are, whatever the topology
  std::string topology = TextOf("topology");
  if (topology.empty() && servers > 0) topology = TopologyName(Topology::kPs);
  return !topology.empty() && topology != TopologyName(Topology::kLocal);
}

absl::Duration WorkerFlags::FailureTimeout() const {
  absl::Duration timeout;
  return absl::ParseDuration(TextOf("failure_timeout"), &timeout) ? timeout : absl::Seconds(10);
}

std::vector<std::string> WorkerFlags::FailureTimeoutOfServers() const {
  const std::string value = TextOf("failure_timeout");
  if (value.empty()) return {};
  return {absl::StrCat("--failure_timeout=", value)};
}

std::vector<std::string> WorkerFlags::SecurityOfServers() const {
  std::vector<std::string> flags;
  for (const char* const flag : {"tls_cert", "tls_key", "tls_ca", "secret_file"}) {
    const std::string value = TextOf(flag);
    if (!value.empty()) flags.push_back(absl::StrCat("--", flag, "=", value));
  }
  // A flag without a value, which LastValue() does not know; a wrong one is refused by the workers.
  const auto insecure = file.find("insecure");
  bool given = insecure != file.end() && ParseTruth(insecure->second).value_or(false);
  for (const std::string& word : words) {
    absl::string_view name = WithoutDashes(word);
    if (name == "insecure") given = true;
    if (name == "noinsecure") given = false;
    if (absl::ConsumePrefix(&name, "insecure=")) given = ParseTruth(name).value_or(given);
  }
  if (given) flags.push_back("--insecure");
  return flags;
}

std::vector<std::string> FlagsBehindDashes() {
  std::vector<std::string> flags = {"interface", "run_id"};
  const std::vector<FlagTopic> topics = WorkerTopics();
  // The first says who a worker is, which is for the launcher to say.
  for (size_t i = 1; i < topics.size(); ++i) {
    flags.insert(flags.end(), topics[i].flags.begin(), topics[i].flags.end());
  }
  return flags;
}

std::vector<std::string> FlagsOfOneWorker() {
  std::vector<std::string> flags = WorkerTopics()[0].flags;
  for (const char* not_given : {"interface", "run_id", "server_tasks"}) {
    flags.erase(std::remove(flags.begin(), flags.end(), not_given), flags.end());
  }
  return flags;
}

absl::Status CheckNoneIsOfOneWorker(const std::vector<std::string>& words, int workers,
                                    int servers) {
  const auto said_by = [](const std::string& flag, absl::string_view own, int number,
                          const std::string& value) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", flag, ": expected to be left out, as launch's --", own, "=", number,
                     ", before --, says it to each worker, found \"", value, "\" behind --"));
  };
  const std::vector<std::string> given = FlagsOfOneWorker();
  for (const std::string& word : words) {
    if (!absl::StartsWith(word, "-")) continue;
    const std::string name = NameOf(word);
    if (std::find(given.begin(), given.end(), name) == given.end()) continue;
    const std::string value = LastValue(words, NameAsWritten(word));
    if (name == "world_size") {
      if (value == absl::StrCat(workers)) continue;
      return said_by(name, "workers", workers, value);
    }
    if (name == "num_servers") {
      // Beside servers that are started, even the right number makes workers wait for others.
      if (servers == 0 && value == "0") continue;
      return said_by(name, "servers", servers, value);
    }
    if (name == "servers") {
      if (servers == 0 && absl::StrContains(value, ':')) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("--servers: expected before --, as launch tells each worker where its "
                       "servers are, found ",
                       "\"", value, "\" behind --"));
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "--", name,
        ": expected to be left out, as launch gives each worker its own, found behind --"));
  }
  return absl::OkStatus();
}

absl::Status CheckNoneIsOwn(const std::vector<std::string>& words,
                            const std::vector<FlagRecord>& own) {
  std::set<std::string> names;
  for (const FlagRecord& flag : own) names.insert(flag.name);
  for (const FlagTopic& topic : WorkerTopics()) {
    for (const std::string& flag : topic.flags) names.erase(flag);
  }
  for (const std::string& word : words) {
    if (!absl::StartsWith(word, "-")) continue;
    const std::string name = NameOf(word);
    if (names.count(name) == 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "--", name, ": expected before --, as it is no flag of the workers, found behind it"));
  }
  return absl::OkStatus();
}

absl::StatusOr<WorkerFlags> ReadWorkerFlags(std::vector<std::string> words) {
  WorkerFlags flags;
  flags.words = std::move(words);
  if (!flags.words.empty() && !absl::StartsWith(flags.words[0], "-")) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected worker flags after --, found \"", flags.words[0], "\""));
  }
  const std::string path = LastValue(flags.words, "config");
  if (path.empty()) return flags;
  GS_ASSIGN_OR_RETURN(const std::vector<FlagSetting> settings, ReadYamlFlags(UserPath(path), path));
  for (const FlagSetting& setting : settings) {
    if (setting.kind != FlagSetting::Kind::kSection) flags.file[setting.name] = setting.value;
  }
  return flags;
}

}  // namespace gradsync
