// The flags of a program that sweeps, each a list, and the jobs that follow from them: every
// combination that CheckJob() allows. Which ones those are is not said here.
//
//   GS_ASSIGN_OR_RETURN(const JobSweep sweep, ParseJobSweep(options, rules));
//   for (int workers : sweep.workers) {
//     for (PlacedJob& job : ListJobs(sweep, workers, bandwidth)) ...
//   }
//   GS_RETURN_IF_ERROR(CheckAllOccur(sweep, jobs));
//
// Pure functions, thread-safe. Errors: INVALID_ARGUMENT naming the flag, what was expected and what
// came (core/base/errors.h).

#ifndef GRADSYNC_BENCHMARKS_OPTIONS_JOB_SWEEP_H_
#define GRADSYNC_BENCHMARKS_OPTIONS_JOB_SWEEP_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "benchmarks/options/flag_checks.h"
#include "benchmarks/options/placed_job.h"

namespace gradsync {

// As the flags of the same names, in the singular, were written.
struct SweepFlags {
  std::vector<std::string> topologies = {"ring", "ps"};
  std::vector<std::string> links = {"auto"};
  std::vector<std::string> updates = {"worker"};
  std::vector<std::string> workers = {"2"};
  std::vector<std::string> servers = {"1"};  // looked at when ps is among the topologies
  std::vector<std::string> placements = {"dedicated"};
  std::vector<std::string> compressions = {"none"};
  std::vector<std::string> consistencies = {"bsp"};
  std::vector<std::string> zeros = {"0"};
};

// Other spellings that all programs here understand, those of flags that they have.
std::map<std::string, std::string> SweepAliases();

// What a program can measure at all.
struct SweepRules {
  std::vector<Topology> topologies = {Topology::kRing, Topology::kPs};  // as messages list them
  std::vector<Link> links = {Link::kAuto, Link::kGrpc, Link::kTcp, Link::kShm, Link::kGloo};
  bool on_hosts = false;  // jobs run on emulated hosts, and servers have places
  bool sparse = true;     // codecs that are
  int most_processes = kNoMost;

  // Servers that are ranks, beside those that are processes.
  bool ranks_own = false;
  // Where none of the consistencies that were asked for can be, bsp is taken.
  bool bulk_elsewhere = false;
  // These may occur in no job, though they were asked for.
  bool spare_topologies = false;
  bool spare_placements = false;
};

struct JobSweep {
  std::vector<Topology> topologies;
  std::vector<Link> links;
  std::vector<UpdateSite> updates;
  std::vector<int> workers;
  std::vector<int> servers;
  std::vector<Placement> placements;
  std::vector<Codec> codecs;
  std::vector<Consistency> consistencies;
  std::vector<int> zeros;
  SweepRules rules;
};

// Each value by itself.
absl::StatusOr<JobSweep> ParseJobSweep(const SweepFlags& flags, const SweepRules& rules);

// Who updates where owners keep so much for all: they, from --zero=1 on, whatever was asked for.
std::vector<UpdateSite> UpdatesWith(const JobSweep& sweep, int zero);

// The jobs with so many workers: by topology, link, what owners keep, update site, placement,
// number of servers, codec and consistency. Topology local has no link, and only ps has servers;
// those that are ranks are colocated whatever the placements are.
std::vector<PlacedJob> ListJobs(const JobSweep& sweep, int workers, const std::string& bandwidth);

// Whether each value that was asked for is one of `jobs`', which are all jobs of the sweep. The
// error says which other value it lacks.
absl::Status CheckAllOccur(const JobSweep& sweep, const std::vector<PlacedJob>& jobs);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_OPTIONS_JOB_SWEEP_H_
