#include "core/program/yaml_flags.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/program/flags.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

ABSL_FLAG(std::string, config, "", "the file");
ABSL_FLAG(int64_t, steps, 10, "steps");
ABSL_FLAG(double, lr, 0.1, "learning rate");
ABSL_FLAG(bool, nesterov, false, "Nesterov's momentum");
ABSL_FLAG(std::string, model, "mlp", "model");
ABSL_FLAG(std::vector<std::string>, milestones, {}, "drops");

namespace gradsync {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

class YamlFlagsTest : public ::testing::Test {
 protected:
  absl::StatusOr<ParsedFlags> Parse(const std::string& yaml,
                                    std::vector<const char*> arguments = {}) {
    arguments.insert(arguments.begin(), {"program", "--config=job.yaml"});
    FlagOptions options;
    options.file_flag = "config";
    options.read_file = [yaml](const std::string& path) { return ParseYamlFlags(yaml, path); };
    return ParseFlagsWithOrigins(static_cast<int>(arguments.size()), arguments.data(), options);
  }

  std::string Error(const std::string& yaml) {
    const absl::Status status = Parse(yaml).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << yaml;
    return std::string(status.message());
  }

  absl::FlagSaver saver_;
};

std::string OriginOf(const ParsedFlags& parsed, const std::string& name) {
  for (const FlagRecord& flag : parsed.flags) {
    if (flag.name == name) return flag.origin;
  }
  return "no such flag";
}

TEST_F(YamlFlagsTest, AFileSetsFlagsInSectionsOrNot) {
  ASSERT_TRUE(Parse("lr: 1e-4\n"
                    "what is trained:\n"
                    "  model: 'resnet18'\n"
                    "  deeper:\n"
                    "    milestones: [30e, 60]\n"
                    "nesterov: yes  # a comment\n")
                  .ok());
  EXPECT_EQ(absl::GetFlag(FLAGS_lr), 1e-4);
  EXPECT_EQ(absl::GetFlag(FLAGS_model), "resnet18");
  EXPECT_THAT(absl::GetFlag(FLAGS_milestones), ElementsAre("30e", "60"));
  EXPECT_TRUE(absl::GetFlag(FLAGS_nesterov));
  EXPECT_EQ(absl::GetFlag(FLAGS_steps), 10);
}

TEST_F(YamlFlagsTest, ABoolIsAnyOfYamlsWordsAndATextInQuotesIsOne) {
  for (const char* word : {"true", "True", "yes", "on", "ON", "1", "y", "'yes'"}) {
    absl::SetFlag(&FLAGS_nesterov, false);
    EXPECT_TRUE(Parse(absl::StrCat("nesterov: ", word)).ok()) << word;
    EXPECT_TRUE(absl::GetFlag(FLAGS_nesterov)) << word;
  }
  for (const char* word : {"false", "No", "off", "0", "n"}) {
    absl::SetFlag(&FLAGS_nesterov, true);
    EXPECT_TRUE(Parse(absl::StrCat("nesterov: ", word)).ok()) << word;
    EXPECT_FALSE(absl::GetFlag(FLAGS_nesterov)) << word;
  }
  ASSERT_TRUE(Parse("model: 'no'").ok());
  EXPECT_EQ(absl::GetFlag(FLAGS_model), "no");
  ASSERT_TRUE(Parse("model: none").ok());
  EXPECT_EQ(absl::GetFlag(FLAGS_model), "none");
}

TEST_F(YamlFlagsTest, TheCommandLineWinsOverTheFileAndEveryoneIsRemembered) {
  const absl::StatusOr<ParsedFlags> parsed =
      Parse("lr: 0.5\nnesterov: true\nmilestones: [1]\n",
            {"--lr=0.25", "--nonesterov", "rest", "--milestones="});
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(absl::GetFlag(FLAGS_lr), 0.25);
  EXPECT_FALSE(absl::GetFlag(FLAGS_nesterov));
  EXPECT_THAT(absl::GetFlag(FLAGS_milestones), IsEmpty());
  EXPECT_THAT(parsed->positional, ElementsAre("rest"));
  EXPECT_EQ(OriginOf(*parsed, "lr"), "command line");
  EXPECT_EQ(OriginOf(*Parse("lr: 0.5"), "lr"), "job.yaml");
  EXPECT_EQ(OriginOf(*parsed, "steps"), "default");
}

TEST_F(YamlFlagsTest, AnEmptyFileSetsNothing) {
  for (const char* text : {"", "# nothing\n", "---\n", "{}"}) {
    EXPECT_TRUE(Parse(text).ok()) << text;
    EXPECT_THAT(ParseYamlFlags(text, "x").value(), IsEmpty());
  }
}

TEST_F(YamlFlagsTest, WhatIsWrongIsOneLineWithFileAndLine) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"lr: 1\nlearn: 1",
       "job.yaml:2: learn: expected a flag of this program, found an unknown name"},
      {"\nmodle: mlp",
       "job.yaml:2: modle: expected a flag of this program, found an unknown name; "
       "did you mean model?"},
      {"lr: fast", "job.yaml:1: lr: expected a number, found \"fast\""},
      {"steps: 1.5", "job.yaml:1: steps: expected an integer, found \"1.5\""},
      {"nesterov: maybe", "job.yaml:1: nesterov: expected true or false, found \"maybe\""},
      {"lr: 1\na:\n  lr: 2", "job.yaml:3: lr: expected once in the file, found again after line 1"},
      {"lr: 1\nlr: 1", "job.yaml:2: lr: expected once in the file, found again after line 1"},
      {"lr:\nsteps: 1", "job.yaml:1: lr: expected a value (\"\" for an empty text), found nothing"},
      {"lr: [1, 2]", "job.yaml:1: lr: expected a number, found a list"},
      {"lr: {steps: 2}", "job.yaml:1: lr: expected a number, found a section"},
      {"milestones: [[1], 2]", "job.yaml:1: milestones: expected texts in the list, found a list"},
      {"milestones: ['1,2']", "job.yaml:1: milestones: expected elements without a comma, found"},
      {"config: other.yaml", "job.yaml:1: config: expected a flag for the job, found the one that"},
      {"- lr", "job.yaml:1: expected lines such as \"lr: 0.1\", found a list"},
      {"lr: 1\n---\nlr: 2", "job.yaml:3: expected one document, found a second one"},
      {"a: &x\n  b: *x", "job.yaml:2: b: expected at most 50 sections within each other"},
      // Was read for ever.
      {"{lr: 1},", "job.yaml:1: expected one document, found a second one"},
      {"lr: 1\nmodel: \"mlp", "job.yaml:"},
      // Made a folder of that name.
      {"model: no",
       "job.yaml:1: model: expected a text, found no, a boolean or an empty value to YAML; write "
       "\"no\" if the text is meant, or leave the line out"},
      {"lr: 1\nmodel: True", "job.yaml:2: model: expected a text, found True, a boolean"},
      {"model: off", "job.yaml:1: model: expected a text, found off, a boolean"},
      {"milestones: Yes", "job.yaml:1: milestones: expected a text, found Yes, a boolean"},
      {"model: None", "job.yaml:1: model: expected a text, found None, a boolean or an empty"},
      {"model: ~", "job.yaml:1: model: expected a value (\"\" for an empty text), found nothing"},
      {"model: null", "job.yaml:1: model: expected a value"},
      {"steps: yes", "job.yaml:1: steps: expected an integer, found \"yes\""},
      // Was taken for a heading.
      {"a: &a {lr: 1}\nb:\n  <<: *a\n  lr: 2",
       "job.yaml:3: <<: expected the name of a flag or of a section, found YAML's merge key; "},
      // Was read up to there.
      {"lr: 1\nmodel: \"a\\0b\"",
       "job.yaml:2: model: expected a text without NUL bytes, found one"},
      {"milestones: [a, \"\\0\"]", "job.yaml:1: milestones: expected a text without NUL bytes"},
      {"\"mod\\0el\": mlp", "job.yaml:1: expected the name of a flag, found one with a NUL byte"},
      {"[a, b]: 1", "job.yaml:1: expected the name of a flag, found a list"},
  };
  for (const auto& [yaml, expected] : cases) {
    const std::string error = Error(yaml);
    EXPECT_THAT(error, StartsWith(expected)) << yaml;
    EXPECT_EQ(error.find('\n'), error.npos) << error;
  }
}

TEST_F(YamlFlagsTest, AliasesThatMultiplyEndInAnError) {
  std::string yaml = "a0: &a0 {x: 1}\n";
  for (int i = 1; i < 40; ++i) {
    absl::StrAppend(&yaml, "a", i, ": &a", i, " {b: *a", i - 1, ", c: *a", i - 1, "}\n");
  }
  EXPECT_THAT(Error(yaml), HasSubstr("expected at most 10000 lines"));
}

TEST_F(YamlFlagsTest, AFileThatIsNotThereIsNamed) {
  for (const char* path : {"/nowhere/job.yaml", "/"}) {
    const absl::Status status = ReadYamlFlags(path, "job.yaml").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << path;
    EXPECT_THAT(std::string(status.message()), StartsWith("job.yaml: expected a YAML file, found"));
  }
}

TEST_F(YamlFlagsTest, LinesAreReadBackAsTheyWereWritten) {
  for (const char* value : {"", "mlp", "0.1", "1e-05", "true", "a: b # c", "say \"x\" \\ ", "- x",
                            "line\nline", "inf", "0x10", "~", "null", "*a", "\x01", "é"}) {
    const std::string line = YamlLine({"model", value, "default", false});
    EXPECT_EQ(line.find('\n'), line.npos) << line;
    const auto settings = ParseYamlFlags(line, "x");
    ASSERT_TRUE(settings.ok()) << settings.status();
    ASSERT_EQ(settings->size(), 1);
    EXPECT_EQ(settings->front().value, value) << line;
  }
  EXPECT_EQ(YamlLine({"lr", "0.1", "", false}), "lr: 0.1");
  EXPECT_EQ(YamlLine({"milestones", "30e,60", "", true}), "milestones: [\"30e\", 60]");
  EXPECT_EQ(YamlLine({"milestones", "", "", true}), "milestones: []");
}

}  // namespace
}  // namespace gradsync
