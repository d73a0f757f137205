// A program under test: started, watched, its output kept.

#ifndef GRADSYNC_TOOLS_TEST_PROGRAM_H_
#define GRADSYNC_TOOLS_TEST_PROGRAM_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tools/subprocess.h"

namespace gradsync {

// Not thread-safe. Everything that goes wrong is a failure of the running test. The program is
// killed, if it still runs, when this object dies.
class TestProgram {
 public:
  // Starts `argv[0]`, a path in the test's runfiles or elsewhere.
  explicit TestProgram(const std::vector<std::string>& argv);

  // Waits until the program has ended; a program that runs for longer than `limit` is killed.
  ExitStatus Finish(absl::Duration limit = absl::Seconds(60));

  // Waits until `done` holds, which is asked after each piece of output.
  void Await(const std::function<bool()>& done, absl::Duration limit = absl::Seconds(60));

  // Waits for a line of stdout that contains `text`, and returns it; "" if it never came.
  std::string AwaitLine(absl::string_view text, absl::Duration limit = absl::Seconds(60));

  void Kill(int signal) { process_->Kill(signal); }

  // Lines so far, without their newlines.
  const std::vector<std::string>& out() const { return out_; }
  const std::vector<std::string>& err() const { return err_; }

 private:
  std::vector<std::string> out_;
  std::vector<std::string> err_;
  std::unique_ptr<Subprocess> process_;
};

}  // namespace gradsync

#endif  // GRADSYNC_TOOLS_TEST_PROGRAM_H_
