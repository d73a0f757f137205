#include "benchmarks/records/nccl_log.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace gradsync {
namespace {

constexpr char kUnknown[] = "unknown";

// What was seen of one collective.
struct Collective {
  std::string name;
  std::set<std::string> ways;
  double bytes = 0;
};

// A word as NCCL names algorithms and protocols. Older versions wrote numbers, whose meaning
// changes.
bool IsName(const char* word) {
  return absl::ascii_isalpha(word[0]) && absl::string_view(word) != "Unknown";
}

// `text` is what follows "NCCL INFO ".
absl::optional<Collective> Parse(const std::string& text) {
  char name[256], way[256], protocol[256];
  long long bytes = 0;
  if (std::sscanf(text.c_str(), "%255[^: ]: %lld Bytes -> Algo %255s proto %255s", name, &bytes,
                  way, protocol) == 4 &&
      IsName(name) && IsName(way) && IsName(protocol)) {
    return Collective{name, {absl::StrCat(way, "/", protocol)}, static_cast<double>(bytes)};
  }
  if (std::sscanf(text.c_str(), "%255[^: ] [Symmetric]: %lld Bytes -> Kernel %255s", name, &bytes,
                  way) == 3 &&
      IsName(name) && IsName(way)) {
    return Collective{name, {absl::StrCat("symmetric/", way)}, static_cast<double>(bytes)};
  }
  return absl::nullopt;
}

}  // namespace

std::string NcclChosen(absl::string_view log) {
  std::vector<Collective> all;
  for (absl::string_view line : absl::StrSplit(log, '\n')) {
    constexpr absl::string_view kInfo = "NCCL INFO ";
    const size_t info = line.find(kInfo);
    if (info == line.npos || !absl::StrContains(line, " Bytes -> ")) continue;
    absl::optional<Collective> seen = Parse(std::string(line.substr(info + kInfo.size())));
    if (!seen.has_value()) return kUnknown;
    const auto known = std::find_if(all.begin(), all.end(),
                                    [&](const Collective& c) { return c.name == seen->name; });
    if (known == all.end()) {
      all.push_back(*std::move(seen));
    } else {
      known->ways.merge(seen->ways);
      known->bytes += seen->bytes;
    }
  }
  if (all.empty()) return kUnknown;
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
  log.file_.reset(new std::string(path));
  return log;
}

void NcclLog::Remove::operator()(const std::string* path) const {
  unlink(path->c_str());
  delete path;
}

std::vector<std::string> NcclLog::environment() const {
  if (file_ == nullptr) return {};
  // In names of files NCCL takes a per cent sign for the beginning of a placeholder.
  return {"NCCL_DEBUG=INFO", "NCCL_DEBUG_SUBSYS=TUNING",
          absl::StrCat("NCCL_DEBUG_FILE=", absl::StrJoin(absl::StrSplit(*file_, '%'), "%%"))};
}

std::string NcclLog::Chosen() const {
  if (!nccl_) return "";
  if (file_ == nullptr) return kUnknown;
  std::ifstream file(*file_);
  return NcclChosen(std::string(std::istreambuf_iterator<char>(file), {}));
}

}  // namespace gradsync
