#include "worker/effective_flags.h"

#include <string>

#include "core/program/flags.h"
#include "core/program/yaml_flags.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

EffectiveFlags Some() {
  EffectiveFlags flags;
  flags.flags = {{"evaluate", "false", "default", false},
                 {"lr", "0.02", "job.yaml", false},
                 {"lr_milestones", "30e,60e", "job.yaml", true},
                 {"model", "mlp", "command line", false},
                 {"rank", "3", "Slurm", false},
                 {"steps", "20", "command line", false}};
  flags.topics = {{"Who", {"rank"}}, {"Model", {"model", "steps", "gone"}}};
  return flags;
}

TEST(EffectiveFlagsTest, OneLineHasWhatIsNotAtItsDefaultByWhoSaidIt) {
  EXPECT_EQ(NotableFlags(Some().flags),
            "flags by job.yaml: lr=0.02, lr_milestones=30e,60e; by command line: model=mlp, "
            "steps=20; by Slurm: rank=3");
  EXPECT_EQ(NotableFlags({}), "flags at their defaults");
  EXPECT_THAT(NotableFlags({{"model", "a\nb", "command line", false}}), HasSubstr("a\\nb"));
}

TEST(EffectiveFlagsTest, AllFlagsAreShownByTopicWithTheirOrigins) {
  EXPECT_EQ(AllFlags(Some()),
            "\n# Who\nrank: 3  # Slurm\n"
            "\n# Model\nmodel: \"mlp\"  # command line\nsteps: 20  # command line\n"
            "\n# Other\nevaluate: false  # default\nlr: 0.02  # job.yaml\n"
            "lr_milestones: [\"30e\", \"60e\"]  # job.yaml\n");
}

TEST(EffectiveFlagsTest, AJobFileHasAllThatIsOfTheJobAndNothingOfTheProcess) {
  const std::string file = JobFile(Some());
  EXPECT_THAT(file, Not(HasSubstr("rank")));
  const auto settings = ParseYamlFlags(file, "x");
  ASSERT_TRUE(settings.ok()) << settings.status();
  ASSERT_EQ(settings->size(), Some().flags.size() - 1);
  for (const FlagSetting& setting : *settings) {
    bool found = false;
    for (const FlagRecord& flag : Some().flags) {
      if (flag.name == setting.name) found = flag.value == setting.value;
    }
    EXPECT_TRUE(found) << setting.name;
  }
}

}  // namespace
}  // namespace gradsync
