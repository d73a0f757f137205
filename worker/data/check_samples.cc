#include "worker/data/check_samples.h"

#include <atomic>
#include <exception>
#include <map>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "core/base/thread.h"

namespace gradsync {
namespace {

class Checker {
 public:
  explicit Checker(const ImageDataset& dataset) : dataset_(dataset) {}

  void Work() {
    std::vector<uint8_t> scratch(dataset_.shape().bytes());
    for (int64_t index = next_++; index < dataset_.size(); index = next_++) {
      const absl::StatusOr<std::string> warning = dataset_.Inspect(index, absl::MakeSpan(scratch));
      if (warning.ok() && warning->empty()) continue;
      MutexLock lock(&mutex_);
      if (warning.ok()) {
        warnings_[index] = absl::StrCat(dataset_.name(index), ": ", *warning);
      } else {
        unreadable_[index] = std::string(warning.status().message());
      }
    }
  }

  SampleReport Report() {
    MutexLock lock(&mutex_);
    SampleReport report;
    for (auto& [index, line] : unreadable_) report.unreadable.push_back(std::move(line));
    for (auto& [index, line] : warnings_) report.warnings.push_back(std::move(line));
    return report;
  }

 private:
  const ImageDataset& dataset_;
  std::atomic<int64_t> next_{0};
  Mutex mutex_;
  std::map<int64_t, std::string> unreadable_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, std::string> warnings_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<SampleReport> CheckSamples(const ImageDataset& dataset, int threads) {
  Checker checker(dataset);
  std::vector<std::thread> pool;
  absl::Status started;
  for (int i = 0; i < threads && started.ok(); ++i) {
    try {
      const RefusableThreads refusable;
      pool.emplace_back([&checker] { checker.Work(); });
    } catch (const std::exception& e) {
      started = absl::ResourceExhaustedError(
          absl::StrCat("reading data: cannot start a thread: ", e.what()));
    }
  }
  for (std::thread& thread : pool) thread.join();
  // Fewer threads do it too.
  if (pool.empty()) return started;
  return checker.Report();
}

}  // namespace gradsync
