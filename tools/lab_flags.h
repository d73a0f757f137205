// The flags with which programs say how links of an emulated network behave, beside their rate:
// --burst, --congestion_control, --tcp_rmem, --tcp_wmem. Only for programs: linking it defines
// them.

#ifndef GRADSYNC_TOOLS_LAB_FLAGS_H_
#define GRADSYNC_TOOLS_LAB_FLAGS_H_

#include "absl/status/status.h"
#include "tools/network_lab.h"

namespace gradsync {

// With the defaults of NetworkLabOptions for hosts and rate. After the command line was parsed;
// values are checked by NetworkLab::Create().
NetworkLabOptions LabFromFlags();

// For a program that emulates nothing unless it is given --bandwidth, and was not: whether nothing
// is asked of links. Errors: INVALID_ARGUMENT naming the flag.
absl::Status CheckNoLab();

}  // namespace gradsync

#endif  // GRADSYNC_TOOLS_LAB_FLAGS_H_
