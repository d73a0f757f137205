// Ranks that were started differently are refused before their first step: each with one line that
// names flag, ranks and values. Ranks with another --seed, --data, --batch_size or --steps trained
// without a word, those with another --lr or --max_norm until somebody's last step, and those with
// another --topology or --link waited for each other in different places until one gave up.

#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker_processes.h"

namespace gradsync {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// Far longer than a test may take, so that a refusal is none of a rank that was waited for.
constexpr char kPatience[] = "--timeout=600s";

std::vector<std::string> Small() {
  return {"--model=mlp", "--batch_size=4", "--steps=20", kPatience};
}

void ExpectEnd(TestProgram& rank, int code, const std::string& message) {
  EXPECT_EQ(rank.Finish().code, code);
  EXPECT_THAT(rank.err(), ElementsAre(HasSubstr(message)));
  for (const std::string& line : rank.out()) EXPECT_THAT(line, Not(HasSubstr("step ")));
}

void ExpectRefused(TestProgram& rank, const std::string& message) { ExpectEnd(rank, 2, message); }

// A flag, and what rank 0 and rank 1 have for it.
struct Setting {
  std::string flag;
  std::string mine;
  std::string theirs;
};

// Two ranks that have `common` and differ in `settings`, all of which both must name.
void ExpectNamed(const std::vector<std::string>& common, const std::vector<Setting>& settings) {
  std::vector<std::vector<std::string>> flags = {common, common};
  for (const Setting& s : settings) {
    flags[0].push_back(absl::StrCat("--", s.flag, "=", s.mine));
    flags[1].push_back(absl::StrCat("--", s.flag, "=", s.theirs));
  }
  SCOPED_TRACE(::testing::PrintToString(flags[1]));
  WorkerProcesses workers(flags);
  for (int rank = 0; rank < workers.size(); ++rank) ExpectRefused(workers[rank], ": expected");
  for (const Setting& s : settings) {
    const std::string message =
        absl::StrCat("--", s.flag, ": expected the same on all ranks; rank 0 has ", s.mine,
                     ", rank 1 has ", s.theirs);
    for (int rank = 0; rank < workers.size(); ++rank) {
      EXPECT_THAT(workers[rank].err(), ElementsAre(HasSubstr(message)));
    }
  }
}

const std::vector<Setting> kSamples = {{"seed", "0", "7"},
                                       {"data", "synthetic", "synthetic:16"},
                                       {"batch_size", "4", "5"},
                                       {"steps", "20", "21"}};
const std::vector<Setting> kTraining = {{"lr", "0.01", "0.02"},
                                        {"max_norm", "0", "1"},
                                        {"model", "mlp", "resnet18"},
                                        {"schedule", "constant", "cosine"}};

TEST(AgreementTest, EachFlagAlone) {
  for (const std::vector<Setting>& settings : {kSamples, kTraining}) {
    for (const Setting& setting : settings) {
      ExpectNamed(With(Small(), {"--topology=ring", "--link=grpc"}), {setting});
    }
  }
}

struct Place {
  std::string topology;
  std::string link;
};

std::ostream& operator<<(std::ostream& out, const Place& place) {
  return out << place.topology << " over " << place.link;
}

class AgreementPlaceTest : public ::testing::TestWithParam<Place> {
 protected:
  // Nobody listens where the servers should be: nobody is asked.
  std::vector<std::string> Flags() const {
    std::vector<std::string> flags =
        With(Small(), {"--topology=" + GetParam().topology, "--link=" + GetParam().link});
    if (GetParam().topology == "ps") flags.push_back("--servers=127.0.0.1:1");
    return flags;
  }
};

TEST_P(AgreementPlaceTest, RanksThatDifferInTheirSamples) { ExpectNamed(Flags(), kSamples); }

TEST_P(AgreementPlaceTest, RanksThatDifferInTheirTraining) { ExpectNamed(Flags(), kTraining); }

INSTANTIATE_TEST_SUITE_P(All, AgreementPlaceTest,
                         ::testing::Values(Place{"local", "auto"}, Place{"ring", "auto"},
                                           Place{"ring", "grpc"}, Place{"ring", "shm"},
                                           Place{"ring", "gloo"}, Place{"ps", "auto"},
                                           Place{"ps", "grpc"}, Place{"ps", "shm"}),
                         [](const auto& info) {
                           return absl::StrCat(info.param.topology, "_", info.param.link);
                         });

struct Difference {
  std::vector<std::string> mine;
  std::vector<std::string> theirs;
  std::string message;
};

// All of the job, which a plan's fingerprint knows in part, and where ranks are to meet.
TEST(AgreementTest, EveryOtherFlagThatMustBeTheSame) {
  const std::string expected = ": expected the same on all ranks; rank 0 has ";
  const std::vector<Difference> differences = {
      {{"--topology=ring"}, {"--topology=local"}, "--topology" + expected + "ring, rank 1 has "},
      {{"--topology=ring", "--link=grpc"}, {"--topology=ring", "--link=shm"}, "--link" + expected},
      {{"--topology=ps", "--servers=127.0.0.1:1,127.0.0.1:2"},
       {"--topology=ps", "--servers=127.0.0.1:2,127.0.0.1:1"},
       "--servers" + expected + "127.0.0.1:1,127.0.0.1:2, rank 1 has 127.0.0.1:2,127.0.0.1:1"},
      {{},
       {"--momentum=0.5", "--nesterov", "--weight_decay=0", "--update=owner"},
       "--nesterov" + expected + "false, rank 1 has true; "},
      {{},
       {"--label_smoothing=0.1", "--lr_warmup_steps=2", "--optimizer=adam"},
       "--optimizer" + expected + "sgd, rank 1 has adam"},
      {{"--schedule=step", "--lr_milestones=5,9"},
       {"--schedule=step", "--lr_milestones=5,10"},
       "--lr_milestones" + expected + "5,9, rank 1 has 5,10"},
      {{"--topology=ring"},
       {"--topology=ring", "--compression=bf16", "--bucket_bytes=1000"},
       "--bucket_bytes" + expected},
      {{}, {"--straggler=0:2"}, "--straggler" + expected + "nothing, rank 1 has 0:2"},
      {{}, {"--precision=bf16"}, "--precision" + expected + "fp32, rank 1 has bf16"},
  };
  for (const Difference& d : differences) {
    SCOPED_TRACE(d.message);
    WorkerProcesses workers({With(Small(), d.mine), With(Small(), d.theirs)});
    for (int rank = 0; rank < 2; ++rank) ExpectRefused(workers[rank], d.message);
  }
}

TEST(AgreementTest, RanksWithTheSameValueAreNamedTogether) {
  const std::vector<std::string> one = With(Small(), {"--topology=ring", "--lr=0.1"});
  const std::vector<std::string> two = With(Small(), {"--topology=ring", "--lr=0.2"});
  WorkerProcesses workers({one, two, one});
  for (int rank = 0; rank < 3; ++rank) {
    ExpectRefused(workers[rank],
                  "--lr: expected the same on all ranks; ranks 0, 2 have 0.1, rank 1 has 0.2");
  }
}

TEST(AgreementTest, WhatEachRankHasForItselfMayDiffer) {
  const std::vector<std::string> flags = With(Small(), {"--topology=ring", "--lr=1e-2"});
  WorkerProcesses workers(
      {flags, With(flags, {"--lr=0.01", "--threads=2", "--loader_threads=2", "--timeout=500s",
                           "--log_every=3", "--local_rank=1"})});
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(workers[rank].Finish().code, 0);
}

TEST(AgreementTest, ARankThatDoesNotComeIsNamed) {
  const std::vector<std::string> flags = With(Small(), {"--topology=local", "--timeout=3s"});
  WorkerProcesses workers({flags}, /*world_size=*/2);
  ExpectEnd(workers[0], 1, "rank 1 of 2 has not come");
}

}  // namespace
}  // namespace gradsync
