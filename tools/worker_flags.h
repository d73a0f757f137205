#ifndef GRADSYNC_TOOLS_WORKER_FLAGS_H_
#define GRADSYNC_TOOLS_WORKER_FLAGS_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/program/flags.h"

namespace gradsync {

// What a user gives to all workers of a job, after `--`, for programs that add flags of their own:
// these must not stand over what the user's job file says.
struct WorkerFlags {
  std::vector<std::string> words;           // as they were given
  std::map<std::string, std::string> file;  // what the file of --config sets, by flag

  // Whether the words or the file set this flag.
  bool Has(absl::string_view flag) const;

  // --timeout=... for the servers, and for the workers unless their file has it. `own` is the
  // program's, which counts where it was `given` or where the file says nothing. Over both is what the
  // words say.
  std::vector<std::string> TimeoutOfServers(const std::string& own, bool given) const;
  std::vector<std::string> TimeoutOfWorkers(const std::string& own, bool given) const;

  // --failure_timeout=... for the servers, as the workers have it; none where they have none.
  std::vector<std::string> FailureTimeoutOfServers() const;

  // --tls_cert=... and the like, likewise.
  std::vector<std::string> SecurityOfServers() const;

  // Whether ranks end together, the first one last: all but those of --topology=local, which end by
  // themselves.
  bool Synchronised(int servers) const;

  // The failure timeout; the workers' default where it is not given or is none.
  absl::Duration FailureTimeout() const;

 private:
  // What the words say of this flag, else the file; empty: neither does.
  std::string TextOf(const std::string& flag) const;
};

// The flags that a user may give to workers behind `--`: all but those that say who a worker is, for
// FlagOptions::passed_on.
std::vector<std::string> FlagsBehindDashes();

// Those that say who a worker is, for FlagOptions::given.
std::vector<std::string> FlagsOfOneWorker();

// For //worker itself, started by a program that gives each worker its rank and where the others are.
// What is only said twice (--world_size=2 of 2 workers), what such a program does not give (--run_id)
// and places of servers where it has started none are let through. Errors: INVALID_ARGUMENT for
// another of those flags.
absl::Status CheckNoneIsOfOneWorker(const std::vector<std::string>& words, int workers,
                                    int servers);

// For //worker itself, whose flags are known. Errors: INVALID_ARGUMENT for one of the program's `own`
// flags, as they were parsed, that stands behind `--` and that workers do not have.
absl::Status CheckNoneIsOwn(const std::vector<std::string>& words,
                            const std::vector<FlagRecord>& own);

// Reads the file that --config in `words` names, if it does. Errors: INVALID_ARGUMENT for a first
// word that is no flag; those of ReadYamlFlags().
absl::StatusOr<WorkerFlags> ReadWorkerFlags(std::vector<std::string> words);

}  // namespace gradsync

#endif  // GRADSYNC_TOOLS_WORKER_FLAGS_H_
