#include "core/program/flags.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/program/byte_sizes.h"
#include "gtest/gtest.h"

namespace gradsync {

struct Topology {
  std::string name;
};

bool AbslParseFlag(absl::string_view text, Topology* topology, std::string* error) {
  if (text != "ps" && text != "ring") {
    *error = "expected ps or ring";
    return false;
  }
  topology->name = std::string(text);
  return true;
}

std::string AbslUnparseFlag(const Topology& topology) { return topology.name; }

}  // namespace gradsync

ABSL_FLAG(int32_t, batch_size, 32, "samples per worker and step");
ABSL_FLAG(uint32_t, retries, 1, "how often");
ABSL_FLAG(bool, nesterov, false, "Nesterov momentum");
ABSL_FLAG(double, lr, 0.1, "learning rate");
ABSL_FLAG(std::string, model, "resnet18", "what to train");
ABSL_FLAG(absl::Duration, timeout, absl::Seconds(30), "how long to wait");
ABSL_FLAG(std::vector<std::string>, workers, {}, "numbers of workers");
ABSL_FLAG(gradsync::ByteSize, chunk_bytes, gradsync::ByteSize{64 << 10}, "of a chunk");
ABSL_FLAG(gradsync::Topology, topology, gradsync::Topology{"ps"}, "ps or ring");

namespace gradsync {
namespace {

class FlagsTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::vector<std::string>> Parse(std::vector<const char*> arguments) {
    arguments.insert(arguments.begin(), "program");
    return ParseFlags(static_cast<int>(arguments.size()), arguments.data(), options_);
  }
  std::string Error(std::vector<const char*> arguments) {
    absl::Status status = Parse(std::move(arguments)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  }

  absl::FlagSaver saver_;
  FlagOptions options_ = {"program [flags]: tests flags.",
                          {{"worker", "workers"}, {"b", "batch_size"}, {"servre", "servers"}}};
};

using Strings = std::vector<std::string>;

TEST_F(FlagsTest, ValuesComeAfterEqualsOrAsTheNextArgument) {
  EXPECT_EQ(Parse({"--batch_size=8", "--lr", "-0.5", "--timeout", "2m", "--model="}).value(),
            Strings());
  EXPECT_EQ(absl::GetFlag(FLAGS_batch_size), 8);
  EXPECT_EQ(absl::GetFlag(FLAGS_lr), -0.5);
  EXPECT_EQ(absl::GetFlag(FLAGS_timeout), absl::Minutes(2));
  EXPECT_EQ(absl::GetFlag(FLAGS_model), "");
  ASSERT_TRUE(Parse({"--model", "a=b", "-batch_size", "9", "--workers=1,2"}).ok());
  EXPECT_EQ(absl::GetFlag(FLAGS_model), "a=b");
  EXPECT_EQ(absl::GetFlag(FLAGS_batch_size), 9);
  EXPECT_EQ(absl::GetFlag(FLAGS_workers), (Strings{"1", "2"}));
}

TEST_F(FlagsTest, ABoolNeedsNoValueAndTakesNoArgument) {
  EXPECT_EQ(Parse({"--nesterov", "false"}).value(), Strings{"false"});
  EXPECT_TRUE(absl::GetFlag(FLAGS_nesterov));
  ASSERT_TRUE(Parse({"--nonesterov"}).ok());
  EXPECT_FALSE(absl::GetFlag(FLAGS_nesterov));
  ASSERT_TRUE(Parse({"--nesterov=true"}).ok());
  EXPECT_TRUE(absl::GetFlag(FLAGS_nesterov));
  ASSERT_TRUE(Parse({"--nesterov", "--nesterov=false"}).ok());
  EXPECT_FALSE(absl::GetFlag(FLAGS_nesterov));
}

TEST_F(FlagsTest, WhatIsNoFlagIsPositionalAndTwoDashesEndTheFlags) {
  EXPECT_EQ(Parse({"a", "--lr=1", "-", "-5", "-.5", "", "--", "--lr=2", "--", "--help"}).value(),
            (Strings{"a", "-", "-5", "-.5", "", "--lr=2", "--", "--help"}));
  EXPECT_EQ(absl::GetFlag(FLAGS_lr), 1);
}

TEST_F(FlagsTest, AliasesReachTheirFlag) {
  ASSERT_TRUE(Parse({"--worker=3", "-b", "4"}).ok());
  EXPECT_EQ(absl::GetFlag(FLAGS_workers), Strings{"3"});
  EXPECT_EQ(absl::GetFlag(FLAGS_batch_size), 4);
}

TEST_F(FlagsTest, AnAliasOfAFlagThatThisProgramLacksIsUnknown) {
  EXPECT_TRUE(absl::StrContains(Error({"--servre=3"}), "unknown name; --help lists them"));
  EXPECT_FALSE(absl::StrContains(Error({"--serve=3"}), "servre"));
  EXPECT_FALSE(absl::StrContains(FlagHelp(options_), "servre"));
}

TEST_F(FlagsTest, SizesAreReadAndShownWithTheirUnits) {
  ASSERT_TRUE(Parse({"--chunk_bytes=25MiB"}).ok());
  EXPECT_EQ(absl::GetFlag(FLAGS_chunk_bytes).bytes, 25 << 20);
  EXPECT_EQ(FlagValues()["chunk_bytes"], "25MiB");
  EXPECT_EQ(Error({"--chunk_bytes=lots"}),
            "flag --chunk_bytes: expected a size such as 4096, 64KiB or 25MiB, found \"lots\"");
  EXPECT_TRUE(absl::StrContains(FlagHelp(options_), "default: 64KiB\n"));
}

TEST_F(FlagsTest, UnknownFlagsAreNamedWithASimilarOne) {
  EXPECT_EQ(
      Error({"--batchsize=3"}),
      "flag --batchsize: expected a flag of this program, found an unknown name; did you mean "
      "--batch_size?");
  EXPECT_TRUE(absl::StrContains(Error({"--wroker", "3"}), "did you mean --worker?"));
  EXPECT_TRUE(absl::StrContains(Error({"--no_nesterov"}), "did you mean --nonesterov?"));
  EXPECT_EQ(Error({"--frobnicate"}),
            "flag --frobnicate: expected a flag of this program, found an unknown name; --help "
            "lists them");
  EXPECT_TRUE(absl::StrContains(Error({"--x"}), "--help lists them"));
  EXPECT_TRUE(absl::StrContains(Error({"---lr=3"}), "flag ---lr"));
  EXPECT_TRUE(absl::StrContains(Error({"--=3"}), "unknown name"));
  EXPECT_TRUE(absl::StrContains(Error({"--flagfile=x"}), "unknown name"));
}

// Users of other programs were told that a name is unknown, and no more.
TEST_F(FlagsTest, NamesOfOtherProgramsAndOtherSpellingsLeadToTheFlagHere) {
  const std::vector<std::pair<const char*, absl::string_view>> cases = {
      {"--learning_rate=1", "did you mean --lr?"},
      {"--learning-rate", "did you mean --lr?"},
      {"-np", "did you mean --workers?"},
      {"--nproc_per_node=2", "did you mean --workers?"},
      {"-n", "did you mean --workers?"},
      {"--batch-size=2", "did you mean --batch_size?"},
      {"--Batch-Size=2", "did you mean --batch_size?"},
      {"--bs=2", "did you mean --batch_size?"},
  };
  for (const auto& [argument, expected] : cases) {
    EXPECT_TRUE(absl::StrContains(Error({argument}), expected)) << Error({argument});
  }
  EXPECT_TRUE(absl::StrContains(Error({"--epochs=3"}), "unknown name; --help lists them"));
}

TEST_F(FlagsTest, FlagsOfWorkersThatStandBeforeTheDashesAreToldWhereTheyBelong) {
  options_.passed_on = {"steps", "precision", "batch_size"};
  EXPECT_EQ(
      Error({"--steps=3"}),
      "flag --steps: expected a flag of this program, found one of the workers: put it behind "
      "--, as in -- --steps=...");
  EXPECT_TRUE(absl::StrContains(Error({"--max-steps"}), "did you mean --steps of the workers?"));
  EXPECT_TRUE(absl::StrContains(Error({"--amp"}), "as in -- --precision=..."));
  EXPECT_TRUE(absl::StrContains(Error({"--percision=bf16"}), "did you mean --precision of the "));
  // One that both have is this program's.
  EXPECT_TRUE(absl::StrContains(Error({"--batch-size=3"}), "did you mean --batch_size?"));
}

TEST_F(FlagsTest, BadValuesNameFlagExpectedAndFound) {
  EXPECT_EQ(Error({"--batch_size=abc"}), "flag --batch_size: expected an integer, found \"abc\"");
  EXPECT_EQ(Error({"--batch_size", "1.5"}),
            "flag --batch_size: expected an integer, found \"1.5\"");
  EXPECT_EQ(Error({"--batch_size="}), "flag --batch_size: expected an integer, found \"\"");
  EXPECT_EQ(Error({"--retries=-1"}),
            "flag --retries: expected an integer of at least 0, found \"-1\"");
  EXPECT_EQ(Error({"--lr=fast"}), "flag --lr: expected a number, found \"fast\"");
  EXPECT_EQ(Error({"--nesterov=maybe"}),
            "flag --nesterov: expected true or false, found \"maybe\"");
  EXPECT_EQ(Error({"--timeout=5"}),
            "flag --timeout: expected a duration such as 30s or 1.5m, found \"5\"");
  EXPECT_EQ(Error({"-b", "x"}), "flag --b: expected an integer, found \"x\"");
  EXPECT_EQ(Error({"--topology=star"}), "flag --topology: expected ps or ring, found \"star\"");
  EXPECT_EQ(absl::GetFlag(FLAGS_batch_size), 32);
}

TEST_F(FlagsTest, AFlagMayStandAloneWhereTheProgramSaysWhatItMeansThen) {
  options_.alone = {{"model", "auto"}};
  EXPECT_TRUE(Parse({"--model", "--lr=0.5"}).ok());
  EXPECT_EQ(absl::GetFlag(FLAGS_model), "auto");
  EXPECT_TRUE(Parse({"--model", "vgg16"}).ok());
  EXPECT_EQ(absl::GetFlag(FLAGS_model), "vgg16");
  EXPECT_TRUE(Parse({"--model"}).ok());
  EXPECT_EQ(absl::GetFlag(FLAGS_model), "auto");
}

TEST_F(FlagsTest, MissingValuesAreNamed) {
  EXPECT_EQ(Error({"--batch_size"}),
            "flag --batch_size: expected an integer, found nothing after it");
  EXPECT_EQ(Error({"--batch_size", "--lr=1"}),
            "flag --batch_size: expected an integer, found the flag --lr=1");
}

TEST_F(FlagsTest, NegationIsForBoolsWithoutAValue) {
  EXPECT_TRUE(absl::StrContains(Error({"--nomodel"}), "--model=VALUE"));
  EXPECT_EQ(Error({"--nonesterov=true"}), "flag --nonesterov: expected no value, found \"true\"");
}

TEST_F(FlagsTest, HelpShowsUsageAndOnlyOwnFlagsWithTheirDefaults) {
  ASSERT_TRUE(Parse({"--batch_size=77"}).ok());
  for (const char* spelling : {"--help", "-h", "-help"}) {
    absl::Status status = Parse({spelling}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
    EXPECT_EQ(std::string(status.message()), FlagHelp(options_));
  }
  const std::string help = FlagHelp(options_);
  EXPECT_TRUE(absl::StartsWith(help, "program [flags]: tests flags.\n"));
  EXPECT_TRUE(absl::StrContains(help,
                                "  --batch_size, -b  (an integer)\n"
                                "      samples per worker and step\n"
                                "      default: 32\n"));
  EXPECT_TRUE(absl::StrContains(help, "--workers, --worker"));
  EXPECT_TRUE(absl::StrContains(help, "default: ps\n"));
  EXPECT_FALSE(absl::StrContains(help, "flagfile"));
  EXPECT_FALSE(absl::StrContains(help, "gtest"));
}

// Without what stands below a flag's name.
Strings HeadingsAndFlags(const std::string& help) {
  Strings lines;
  for (absl::string_view line : absl::StrSplit(help, '\n')) {
    if (!absl::StartsWith(line, "      ")) lines.emplace_back(line);
  }
  return lines;
}

TEST_F(FlagsTest, HelpShowsTopicsInTheirOrderAndWhatNoneOfThemNamesAtTheEnd) {
  options_.topics = {{"Training", {"model", "absent", "batch_size"}},
                     {"Of other programs", {"absent", "missing"}},
                     {"Learning", {"nesterov", "lr", "model"}}};
  const std::string help = FlagHelp(options_);
  EXPECT_EQ(HeadingsAndFlags(help),
            (Strings{"program [flags]: tests flags.", "", "Training:", "  --model  (a text)",
                     "  --batch_size, -b  (an integer)", "",
                     "Learning:", "  --nesterov  (true or false)", "  --lr  (a number)", "",
                     "Other:", "  --chunk_bytes  (a size such as 4096, 64KiB or 25MiB)",
                     "  --retries  (an integer of at least 0)",
                     "  --timeout  (a duration such as 30s or 1.5m)", "  --topology",
                     "  --workers, --worker  (a list such as a,b,c)", ""}));
  EXPECT_TRUE(absl::StrContains(help,
                                "\nLearning:\n"
                                "  --nesterov  (true or false)\n"
                                "      Nesterov momentum\n"
                                "      default: false\n"
                                "  --lr  (a number)\n"));
}

TEST_F(FlagsTest, HelpHasNoHeadingForTheRestWhereTopicsNameAllFlags) {
  Strings all;
  for (const auto& [name, value] : FlagValues()) all.insert(all.begin(), name);
  options_.topics = {{"All", all}};
  const std::string help = FlagHelp(options_);
  EXPECT_TRUE(absl::StrContains(help, "tests flags.\n\nAll:\n  --workers"));
  EXPECT_FALSE(absl::StrContains(help, "Other:"));
}

TEST_F(FlagsTest, HelpWithoutTopicsIsByName) {
  const std::string help = FlagHelp(options_);
  EXPECT_TRUE(absl::StrContains(help, "tests flags.\n\nFlags:\n  --batch_size"));
  EXPECT_FALSE(absl::StrContains(help, "Other:"));
}

TEST_F(FlagsTest, VersionIsPrintedWhereThereIsOne) {
  EXPECT_TRUE(absl::StrContains(Error({"--version"}), "unknown name"));
  options_.version = "program 1\n";
  for (const char* spelling : {"--version", "-version"}) {
    const absl::Status status = Parse({"--lr=1", spelling, "--unknown"}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
    EXPECT_EQ(status.message(), "program 1\n");
  }
}

TEST_F(FlagsTest, OriginsSayWhatTheCommandLineHasSet) {
  const char* arguments[] = {"program", "--lr=3", "-b", "4", "--nonesterov", "file"};
  const ParsedFlags parsed = ParseFlagsWithOrigins(6, arguments, options_).value();
  EXPECT_EQ(parsed.positional, Strings{"file"});
  EXPECT_EQ(parsed.flags.size(), FlagValues().size());
  for (const FlagRecord& flag : parsed.flags) {
    const bool set = flag.name == "lr" || flag.name == "batch_size" || flag.name == "nesterov";
    EXPECT_EQ(flag.origin, set ? "command line" : "default") << flag.name;
    EXPECT_EQ(parsed.Sets(flag.name), set);
    EXPECT_EQ(flag.value, FlagValues()[flag.name]);
    EXPECT_EQ(flag.is_list, flag.name == "workers");
  }
}

TEST_F(FlagsTest, OrExitEndsWithTwoAndOneLineOrWithZeroForHelp) {
  const char* bad[] = {"program", "--model=x\ny", "--lr=a\nb"};
  EXPECT_EXIT(ParseFlagsOrExit(3, bad, options_), ::testing::ExitedWithCode(2),
              "^flag --lr: expected a number, found \"a\\\\nb\"\n$");
  const char* help[] = {"program", "--help"};
  EXPECT_EXIT(ParseFlagsOrExit(2, help, options_), ::testing::ExitedWithCode(0), "^$");
  const char* good[] = {"program", "--lr=3", "file"};
  EXPECT_EQ(ParseFlagsOrExit(3, good, options_), Strings{"file"});
}

}  // namespace
}  // namespace gradsync
