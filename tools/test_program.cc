#include "tools/test_program.h"

#include <poll.h>

#include <csignal>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "core/base/deadline.h"
#include "gtest/gtest.h"

namespace gradsync {

TestProgram::TestProgram(const std::vector<std::string>& argv) {
  auto process = Subprocess::Start(argv, [this](absl::string_view line, bool is_stderr) {
    (is_stderr ? err_ : out_).push_back(std::string(line));
  });
  if (process.ok()) {
    process_ = *std::move(process);
  } else {
    ADD_FAILURE() << process.status();
  }
}

void TestProgram::Await(const std::function<bool()>& done, absl::Duration limit) {
  const Deadline deadline = Deadline::In(limit);
  while (process_ != nullptr && !process_->exit_status().has_value() && !done()) {
    pollfd fds[] = {{process_->stdout_fd(), POLLIN, 0}, {process_->stderr_fd(), POLLIN, 0}};
    poll(fds, 2, /*timeout=*/10);
    process_->Poll();
    if (deadline.passed()) {
      ADD_FAILURE() << "nothing came of it within " << limit << "; it printed\n"
                    << absl::StrJoin(out_, "\n") << "\n"
                    << absl::StrJoin(err_, "\n");
      return;
    }
  }
}

std::string TestProgram::AwaitLine(absl::string_view text, absl::Duration limit) {
  std::string found;
  size_t seen = 0;
  Await(
      [&] {
        while (seen < out_.size() && found.empty()) {
          if (absl::StrContains(out_[seen], text)) found = out_[seen];
          ++seen;
        }
        return !found.empty();
      },
      limit);
  return found;
}

ExitStatus TestProgram::Finish(absl::Duration limit) {
  Await([] { return false; }, limit);
  if (process_ == nullptr) return {};
  while (!process_->exit_status().has_value()) {
    process_->Kill(SIGKILL);
    process_->Poll();
  }
  return *process_->exit_status();
}

}  // namespace gradsync
