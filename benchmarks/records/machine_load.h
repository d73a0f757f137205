#ifndef GRADSYNC_BENCHMARKS_RECORDS_MACHINE_LOAD_H_
#define GRADSYNC_BENCHMARKS_RECORDS_MACHINE_LOAD_H_

namespace gradsync {

// How much of this machine's cores was used since this object was made, by whomever, the kernel's
// work for network interfaces included. In steps of some 10 ms. Thread-safe; does not block.
class MachineLoad {
 public:
  MachineLoad();

  double BusyCoreSeconds() const;
  double CoreSeconds() const;  // all there were, idle ones included; 0 when the system does not say

 private:
  struct Times {
    double busy = 0;
    double all = 0;
  };
  static Times Read();

  const Times start_;
};

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_RECORDS_MACHINE_LOAD_H_
