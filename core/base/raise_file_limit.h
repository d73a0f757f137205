#ifndef GRADSYNC_CORE_BASE_RAISE_FILE_LIMIT_H_
#define GRADSYNC_CORE_BASE_RAISE_FILE_LIMIT_H_

namespace gradsync {

// Lets this process have as many open files as the system lets it ask for: each connection is one,
// and a gRPC server that has once run out of them never accepts again (CVE-2023-4785). For main
// files. Where the limit cannot be raised, it stays.
void RaiseFileLimit();

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_RAISE_FILE_LIMIT_H_
