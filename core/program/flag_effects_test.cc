#include "core/program/flag_effects.h"

#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "core/program/flags.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

ABSL_FLAG(double, momentum, 0.9, "of sgd");

namespace gradsync {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const std::vector<FlagEffect> kTable = {
    {"momentum", {{"optimizer", true, {"sgd"}}}},
    {"nesterov", {{"optimizer", true, {"sgd"}}}, {"false"}},
    {"image_size", {{"data", true, {"imagefolder:*", "photos:*"}}}},
    {"ema_decay", {{"evaluate", false, {"false"}}, {"checkpoint", false, {""}}}, {"0"}},
    {"fused", {{"device", false, {"cpu"}}}},
    {"fused", {{"layout", true, {"last"}}}},
    {"weights", {{"resume", true, {"none", "", "auto"}}}, {""}},
};

// The flags of a program, each with the origin given, the others at their defaults.
std::vector<FlagRecord> Flags(const std::vector<FlagRecord>& set) {
  std::vector<FlagRecord> flags = {
      {"checkpoint", "", "default"},    {"data", "synthetic", "default"},
      {"device", "cpu", "default"},     {"ema_decay", "0", "default"},
      {"evaluate", "false", "default"}, {"fused", "true", "default"},
      {"image_size", "0", "default"},   {"layout", "first", "default"},
      {"momentum", "0.9", "default"},   {"nesterov", "false", "default"},
      {"optimizer", "sgd", "default"},  {"resume", "none", "default"},
      {"weights", "", "default"}};
  for (const FlagRecord& one : set) {
    for (FlagRecord& flag : flags) {
      if (flag.name == one.name) flag = one;
    }
  }
  return flags;
}

FlagRecord Given(const std::string& name, const std::string& value) {
  return {name, value, "command line"};
}

std::string Refusal(const std::vector<FlagRecord>& set) {
  std::vector<std::string> overruled;
  const absl::Status status = CheckFlagEffects(kTable, Flags(set), &overruled);
  EXPECT_THAT(overruled, IsEmpty());
  return std::string(status.message());
}

TEST(FlagEffectsTest, WhatIsSetInVainIsRefusedWithTheReason) {
  EXPECT_EQ(Refusal({Given("nesterov", "true"), Given("optimizer", "adam")}),
            "--nesterov: expected to be left out with --optimizer=adam (it is for "
            "--optimizer=sgd), found \"true\"");
  EXPECT_EQ(Refusal({Given("image_size", "64")}),
            "--image_size: expected to be left out with --data=synthetic (it is for "
            "--data=imagefolder:* or photos:*), found \"64\"");
  EXPECT_EQ(Refusal({Given("ema_decay", "0.9")}),
            "--ema_decay: expected to be left out without --evaluate or --checkpoint, found "
            "\"0.9\"");
  // A default on the command line says as much as another value.
  EXPECT_EQ(Refusal({Given("fused", "true")}),
            "--fused: expected to be left out with --device=cpu, found \"true\"");
  EXPECT_EQ(Refusal({Given("fused", "true"), Given("device", "cuda")}),
            "--fused: expected to be left out with --layout=first (it is for --layout=last), "
            "found \"true\"");
}

// Was "it is for --resume=none,  or auto".
TEST(FlagEffectsTest, AnEmptyWordIsNotListed) {
  EXPECT_EQ(Refusal({Given("weights", "w.pt"), Given("resume", "base")}),
            "--weights: expected to be left out with --resume=base (it is for --resume=none or "
            "auto), found \"w.pt\"");
}

TEST(FlagEffectsTest, WhatHasAnEffectOrPromisesNothingIsTaken) {
  EXPECT_EQ(Refusal({}), "");
  EXPECT_EQ(Refusal({Given("nesterov", "true")}), "");
  EXPECT_EQ(Refusal({Given("nesterov", "false"), Given("optimizer", "adam")}), "");
  EXPECT_EQ(Refusal({Given("optimizer", "adam")}), "");
  EXPECT_EQ(Refusal({Given("image_size", "64"), Given("data", "photos:x")}), "");
  EXPECT_EQ(Refusal({Given("ema_decay", "0.9"), Given("checkpoint", "here")}), "");
}

TEST(FlagEffectsTest, AFileMayHaveDefaultsAndBeOverruled) {
  EXPECT_EQ(Refusal({{"momentum", "0.9", "a.yaml"}, {"optimizer", "adam", "a.yaml"}}), "");
  EXPECT_EQ(Refusal({{"momentum", "0.5", "a.yaml"}, {"optimizer", "adam", "a.yaml"}}),
            "a.yaml: --momentum: expected to be left out with --optimizer=adam (it is for "
            "--optimizer=sgd), found \"0.5\"");
  std::vector<std::string> overruled;
  EXPECT_TRUE(CheckFlagEffects(kTable,
                               Flags({{"momentum", "0.5", "a.yaml"}, Given("optimizer", "adam")}),
                               &overruled)
                  .ok());
  EXPECT_THAT(overruled, ElementsAre("momentum: 0.5 of a.yaml has no effect with "
                                     "--optimizer=adam (it is for --optimizer=sgd)"));
}

TEST(FlagEffectsTest, FlagsWithoutEffectAreThoseOfTheRowsThatDoNotHold) {
  EXPECT_THAT(
      FlagsWithoutEffect(kTable, Flags({Given("optimizer", "adam"), Given("evaluate", "true"),
                                        Given("device", "cuda"), Given("layout", "last")})),
      ElementsAre("momentum", "nesterov", "image_size"));
}

}  // namespace
}  // namespace gradsync
