#include "benchmarks/comparison/default_comparison.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "benchmarks/options/flag_checks.h"
#include "core/base/errors.h"
#include "core/program/byte_sizes.h"

namespace gradsync {
namespace {

constexpr absl::string_view kSaysHow[] = {
    "bandwidth",     "bandwidths", "json",    "rounds",        "data",  "lr",
    "seed",          "timeout",    "out",     "worker_binary", "burst", "congestion_control",
    "server_binary", "tcp_rmem",   "tcp_wmem"};

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

std::vector<CompareOptions> MakeDefaultComparison(const CompareOptions& asked_for) {
  CompareOptions here = asked_for;
  // Small enough that two slow cores are not what limits three workers on emulated hosts.
  here.batch_size = 16;
  CompareOptions network = here;
  here.bandwidths.clear();
  here.workers = here.servers = {"2"};
  here.steps = 10;
  if (network.bandwidths.empty()) return {here};
  network.workers = network.servers = {"3"};
  network.placements = {"colocated", "dedicated"};
  // Links, not cores, decide how long such a step takes, so one is like the next.
  network.steps = 2;
  network.warmup_steps = 1;
  return {here, network};
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
  if (Contains(texts, kAuto)) {
    if (default_comparison) bandwidths = {"250mbit", "400mbit"};
  } else if (!Contains(texts, kNone)) {
    for (const std::string& text : texts) bandwidths.push_back(BandwidthName(text));
  }
  return bandwidths;
}

}  // namespace gradsync
