#ifndef GRADSYNC_CORE_BASE_PORT_OWNER_H_
#define GRADSYNC_CORE_BASE_PORT_OWNER_H_

#include <string>

namespace gradsync {

// Which process of this host, as far as this process may see, listens for TCP connections at the
// port: "process 1234 (worker)", or "a process of user 1000" where /proc shows no more; "" where
// no process is seen to listen. For messages: by the time that it returns another process may. Thread-safe.
std::string PortOwner(int port);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_PORT_OWNER_H_
