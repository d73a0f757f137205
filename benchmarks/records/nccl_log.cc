#include "benchmarks/records/nccl_log.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace gradsync {
namespace {

constexpr char kUnknown[] = "unknown";

// What was seen of one collective.
struct Collective {
  std::string name;
  std::vector<std::string> ways;
  double bytes = 0;
};

struct Choice {
  std::string name;
  std::string way;
  double bytes = 0;
};

// A word as NCCL names algorithms and protocols. Older versions wrote numbers, whose meaning
// changes.
bool IsName(absl::string_view word) {
  return !word.empty() && absl::ascii_isalpha(word[0]) && word != "Unknown";
}

// `text` is what follows "NCCL INFO " and has " Bytes -> " in it.
absl::optional<Choice> Parse(absl::string_view text) {
  const std::vector<std::string> words = absl::StrSplit(text, ' ', absl::SkipEmpty());
  const bool symmetric = words.size() > 1 && words[1] == "[Symmetric]:";
  const size_t at = symmetric ? 2 : 1;  // of the number of bytes
  Choice choice;
  int64_t bytes = 0;
  choice.name = std::string(absl::StripSuffix(words[0], ":"));
  if (words.size() < at + 5 || !IsName(choice.name) || !absl::SimpleAtoi(words[at], &bytes) ||
      words[at + 1] != "Bytes" || words[at + 2] != "->") {
    return absl::nullopt;
  }
  choice.bytes = static_cast<double>(bytes);
  const std::string& first = words[at + 4];
  if (symmetric && words[at + 3] == "Kernel" && IsName(first)) {
    choice.way = absl::StrCat("symmetric/", first);
    return choice;
  }
  if (symmetric || words.size() < at + 7 || words[at + 3] != "Algo" || words[at + 5] != "proto" ||
      !IsName(first) || !IsName(words[at + 6])) {
    return absl::nullopt;
  }
  choice.way = absl::StrCat(first, "/", words[at + 6]);
  return choice;
}

void Add(const Choice& choice, std::vector<Collective>* all) {
  auto known = std::find_if(all->begin(), all->end(),
                            [&](const Collective& c) { return c.name == choice.name; });
  if (known == all->end()) {
    all->push_back({choice.name, {}, 0});
    known = std::prev(all->end());
  }
  known->bytes += choice.bytes;
  if (std::find(known->ways.begin(), known->ways.end(), choice.way) == known->ways.end()) {
    known->ways.push_back(choice.way);
  }
}

}  // namespace

std::string NcclChosen(absl::string_view log) {
  std::vector<Collective> all;
  for (absl::string_view line : absl::StrSplit(log, '\n')) {
    constexpr absl::string_view kInfo = "NCCL INFO ";
    const size_t info = line.find(kInfo);
    if (info == line.npos || !absl::StrContains(line, " Bytes -> ")) continue;
    const absl::optional<Choice> choice = Parse(line.substr(info + kInfo.size()));
    if (!choice.has_value()) return kUnknown;
    Add(*choice, &all);
  }
  if (all.empty()) return kUnknown;
  for (Collective& collective : all) std::sort(collective.ways.begin(), collective.ways.end());
  std::stable_sort(all.begin(), all.end(),
                   [](const Collective& a, const Collective& b) { return a.bytes > b.bytes; });
  return absl::StrJoin(all, ", ", [](std::string* out, const Collective& collective) {
    absl::StrAppend(out, collective.name, " ", absl::StrJoin(collective.ways, " "));
  });
}

absl::StatusOr<NcclLog> NcclLog::ForLink(Link link, const Lookup& lookup) {
  NcclLog log;
  log.nccl_ = link == Link::kNccl;
  if (!log.nccl_) return log;
  for (const char* variable : {"NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"}) {
    if (lookup(variable).has_value()) return log;
  }
  std::error_code error;
  std::string path = std::filesystem::temp_directory_path(error) / "gradsync-nccl-XXXXXX";
  const int fd = error ? -1 : mkstemp(path.data());
  if (fd < 0) {
    return absl::UnavailableError(absl::StrCat("cannot make a temporary file like ", path));
  }
  close(fd);
  log.path_ = path;
  return log;
}

NcclLog::NcclLog(NcclLog&& other) noexcept
    : nccl_(other.nccl_), path_(std::exchange(other.path_, "")) {}

NcclLog& NcclLog::operator=(NcclLog&& other) noexcept {
  std::swap(nccl_, other.nccl_);
  std::swap(path_, other.path_);
  return *this;
}

NcclLog::~NcclLog() {
  if (!path_.empty()) unlink(path_.c_str());
}

std::vector<std::string> NcclLog::environment() const {
  if (path_.empty()) return {};
  // In names of files NCCL takes a per cent sign for the beginning of a placeholder.
  return {"NCCL_DEBUG=INFO", "NCCL_DEBUG_SUBSYS=TUNING",
          absl::StrCat("NCCL_DEBUG_FILE=", absl::StrJoin(absl::StrSplit(path_, '%'), "%%"))};
}

std::string NcclLog::Chosen() const {
  if (!nccl_) return "";
  if (path_.empty()) return kUnknown;
  std::ifstream file(path_);
  return NcclChosen(std::string(std::istreambuf_iterator<char>(file), {}));
}

}  // namespace gradsync
