#include "benchmarks/records/machine_info.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <thread>

#include "absl/base/config.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "core/program/compiler_name.h"
#include "google/protobuf/stubs/common.h"
#include "grpcpp/version_info.h"
#include "torch/version.h"

namespace gradsync {
namespace {

constexpr double kGiB = 1 << 30;

// Of an idle desktop, not of a compiler.
constexpr double kQuietCores = 0.3;

// The rest of the first line of `path` that begins with `key`, after `separator`.
std::string Lookup(const char* path, absl::string_view key, char separator) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    absl::string_view rest = line;
    const size_t at = rest.find(separator);
    if (!absl::ConsumePrefix(&rest, key) || at == absl::string_view::npos) continue;
    const absl::string_view value = absl::string_view(line).substr(at + 1);
    return std::string(
        absl::StripSuffix(absl::StripPrefix(absl::StripAsciiWhitespace(value), "\""), "\""));
  }
  return "";
}

// What `git -C folder arguments` prints, without the end of the line; nothing where it fails.
absl::optional<std::string> AskGit(const std::string& folder, const std::string& arguments) {
  const std::string quoted = absl::StrReplaceAll(folder, {{"'", "'\\''"}});
  FILE* const git =
      popen(absl::StrCat("git -C '", quoted, "' ", arguments, " 2>/dev/null").c_str(), "re");
  if (git == nullptr) return absl::nullopt;
  std::string answer;
  for (int letter = std::fgetc(git); letter != EOF; letter = std::fgetc(git)) {
    answer.push_back(static_cast<char>(letter));
  }
  if (pclose(git) != 0) return absl::nullopt;
  absl::StripTrailingAsciiWhitespace(&answer);
  return answer;
}

void DescribeCommit(const std::string& checkout, proto::Machine* machine) {
  machine->set_commit("unknown");
  if (checkout.empty()) return;
  const absl::optional<std::string> commit = AskGit(checkout, "rev-parse HEAD");
  if (!commit.has_value()) return;
  machine->set_commit(*commit);
  machine->set_dirty(AskGit(checkout, "status --porcelain --untracked-files=no").value_or("") !=
                     "");
}

}  // namespace

proto::Machine DescribeMachine(const std::string& checkout) {
  proto::Machine machine;
  machine.set_cpu(Lookup("/proc/cpuinfo", "model name", ':'));
  machine.set_cores(static_cast<int>(std::thread::hardware_concurrency()));
  machine.set_memory_bytes(static_cast<double>(sysconf(_SC_PHYS_PAGES)) *
                           static_cast<double>(sysconf(_SC_PAGESIZE)));
  machine.set_os(Lookup("/etc/os-release", "PRETTY_NAME", '='));
  utsname kernel;
  if (uname(&kernel) == 0) machine.set_kernel(absl::StrCat(kernel.sysname, " ", kernel.release));
  machine.set_compiler(CompilerName());
  machine.set_build_mode(GRADSYNC_BUILD_MODE);
  auto& versions = *machine.mutable_versions();
  versions["abseil"] = absl::StrCat(ABSL_LTS_RELEASE_VERSION);
  versions["grpc"] = GRPC_CPP_VERSION_STRING;
  versions["libtorch"] = TORCH_VERSION;
  versions["protobuf"] = google::protobuf::internal::VersionString(GOOGLE_PROTOBUF_VERSION);
  machine.set_date(absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::Now(), absl::UTCTimeZone()));
  DescribeCommit(checkout, &machine);
  return machine;
}

std::string FormatMachine(const proto::Machine& machine) {
  std::string text =
      absl::StrFormat("%s, %d core%s, %.1f GiB; %s, %s; %s, -c %s", machine.cpu(), machine.cores(),
                      machine.cores() == 1 ? "" : "s", machine.memory_bytes() / kGiB, machine.os(),
                      machine.kernel(), machine.compiler(), machine.build_mode());
  absl::string_view separator = "; ";
  for (absl::string_view library : {"libtorch", "grpc", "protobuf", "abseil"}) {
    const auto version = machine.versions().find(std::string(library));
    if (version == machine.versions().end()) continue;
    absl::StrAppend(&text, separator, library, " ", version->second);
    separator = ", ";
  }
  return text;
}

std::string BuildModeWarning(const proto::Machine& machine) {
  if (machine.build_mode() == "opt") return "";
  return absl::StrCat("WARNING: built with -c ", machine.build_mode(),
                      ", so times say little; build with -c opt");
}

double BusyCores(absl::Duration interval) {
  const MachineLoad load;
  absl::SleepFor(interval);
  const double all = load.CoreSeconds();
  if (all <= 0) return 0;
  // Read after the other, so it may be a tick more, or a rounding.
  const double share = std::min(1.0, load.BusyCoreSeconds() / all);
  return share * static_cast<double>(sysconf(_SC_NPROCESSORS_ONLN));
}

std::string BusyWarning(double busy_cores) {
  if (busy_cores < kQuietCores) return "";
  return absl::StrFormat(
      "WARNING: other programs keep %.1f cores busy, so times say little; end them first",
      busy_cores);
}

MachineLoad::MachineLoad() : start_(Read()) {}

double MachineLoad::BusyCoreSeconds() const { return Read().busy - start_.busy; }

double MachineLoad::CoreSeconds() const { return Read().all - start_.all; }

// The first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq and steal, in ticks.
MachineLoad::Times MachineLoad::Read() {
  const std::unique_ptr<FILE, void (*)(FILE*)> file(std::fopen("/proc/stat", "re"),
                                                    [](FILE* f) { std::fclose(f); });
  long long ticks[8] = {};
  Times times;
  if (file == nullptr ||
      std::fscanf(file.get(), "cpu %lld %lld %lld %lld %lld %lld %lld %lld", &ticks[0], &ticks[1],
                  &ticks[2], &ticks[3], &ticks[4], &ticks[5], &ticks[6], &ticks[7]) != 8) {
    return times;
  }
  // Whole ticks until the end: a difference of quotients may be less than none.
  long long all = 0;
  for (long long t : ticks) all += t;
  const double ticks_per_second = static_cast<double>(sysconf(_SC_CLK_TCK));
  times.all = static_cast<double>(all) / ticks_per_second;
  times.busy = static_cast<double>(all - ticks[3] - ticks[4]) / ticks_per_second;
  return times;
}

}  // namespace gradsync
