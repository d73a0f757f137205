#include "pipeline/tensor_inbox.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "base/patient_deadline.h"

namespace gradsync {

absl::Status TensorInbox::Put(const TensorKey& key, at::Tensor tensor) {
  MutexLock lock(&mutex_);
  if (!tensors_.emplace(key, std::move(tensor)).second) {
    return absl::InvalidArgumentError(absl::StrCat(DescribeKey(key), " has come twice"));
  }
  changed_.SignalAll();
  return absl::OkStatus();
}

absl::StatusOr<at::Tensor> TensorInbox::Take(const TensorKey& key, Deadline deadline) {
  absl::optional<PatientDeadline> patience;  // what is here already needs no clock
  MutexLock lock(&mutex_);
  for (bool late = false;;) {
    if (!failed_.ok()) return failed_;
    const auto found = tensors_.find(key);
    if (found != tensors_.end()) {
      at::Tensor tensor = std::move(found->second);
      tensors_.erase(found);
      return tensor;
    }
    if (!patience.has_value()) patience.emplace(deadline);
    if (late && patience->Passed()) {
      return absl::DeadlineExceededError(absl::StrCat(DescribeKey(key), " did not come"));
    }
    late = changed_.WaitWithDeadline(&mutex_, patience->next_look());
  }
}

void TensorInbox::Fail(const absl::Status& status) {
  MutexLock lock(&mutex_);
  if (!failed_.ok()) return;
  failed_ = status;
  tensors_.clear();
  changed_.SignalAll();
}

absl::Status TensorInbox::WaitForFailure(Deadline deadline) {
  MutexLock lock(&mutex_);
  while (failed_.ok() && !changed_.WaitWithDeadline(&mutex_, deadline)) {
  }
  return failed_;
}

}  // namespace gradsync
