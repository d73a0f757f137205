#include "benchmarks/records/machine_load.h"

#include <unistd.h>

#include <cstdio>
#include <memory>

namespace gradsync {

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
