#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/time/time.h"
#include "core/base/process_resources.h"
#include "core/program/metrics_server.h"

namespace gradsync {
namespace {

double ResidentBytes() {
  double total = 0;
  double resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE));
}

double OpenFiles() {
  std::error_code error;
  double files = 0;
  for (std::filesystem::directory_iterator file("/proc/self/fd", error), end; file != end;
       file.increment(error)) {
    ++files;
  }
  return files;
}

}  // namespace

std::vector<Metric> ProcessMetrics() {
  const auto one = [](std::string name, std::string help, Metric::Kind kind, double value) {
    Metric metric;
    metric.name = std::move(name);
    metric.help = std::move(help);
    metric.kind = kind;
    metric.samples = {{{}, value}};
    return metric;
  };
  return {one("process_cpu_seconds_total", "User and system time of this process, in seconds",
              Metric::Kind::kCounter, absl::ToDoubleSeconds(ProcessCpuTime())),
          one("process_resident_memory_bytes", "Memory that this process has, in bytes",
              Metric::Kind::kGauge, ResidentBytes()),
          one("process_open_fds", "Files and sockets that this process has open",
              Metric::Kind::kGauge, OpenFiles())};
}

}  // namespace gradsync
