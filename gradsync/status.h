// How gradsync says that something failed: as a value, or, for programs that prefer it, as an exception.

#ifndef GRADSYNC_GRADSYNC_STATUS_H_
#define GRADSYNC_GRADSYNC_STATUS_H_

#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

namespace gradsync {

// With the numbers that gRPC gives these names. What a code means here:
// docs/use/library.md#errors-of-the-library.
enum class StatusCode : int {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
  kUnauthenticated = 16,
};

// Success, or an error's code with one line that says what was expected, where, and what was found.
class [[nodiscard]] Status {
 public:
  Status() = default;  // success
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

  // Throws Error unless ok().
  void OrThrow() const;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

// A failure of the library as an exception; what() is the status's message.
class Error : public std::runtime_error {
 public:
  explicit Error(Status status)
      : std::runtime_error(status.message()), status_(std::move(status)) {}
  const Status& status() const { return status_; }

 private:
  Status status_;
};

inline void Status::OrThrow() const {
  if (!ok()) throw Error(*this);
}

// A T, or why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT: for `return value;`
  Result(Status status) : status_(std::move(status)) {}  // NOLINT: for `return status;`

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  // Throws Error unless ok().
  T& value() & {
    status_.OrThrow();
    return *value_;
  }
  T value() && {
    status_.OrThrow();
    return std::move(*value_);
  }

  // Only where ok().
  T& operator*() { return *value_; }
  T* operator->() { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace gradsync

#endif  // GRADSYNC_GRADSYNC_STATUS_H_
