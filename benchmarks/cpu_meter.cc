#include "benchmarks/cpu_meter.h"

#include <fstream>
#include <string>

namespace gradsync {

CpuMeter::Ticks CpuMeter::Read() {
  Ticks ticks;
  std::ifstream file("/proc/stat");
  std::string name;
  file >> name;
  // user nice system idle iowait irq softirq steal; what follows is counted in these already.
  for (int i = 0; i < 8; ++i) {
    double value = 0;
    if (!(file >> value)) return {};
    ticks.total += value;
    if (i == 3 || i == 4) ticks.idle += value;
  }
  return ticks;
}

double CpuMeter::Share() const {
  const Ticks now = Read();
  const double total = now.total - start_.total;
  return total > 0 ? 1 - (now.idle - start_.idle) / total : 0;
}

}  // namespace gradsync
