#include "gradsync/join/nccl_settings.h"

#include <map>

#include "gtest/gtest.h"

namespace gradsync {
namespace {

std::string SettingsOf(const std::map<std::string, std::string>& environment) {
  return NcclSettings([&](absl::string_view name) -> absl::optional<std::string> {
    const auto found = environment.find(std::string(name));
    if (found == environment.end()) return absl::nullopt;
    return found->second;
  });
}

TEST(NcclSettingsTest, WhatNcclWasToldToChoose) {
  EXPECT_EQ(SettingsOf({}), "");
  EXPECT_EQ(SettingsOf({{"NCCL_ALGO", "allreduce:ring"}, {"NCCL_DEBUG", "INFO"}}),
            "NCCL_ALGO=allreduce:ring");
  EXPECT_EQ(SettingsOf({{"NCCL_PROTO", "Simple"}, {"NCCL_ALGO", "Ring"}}),
            "NCCL_ALGO=Ring NCCL_PROTO=Simple");
  EXPECT_EQ(SettingsOf({{"NCCL_ALGO", ""}, {"NCCL_PROTO", "LL"}}), "NCCL_PROTO=LL");
}

TEST(NcclSettingsTest, VersionsAreWrittenAsPeopleDo) {
  EXPECT_EQ(NcclVersionName(22809), "2.28.9");
  EXPECT_EQ(NcclVersionName(23112), "2.31.12");
  EXPECT_EQ(NcclVersionName(0), "");
}

}  // namespace
}  // namespace gradsync
