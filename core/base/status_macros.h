// Early return for functions that return absl::Status or absl::StatusOr<T>.
//
//   absl::StatusOr<int> CountWords(const std::string& path) {
//     // Declares `text`; without the type it would assign to an existing variable.
//     GS_ASSIGN_OR_RETURN(std::string text, ReadFile(path));
//     GS_RETURN_IF_ERROR(CheckUtf8(text));
//     return Count(text);
//   }
//
// The error is returned unchanged: code, message and payloads. Each macro evaluates its expression
// once. GS_ASSIGN_OR_RETURN expands to more than one statement, so it cannot be the unbraced body
// of an `if`; and a left side with a comma outside parentheses needs a type alias.
#ifndef GRADSYNC_CORE_BASE_STATUS_MACROS_H_
#define GRADSYNC_CORE_BASE_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Returns from the enclosing function when `expr`, an absl::Status, is not OK.
#define GS_RETURN_IF_ERROR(expr)                             \
  do {                                                       \
    absl::Status gs_status_internal = (expr);                \
    if (!gs_status_internal.ok()) return gs_status_internal; \
  } while (false)

// Moves the value of `expr`, an absl::StatusOr<T>, into `lhs` (a declaration or an lvalue), or
// returns its status from the enclosing function.
#define GS_ASSIGN_OR_RETURN(lhs, expr) \
  GS_ASSIGN_OR_RETURN_INTERNAL(GS_CONCAT_INTERNAL(gs_statusor_, __LINE__), lhs, expr)

#define GS_ASSIGN_OR_RETURN_INTERNAL(statusor, lhs, expr)  \
  auto statusor = (expr);                                  \
  if (!statusor.ok()) return std::move(statusor).status(); \
  lhs = *std::move(statusor)

#define GS_CONCAT_INTERNAL(a, b) GS_CONCAT_AGAIN_INTERNAL(a, b)
#define GS_CONCAT_AGAIN_INTERNAL(a, b) a##b

#endif  // GRADSYNC_CORE_BASE_STATUS_MACROS_H_
