#include "benchmarks/replay/replay_cases.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/flag_error.h"
#include "base/status_macros.h"
#include "benchmarks/options/byte_sizes.h"
#include "benchmarks/options/flag_checks.h"
#include "benchmarks/options/placement.h"
#include "benchmarks/profiles/step_profile.h"
#include "plan/codec.h"

namespace gradsync {
namespace {

constexpr int kMostProcesses = 256;

absl::StatusOr<std::vector<int64_t>> ParseSizes(absl::string_view flag,
                                                const std::vector<std::string>& texts) {
  std::vector<int64_t> sizes;
  for (const std::string& text : texts) {
    GS_ASSIGN_OR_RETURN(sizes.emplace_back(), ParseSize(flag, text));
  }
  if (sizes.empty()) return FlagError(flag, "sizes, such as 25MiB", "");
  return sizes;
}

absl::StatusOr<std::vector<double>> ParseScales(const std::vector<std::string>& texts) {
  constexpr char kExpected[] = "numbers from 0 to 1000, such as 0.5,1";
  std::vector<double> scales;
  for (const std::string& text : texts) {
    double scale = 0;
    if (!absl::SimpleAtod(text, &scale) || !(scale >= 0 && scale <= 1000)) {
      return FlagError("compute_scale", kExpected, text);
    }
    scales.push_back(scale);
  }
  if (scales.empty()) return FlagError("compute_scale", kExpected, "");
  return scales;
}

absl::Status CheckLinks(const ReplaySweepOptions& options) {
  GS_RETURN_IF_ERROR(CheckNames("link", options.links, {"auto", "grpc", "shm", "gloo"}));
  if (!Contains(options.links, "gloo")) return absl::OkStatus();
  if (!Contains(options.topologies, "ring")) {
    return FlagError("link", "grpc, or ring among --topology", "gloo");
  }
  if (options.links.size() == 1 && Contains(options.topologies, "ps")) {
    return FlagError("link", "grpc too, for ps, which does not run over Gloo", "gloo");
  }
  if (!Contains(options.updates, "worker")) {
    return FlagError("update", "worker with --link=gloo, which has no reduce-scatter", "owner");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Codec>> ParseCodecs(const ReplaySweepOptions& options) {
  std::vector<Codec> codecs;
  for (const std::string& text : options.compressions) {
    const absl::StatusOr<Codec> codec = ParseCodec(text);
    if (!codec.ok()) return Named("compression", codec.status());
    codecs.push_back(*codec);
    if (!codec->compresses()) continue;
    if (!Contains(options.links, "auto") && !Contains(options.links, "grpc")) {
      return FlagError("compression", "none without --link=grpc, the only one that sends", text);
    }
    const bool ring = Contains(options.topologies, "ring") && !codec->sparse();
    if (!ring && !Contains(options.topologies, "ps")) {
      return FlagError("compression", "ps among --topology for topk, ps or ring for others", text);
    }
  }
  if (codecs.empty()) return FlagError("compression", "some of none, fp16, bf16, topk:R", "");
  return codecs;
}

absl::Status CheckNumbers(const ReplaySweepOptions& options) {
  if (options.warmup_steps < 1) {
    return FlagError("warmup_steps", "at least 1 (the first step is verified, not timed)",
                     absl::StrCat(options.warmup_steps));
  }
  if (options.steps <= options.warmup_steps) {
    return FlagError("steps", absl::StrCat("more than --warmup_steps=", options.warmup_steps),
                     absl::StrCat(options.steps));
  }
  if (options.connections < 0 || options.connections > 256) {
    return FlagError("connections", "1 to 256, or 0 for the default",
                     absl::StrCat(options.connections));
  }
  if (options.timeout <= absl::ZeroDuration()) {
    return FlagError("timeout", "more than 0s", absl::FormatDuration(options.timeout));
  }
  return absl::OkStatus();
}

absl::Status CheckNetwork(const ReplaySweepOptions& options) {
  const bool emulated = !options.bandwidths.empty();
  GS_RETURN_IF_ERROR(CheckPlacements(options.placements, emulated));
  for (const std::string& bandwidth : options.bandwidths) {
    const absl::StatusOr<double> rate = ParseBandwidth(bandwidth);
    if (!rate.ok()) return Named("bandwidth", rate.status());
  }
  return emulated ? CheckLinksBetweenHosts("link", options.links) : absl::OkStatus();
}

std::string NameOf(absl::string_view path) {
  const size_t slash = path.rfind('/');
  if (slash != absl::string_view::npos) path.remove_prefix(slash + 1);
  return std::string(absl::StripSuffix(path, ".json"));
}

// Values that only bsp goes with do not occur without it.
absl::Status CheckBulkOccurs(const ReplaySweepOptions& options) {
  for (const std::string& text : options.consistencies) {
    if (ParseConsistency(text)->bulk()) return absl::OkStatus();
  }
  const struct {
    const char* flag;
    const std::vector<std::string>& found;
    std::vector<std::string> known;
  } lists[] = {{"topology", options.topologies, {"ps"}},
               {"update", options.updates, {"owner"}},
               {"link", options.links, {"auto", "grpc"}},
               {"compression", options.compressions, {"none"}}};
  for (const auto& list : lists) {
    for (const std::string& value : list.found) {
      if (Contains(list.known, value)) continue;
      return FlagError("consistency", absl::StrCat("bsp too, for --", list.flag, "=", value),
                       absl::StrJoin(options.consistencies, ","));
    }
  }
  return absl::OkStatus();
}

bool Possible(const ReplayCase& replay) {
  const Codec codec = replay.plan.codec;
  if (codec.compresses()) {
    if (replay.topology == "local") return false;
    if (replay.link != "auto" && replay.link != "grpc") return false;
    if (codec.sparse() && replay.topology == "ring") return false;
  }
  if (!replay.consistency.bulk()) {
    if (replay.topology != "ps" || replay.update != "owner" || codec.compresses()) return false;
    if (replay.link != "auto" && replay.link != "grpc") return false;
  }
  if (!PlacementFits(replay.placement, replay.workers, replay.servers)) return false;
  return replay.link != "gloo" || (replay.topology == "ring" && replay.update == "worker");
}

// What is the same in all measurements.
absl::StatusOr<ReplayCase> CommonCase(const ReplaySweepOptions& options) {
  ReplayCase common;
  GS_ASSIGN_OR_RETURN(common.straggler, Straggler::Parse(options.straggler));
  common.steps = options.steps;
  common.warmup_steps = options.warmup_steps;
  common.connections = options.connections;
  common.timeout = options.timeout;
  GS_ASSIGN_OR_RETURN(common.plan.first_bucket_bytes,
                      ParseSize("first_bucket_bytes", options.first_bucket_bytes));
  GS_ASSIGN_OR_RETURN(common.plan.chunk_bytes, ParseChunkBytes(options.chunk_bytes));
  return common;
}

// A list of alternatives for one field of a case; the sweep is the product of all.
using Alternative = std::function<void(ReplayCase*)>;
using Axis = std::vector<Alternative>;

template <typename T>
Axis AxisOf(const std::vector<T>& values, void (*set)(ReplayCase*, const T&)) {
  Axis axis;
  for (const T& value : values) {
    axis.push_back([value, set](ReplayCase* replay) { set(replay, value); });
  }
  return axis;
}

// Topologies with each one's own choices, since only ps has servers and local has no link.
Axis TopologyAxis(const ReplaySweepOptions& options, const std::vector<int>& servers) {
  Axis axis;
  for (const std::string& topology : options.topologies) {
    const bool ps = topology == "ps";
    for (const std::string& link :
         topology == "local" ? std::vector<std::string>{"auto"} : options.links) {
      for (const std::string& placement : ps ? options.placements : std::vector<std::string>{""}) {
        for (int count : ps ? servers : std::vector<int>{0}) {
          axis.push_back([=](ReplayCase* replay) {
            replay->topology = topology;
            replay->link = link;
            replay->placement = placement;
            replay->servers = count;
          });
        }
      }
    }
  }
  return axis;
}

std::vector<ReplayCase> Product(const ReplayCase& common, const std::vector<Axis>& axes) {
  std::vector<ReplayCase> cases = {common};
  for (const Axis& axis : axes) {
    std::vector<ReplayCase> next;
    for (const ReplayCase& replay : cases) {
      for (const Alternative& set : axis) {
        next.push_back(replay);
        set(&next.back());
      }
    }
    cases = std::move(next);
  }
  return cases;
}

struct NamedProfile {
  std::string path;
  proto::StepProfile profile;
};

absl::StatusOr<std::vector<NamedProfile>> ReadProfiles(const std::vector<std::string>& paths) {
  std::vector<NamedProfile> profiles;
  for (const std::string& path : paths) {
    NamedProfile& next = profiles.emplace_back();
    next.path = path;
    GS_ASSIGN_OR_RETURN(next.profile, ReadStepProfile(path));
  }
  if (profiles.empty()) return FlagError("replay", "files of step profiles", "");
  return profiles;
}

}  // namespace

std::string Describe(const ReplayCase& replay) {
  std::string text = absl::StrCat(replay.profile_name, ": ", replay.topology);
  if (replay.link != "auto") absl::StrAppend(&text, " over ", replay.link);
  if (replay.update != "worker") absl::StrAppend(&text, ", update at ", replay.update);
  if (replay.plan.codec.compresses()) absl::StrAppend(&text, ", ", replay.compression);
  if (!replay.consistency.bulk()) {
    absl::StrAppend(&text, ", ", ConsistencyName(replay.consistency));
  }
  if (replay.servers > 0) absl::StrAppend(&text, ", servers ", replay.servers);
  if (replay.servers > 0 && replay.placement != "dedicated") {
    absl::StrAppend(&text, " ", replay.placement);
  }
  absl::StrAppend(&text, ", workers ", replay.workers);
  if (!replay.bandwidth.empty()) absl::StrAppend(&text, ", ", replay.bandwidth);
  absl::StrAppend(&text, ", buckets of ", FormatBytes(replay.plan.bucket_bytes));
  if (replay.compute_scale != 1) absl::StrAppend(&text, ", compute times ", replay.compute_scale);
  if (!replay.straggler.nobody()) absl::StrAppend(&text, ", straggler ", replay.straggler.text());
  return text;
}

absl::StatusOr<std::vector<ReplayCase>> ListReplayCases(const ReplaySweepOptions& options) {
  GS_RETURN_IF_ERROR(CheckNames("topology", options.topologies, {"ring", "ps", "local"}));
  GS_RETURN_IF_ERROR(CheckLinks(options));
  GS_RETURN_IF_ERROR(CheckNames("update", options.updates, {"worker", "owner"}));
  GS_ASSIGN_OR_RETURN(const std::vector<int> workers,
                      ParseCounts("workers", options.workers, kMostProcesses));
  GS_ASSIGN_OR_RETURN(const std::vector<int> servers,
                      ParseCounts("servers", options.servers, kMostProcesses));
  GS_RETURN_IF_ERROR(CheckNetwork(options));
  GS_ASSIGN_OR_RETURN(const std::vector<int64_t> buckets,
                      ParseSizes("bucket_bytes", options.bucket_bytes));
  GS_ASSIGN_OR_RETURN(const std::vector<Codec> codecs, ParseCodecs(options));
  GS_RETURN_IF_ERROR(CheckConsistencies(options.consistencies, options.topologies, options.updates,
                                        options.links, options.compressions));
  GS_RETURN_IF_ERROR(CheckBulkOccurs(options));
  GS_ASSIGN_OR_RETURN(const std::vector<double> scales, ParseScales(options.compute_scales));
  GS_RETURN_IF_ERROR(CheckNumbers(options));
  GS_ASSIGN_OR_RETURN(const ReplayCase common, CommonCase(options));
  for (int n : workers) GS_RETURN_IF_ERROR(common.straggler.CheckWorkers(n));
  GS_ASSIGN_OR_RETURN(const std::vector<NamedProfile> profiles, ReadProfiles(options.profiles));

  const std::vector<std::string> bandwidths =
      options.bandwidths.empty() ? std::vector<std::string>{""} : options.bandwidths;
  const std::vector<Axis> axes = {
      AxisOf<std::string>(bandwidths, [](ReplayCase* replay,
                                         const std::string& value) { replay->bandwidth = value; }),
      AxisOf<NamedProfile>(profiles,
                           [](ReplayCase* replay, const NamedProfile& value) {
                             replay->profile_path = value.path;
                             replay->profile_name = NameOf(value.path);
                             replay->profile = value.profile;
                           }),
      AxisOf<double>(
          scales, [](ReplayCase* replay, const double& value) { replay->compute_scale = value; }),
      AxisOf<int>(workers, [](ReplayCase* replay, const int& value) { replay->workers = value; }),
      AxisOf<int64_t>(buckets, [](ReplayCase* replay,
                                  const int64_t& value) { replay->plan.bucket_bytes = value; }),
      AxisOf<Codec>(codecs,
                    [](ReplayCase* replay, const Codec& value) { replay->plan.codec = value; }),
      AxisOf<std::string>(
          options.updates,
          [](ReplayCase* replay, const std::string& value) { replay->update = value; }),
      AxisOf<std::string>(options.consistencies,
                          [](ReplayCase* replay, const std::string& value) {
                            replay->consistency = *ParseConsistency(value);
                          }),
      TopologyAxis(options, servers)};
  std::vector<ReplayCase> cases;
  for (ReplayCase& replay : Product(common, axes)) {
    if (!Possible(replay)) continue;
    replay.compression = CodecName(replay.plan.codec);
    replay.plan.world_size = replay.topology == "local" ? 1 : replay.workers;
    replay.plan.first_bucket_bytes =
        std::min(replay.plan.first_bucket_bytes, replay.plan.bucket_bytes);
    // Options that the plan refuses are found here rather than on every rank.
    GS_RETURN_IF_ERROR(ProfilePlan(replay.profile, replay.plan).status());
    cases.push_back(std::move(replay));
  }
  if (Contains(options.topologies, "ps")) {
    GS_RETURN_IF_ERROR(CheckPlaced(options.placements, cases, "workers"));
  }
  return cases;
}

std::vector<std::string> ReplayRankFlags(const ReplayCase& replay, const std::string& start_line) {
  std::vector<std::string> flags = {
      absl::StrCat("--profile=", replay.profile_path),
      absl::StrCat("--topology=", replay.topology),
      absl::StrCat("--link=", replay.link),
      absl::StrCat("--update=", replay.update),
      absl::StrCat("--compression=", replay.compression),
      absl::StrCat("--consistency=", ConsistencyName(replay.consistency)),
      absl::StrCat("--connections=", replay.connections),
      absl::StrCat("--bucket_bytes=", replay.plan.bucket_bytes),
      absl::StrCat("--first_bucket_bytes=", replay.plan.first_bucket_bytes),
      absl::StrCat("--chunk_bytes=", replay.plan.chunk_bytes),
      absl::StrCat("--compute_scale=", replay.compute_scale),
      absl::StrCat("--steps=", replay.steps - replay.warmup_steps),
      absl::StrCat("--warmup_steps=", replay.warmup_steps),
      absl::StrCat("--timeout=", absl::FormatDuration(replay.timeout)),
      absl::StrCat("--start_line=", start_line)};
  if (!replay.straggler.nobody()) {
    flags.push_back(absl::StrCat("--straggler=", replay.straggler.text()));
  }
  return flags;
}

}  // namespace gradsync
