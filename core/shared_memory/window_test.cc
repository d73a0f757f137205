#include "core/shared_memory/window.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;

FileDescriptor Duplicate(int file) { return FileDescriptor(dup(file)); }

TEST(WindowTest, IsZeroedAndSeenByWhoMapsIt) {
  const auto window = Window::Create(10000).value();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(window->data()) % 4096, 0u);
  EXPECT_EQ(std::string(window->data(), 10000), std::string(10000, '\0'));
  const auto mapped = Window::Map(Duplicate(window->file()), 10000).value();
  EXPECT_NE(mapped->data(), window->data());
  std::strcpy(window->data() + 5000, "from the owner");
  EXPECT_STREQ(mapped->data() + 5000, "from the owner");
  std::strcpy(mapped->data(), "to the owner");
  EXPECT_STREQ(window->data(), "to the owner");
}

TEST(WindowTest, StaysMappedWhenItsOwnerIsGoneAndWhenItIsForgotten) {
  auto window = Window::Create(4096).value();
  const auto mapped = Window::Map(Duplicate(window->file()), 4096).value();
  std::strcpy(window->data(), "still here");
  window.reset();
  mapped->Forget();
  EXPECT_STREQ(mapped->data(), "still here");
}

TEST(WindowTest, CannotBeResized) {
  const auto window = Window::Create(8192).value();
  EXPECT_NE(ftruncate(window->file(), 4096), 0);
  EXPECT_NE(ftruncate(window->file(), 16384), 0);
}

TEST(WindowTest, OfAnotherSizeIsRefusedWithBothSizes) {
  const auto window = Window::Create(8192).value();
  const absl::Status status = Window::Map(Duplicate(window->file()), 4096).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("expected 4096 bytes, found 8192"));
}

TEST(WindowTest, WhatAnotherProcessCouldShrinkIsRefused) {
  FileDescriptor unsealed(memfd_create("unsealed", MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), 4096), 0);
  EXPECT_TRUE(absl::IsInvalidArgument(Window::Map(std::move(unsealed), 4096).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Window::Map(FileDescriptor(), 4096).status()));
}

// A job that was stopped while it set up, and went on, failed with "Interrupted system call".
TEST(WindowTest, SignalsMeanwhileDoNotMatter) {
  struct sigaction ignored = {};
  ignored.sa_handler = [](int) {};
  ASSERT_EQ(sigaction(SIGALRM, &ignored, nullptr), 0);
  const itimerval often = {{0, 5000}, {0, 5000}};
  const itimerval never = {};
  ASSERT_EQ(setitimer(ITIMER_REAL, &often, nullptr), 0);
  const absl::Status created = Window::Create(size_t{256} << 20).status();
  setitimer(ITIMER_REAL, &never, nullptr);
  EXPECT_EQ(created, absl::OkStatus());
}

TEST(WindowTest, MoreThanThereIsIsRefusedBeforeAnyIsTaken) {
  // Should it be tried all the same, it ends this process and not the machine's others.
  const rlimit at_most = {rlim_t{1} << 30, rlim_t{1} << 30};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &at_most), 0);
  const absl::Status status = Window::Create(size_t{1} << 60).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
}

}  // namespace
}  // namespace gradsync
