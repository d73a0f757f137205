// Ranks that were started differently are refused before their first step: each with one line that
// names flag, ranks and values. Ranks with another --seed, --data, --batch_size or --steps trained
// without a word, those with another --lr or --max_norm until somebody's last step, and those with
// another --topology or --link waited for each other in different places until one gave up.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <ostream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/temporary_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/job_processes.h"

namespace gradsync {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
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

// The params_sha256 of metrics in a file.
std::string HashIn(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  const std::vector<std::string> parts = absl::StrSplit(text.str(), '"');
  const auto name = std::find_if(parts.begin(), parts.end(), [](const std::string& part) {
    return part == "params_sha256" || part == "paramsSha256";
  });
  return parts.end() - name > 2 ? name[2] : "";
}

// A flag, and what rank 0 and rank 1 have for it.
struct Setting {
  std::string flag;
  std::string mine;
  std::string theirs;
  // How the message begins to say that, if not as the flags do.
  std::string mine_said = mine;
  std::string theirs_said = theirs;
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
        absl::StrCat("--", s.flag, ": expected the same on all ranks; rank 0 has ", s.mine_said);
    for (int rank = 0; rank < workers.size(); ++rank) {
      EXPECT_THAT(workers[rank].err(),
                  ElementsAre(AllOf(HasSubstr(message), HasSubstr("rank 1 has " + s.theirs_said))));
    }
  }
}

const std::vector<Setting> kSamples = {
    {"seed", "0", "7"},
    {"data", "synthetic", "synthetic:16", "synthetic of 50000 images of 32x32 pixels",
     "synthetic of 50000 images of 16x16 pixels"},
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

// Was "rank 0 has no such flag", of flags that every worker has.
TEST(AgreementTest, WhatARankLeavesOutIsNothing) {
  const std::vector<Difference> differences = {
      {{},
       {"--trace=t.pftrace"},
       "--trace: expected the same on all ranks; rank 0 has nothing, rank 1 has t.pftrace"},
      {{},
       {"--evaluate"},
       "--data (test split): expected the same on all ranks; rank 0 has nothing"}};
  for (const Difference& d : differences) {
    SCOPED_TRACE(d.message);
    WorkerProcesses workers({With(Small(), d.mine), With(Small(), d.theirs)});
    for (int rank = 0; rank < 2; ++rank) {
      ExpectRefused(workers[rank], d.message);
      EXPECT_THAT(workers[rank].err(), ElementsAre(Not(HasSubstr("no such flag"))));
    }
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

// A rank whose C library had no fused multiply-add computed another learning rate, by its last bit:
// step 14 of the first recipe, and step 114 of the second, failed with "ranks disagree on the step".
TEST(AgreementTest, HostsWhoseCLibrariesRoundDifferentlyTrainTogether) {
  const std::vector<std::string> flags =
      With(Small(), {"--topology=ring", "--lr=0.1", "--optimizer=adam", "--log_every=1000"});
  const std::vector<std::vector<std::string>> recipes = {
      {"--schedule=poly", "--lr_power=1.3", "--steps=14"},
      {"--schedule=cosine", "--steps=202", "--update=worker"},
      {"--schedule=cosine", "--steps=202", "--update=owner"},
  };
  for (const std::vector<std::string>& recipe : recipes) {
    SCOPED_TRACE(::testing::PrintToString(recipe));
    std::vector<std::vector<std::string>> both;
    std::vector<std::string> hashes;
    const auto metrics = [](int rank) {
      return absl::StrCat(::testing::TempDir(), "/rounding_", rank, ".json");
    };
    for (int rank = 0; rank < 2; ++rank) {
      both.push_back(With(With(flags, recipe), {"--metrics_json=" + metrics(rank)}));
    }
    WorkerProcesses workers(both, 2, {"", "GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX2,-FMA"});
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(workers[rank].Finish().code, 0);
      EXPECT_THAT(workers[rank].err(), ElementsAre());
      hashes.push_back(HashIn(metrics(rank)));
    }
    EXPECT_EQ(hashes[0].size(), 64u);
    EXPECT_EQ(hashes[0], hashes[1]);
  }
}

// A folder of what ranks train on. Files need not be images: ranks compare before they decode.
class DataAgreementTest : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }

  // A file of these bytes, in new folders.
  void Write(const std::string& name, const std::string& bytes) const {
    std::filesystem::create_directories(std::filesystem::path(path(name)).parent_path());
    std::ofstream(path(name), std::ios::binary) << bytes;
  }

  // An image folder NAME with `images` in each class, of both splits.
  void WriteImages(const std::string& name, const std::vector<std::string>& classes, int images,
                   const std::string& bytes = "image") const {
    for (const std::string& each : classes) {
      for (int i = 0; i < images; ++i) {
        Write(absl::StrCat(name, "/train/", each, "/", i, ".jpg"), bytes);
        Write(absl::StrCat(name, "/val/", each, "/", i, ".jpg"), bytes);
      }
    }
  }

  static std::vector<std::string> Images(const std::string& folder) {
    return With(Small(), {"--topology=ring", "--image_size=32", "--batch_size=2", "--steps=2",
                          "--data=imagefolder:" + folder});
  }

  static std::vector<std::string> Text(const std::string& file) {
    return With(Small(), {"--topology=ring", "--model=gpt", "--gpt_width=8", "--gpt_layers=1",
                          "--gpt_heads=1", "--gpt_context=4", "--batch_size=2", "--steps=2",
                          "--data=text:" + file});
  }

  // Both ranks are refused in one line, with what each has.
  static void ExpectOther(const std::vector<std::string>& mine,
                          const std::vector<std::string>& theirs,
                          const std::vector<std::string>& words, const char* flag = "--data: ") {
    SCOPED_TRACE(::testing::PrintToString(theirs));
    WorkerProcesses workers({mine, theirs});
    for (int rank = 0; rank < 2; ++rank) {
      ExpectRefused(workers[rank],
                    absl::StrCat(flag, "expected the same on all ranks; rank 0 has "));
      for (const std::string& word : words) {
        EXPECT_THAT(workers[rank].err(), ElementsAre(HasSubstr(word)));
      }
    }
  }

 private:
  const TemporaryFolder folder_ = TemporaryFolder::Create("agreement_test").value();
};

// Ranks whose folders differed trained without a word, each by its own labels, or waited for each
// other after another number of steps.
TEST_F(DataAgreementTest, FoldersOfOtherImagesAreRefusedWithWhatEachRankHas) {
  WriteImages("mine", {"ant", "bee"}, 4);
  WriteImages("more", {"ant", "bee"}, 5);
  ExpectOther(Images(path("mine")), Images(path("more")),
              {"rank 0 has imagefolder of 8 images in 2 classes (ant, bee)",
               "rank 1 has imagefolder of 10 images in 2 classes (ant, bee)"});
  WriteImages("other_names", {"ant", "wasp"}, 4);
  ExpectOther(Images(path("mine")), Images(path("other_names")),
              {"2 classes (ant, bee)", "2 classes (ant, wasp)"});
  WriteImages("one_class", {"ant"}, 8);
  ExpectOther(Images(path("mine")), Images(path("one_class")),
              {"8 images in 2 classes", "8 images in 1 class (ant)"});
  // Equal in number and class, but not in what they are called, which decides their order.
  WriteImages("renamed", {"ant", "bee"}, 4);
  std::filesystem::rename(path("renamed/train/bee/0.jpg"), path("renamed/train/bee/9.jpg"));
  ExpectOther(Images(path("mine")), Images(path("renamed")), {"(ant, bee), names "});
  WriteImages("other_bytes", {"ant", "bee"}, 4, "another image");
  ExpectOther(Images(path("mine")), Images(path("other_bytes")),
              {"(ant, bee), names ", "contents "});
}

TEST_F(DataAgreementTest, TheTestSplitIsComparedWhereItIsUsed) {
  WriteImages("mine", {"ant", "bee"}, 4);
  WriteImages("theirs", {"ant", "bee"}, 4);
  std::filesystem::remove(path("theirs/val/bee/3.jpg"));
  ExpectOther(With(Images(path("mine")), {"--evaluate"}),
              With(Images(path("theirs")), {"--evaluate"}),
              {"rank 0 has imagefolder of 8 images", "rank 1 has imagefolder of 7 images"},
              "--data (test split): ");
}

TEST_F(DataAgreementTest, TextsOfAnotherLengthOrContentAreRefused) {
  Write("mine", std::string(5000, 'a'));
  Write("longer", std::string(5001, 'a'));
  Write("other", std::string(4999, 'a') + "b");
  ExpectOther(Text(path("mine")), Text(path("longer")),
              {"rank 0 has text of 5000 bytes", "rank 1 has text of 5001 bytes"});
  ExpectOther(Text(path("mine")), Text(path("other")), {"text of 5000 bytes, contents "});
  ExpectOther(Text(path("mine")), With(Text(path("mine")), {"--data=synthetic"}),
              {"rank 0 has text of 5000 bytes", "rank 1 has synthetic of 20000 sequences"});
}

// Each rank may have the data somewhere else, as on its own disk.
TEST_F(DataAgreementTest, TheSameDataElsewhereIsTheSame) {
  Write("mine", std::string(5000, 'a'));
  Write("far/away/copy", std::string(5000, 'a'));
  std::filesystem::create_symlink(path("mine"), path("link"));
  const std::string slashes = absl::StrCat(path(""), "/./mine");
  WorkerProcesses workers(
      {Text(path("mine")), Text(path("far/away/copy")), Text(path("link")), Text(slashes)});
  for (int rank = 0; rank < workers.size(); ++rank) {
    EXPECT_EQ(workers[rank].Finish().code, 0);
    EXPECT_THAT(workers[rank].err(), IsEmpty());
  }
}

TEST(AgreementTest, ARankThatDoesNotComeIsNamed) {
  const std::vector<std::string> flags = With(Small(), {"--topology=local", "--timeout=3s"});
  WorkerProcesses workers({flags}, /*world_size=*/2);
  ExpectEnd(workers[0], 1, "rank 1 of 2 has not come");
}

}  // namespace
}  // namespace gradsync
