#ifndef GRADSYNC_CORE_BASE_FREE_DESCRIPTOR_H_
#define GRADSYNC_CORE_BASE_FREE_DESCRIPTOR_H_

namespace gradsync {

// Whether this process can open another file or socket now. Without, a server takes no connection,
// while its kernel still does. Thread-safe.
bool HasFreeDescriptor();

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_FREE_DESCRIPTOR_H_
