#include "benchmarks/network/measured_sweep_main.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "benchmarks/records/machine_info.h"
#include "benchmarks/records/proto_json.h"
#include "core/base/process_main.h"
#include "core/base/write_file.h"
#include "core/program/program_main.h"

namespace gradsync {
namespace {

constexpr int kBadInput = 2;

void Print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

// Hosts for all jobs with this bandwidth.
absl::StatusOr<std::unique_ptr<EmulatedNetwork>> MakeNetwork(const MeasuredSweep& sweep,
                                                             const std::string& bandwidth) {
  EmulatedNetworkOptions options;
  options.bandwidth = bandwidth;
  options.lab = sweep.lab;
  for (const PlacedJob& job : sweep.jobs) {
    if (job.bandwidth == bandwidth) options.hosts = std::max(options.hosts, HostCount(job));
  }
  options.tcp_rank_binary = sweep.tcp_rank_binary;
  options.timeout = sweep.timeout;
  options.interrupt = &InterruptSignal();
  return EmulatedNetwork::Create(options);
}

// Returns the exit code.
int MeasureAll(const MeasuredSweep& sweep, proto::RunRecords* records) {
  size_t failed = 0;
  std::unique_ptr<EmulatedNetwork> network;
  for (size_t i = 0; i < sweep.jobs.size(); ++i) {
    const std::string& bandwidth = sweep.jobs[i].bandwidth;
    if (!bandwidth.empty() && (network == nullptr || network->record().bandwidth() != bandwidth)) {
      network.reset();  // before the next one: they would share names and cores
      absl::StatusOr<std::unique_ptr<EmulatedNetwork>> made = MakeNetwork(sweep, bandwidth);
      if (!made.ok()) {
        PrintError(sweep.program, made.status().message());
        return InterruptSignal() != 0 ? 128 + InterruptSignal() : kBadInput;
      }
      network = *std::move(made);
      *records->add_networks() = network->record();
      Print(absl::StrCat(FormatNetwork(network->record()), "\n"));
    }
    if (i == 0) Print(sweep.head);
    const absl::Status status =
        sweep.measure(i, bandwidth.empty() ? nullptr : network.get(), records);
    if (status.ok()) continue;
    PrintError(sweep.program, absl::StrCat(sweep.describe(i), ": ", status.message()));
    if (absl::IsCancelled(status)) return 128 + InterruptSignal();
    if (absl::IsInvalidArgument(status)) return kBadInput;
    ++failed;
  }
  double wrong = 0;
  for (const proto::Run& run : records->runs()) wrong += run.wrong();
  if (wrong > 0) PrintError(sweep.program, absl::StrCat(wrong, " elements are wrong"));
  if (failed > 0) {
    PrintError(sweep.program,
               absl::StrCat(failed, " of ", sweep.jobs.size(), " measurements failed"));
  }
  return wrong > 0 || failed > 0 ? 1 : 0;
}

}  // namespace

void PrintMachine(const proto::Machine& machine) {
  Print(absl::StrCat(FormatMachine(machine), "\n"));
  const std::string warning = BuildModeWarning(machine);
  if (!warning.empty()) Print(absl::StrCat(warning, "\n"));
}

int RunMeasuredSweep(const MeasuredSweep& sweep) {
  proto::RunRecords records;
  *records.mutable_machine() = DescribeMachine(CheckoutFolder());
  records.set_command(sweep.command);
  if (const absl::Status writable = CheckWritable("json", sweep.json); !writable.ok()) {
    PrintError(sweep.program, writable.message());
    return kBadInput;
  }
  CatchInterrupts();
  PrintMachine(records.machine());
  const int exit_code = MeasureAll(sweep, &records);
  const absl::Status written = WriteRecords(sweep.json, records);
  if (!written.ok()) PrintError(sweep.program, written.message());
  return exit_code == 0 && !written.ok() ? 1 : exit_code;
}

}  // namespace gradsync
