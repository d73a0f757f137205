#ifndef GRADSYNC_BENCHMARKS_CPU_METER_H_
#define GRADSYNC_BENCHMARKS_CPU_METER_H_

namespace gradsync {

// How busy this machine's cores were since the meter was made, whoever used them, as the kernel
// counts it: in ticks of 10 ms, so an interval should last some tenths of a second. Const methods
// are thread-safe. Blocks nowhere.
class CpuMeter {
 public:
  CpuMeter() : start_(Read()) {}

  // Of all cores together, 0 to 1. 0 when the system does not say, or when no tick has passed.
  double Share() const;

 private:
  // Of all cores since boot.
  struct Ticks {
    double total = 0;
    double idle = 0;
  };

  static Ticks Read();

  const Ticks start_;
};

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_CPU_METER_H_
