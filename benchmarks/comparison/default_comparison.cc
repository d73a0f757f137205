#include "benchmarks/comparison/default_comparison.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/flag_error.h"
#include "base/rate.h"
#include "benchmarks/options/flag_checks.h"

namespace gradsync {
namespace {

constexpr absl::string_view kSaysHow[] = {
    "bandwidth", "bandwidths", "json", "rounds",        "data",         "lr",
    "seed",      "timeout",    "out",  "worker_binary", "server_binary"};

// Words of --bandwidth.
constexpr absl::string_view kAuto = "auto";
constexpr absl::string_view kNone = "none";

}  // namespace

bool AsksForDefault(int argc, const char* const* argv) {
  for (int i = 1; i < argc && absl::string_view(argv[i]) != "--"; ++i) {
    absl::string_view name = argv[i];
    // What has no dash is the value of the flag before it.
    if (!absl::ConsumePrefix(&name, "-")) continue;
    absl::ConsumePrefix(&name, "-");
    name = name.substr(0, name.find('='));
    if (std::find(std::begin(kSaysHow), std::end(kSaysHow), name) == std::end(kSaysHow)) {
      return false;
    }
  }
  return true;
}

DefaultComparison MakeDefaultComparison(const CompareOptions& asked_for) {
  DefaultComparison made{asked_for, asked_for};
  made.here.bandwidths.clear();
  made.here.workers = {"2"};
  made.here.servers = {"2"};
  made.here.steps = 10;
  // Small enough that two slow cores are not what limits three workers on emulated hosts.
  made.here.batch_size = made.network.batch_size = 16;
  made.network.workers = {"3"};
  made.network.servers = {"3"};
  made.network.placements = {"colocated", "dedicated"};
  // Links, not cores, decide how long such a step takes, so one is like the next.
  made.network.steps = 2;
  made.network.warmup_steps = 1;
  return made;
}

absl::StatusOr<std::vector<std::string>> ResolveBandwidths(const std::vector<std::string>& texts,
                                                           bool default_comparison) {
  for (absl::string_view word : {kAuto, kNone}) {
    if (Contains(texts, word) && texts.size() > 1) {
      return FlagError("bandwidth", "auto or none alone, or bandwidths such as 100mbit,400mbit",
                       absl::StrJoin(texts, ","));
    }
  }
  std::vector<std::string> bandwidths;
  if (Contains(texts, kAuto) && default_comparison)
    return std::vector<std::string>{"250mbit", "500mbit"};
  if (Contains(texts, kAuto) || Contains(texts, kNone)) return bandwidths;
  for (const std::string& text : texts) bandwidths.push_back(BandwidthName(text));
  return bandwidths;
}

}  // namespace gradsync
