#ifndef GRADSYNC_CORE_PROGRAM_SYSTEM_RESOLVER_H_
#define GRADSYNC_CORE_PROGRAM_SYSTEM_RESOLVER_H_

namespace gradsync {

// Makes gRPC look names up as the system does (getaddrinfo(), /etc/nsswitch.conf), as everything else
// of this process does, unless the environment says otherwise (GRPC_DNS_RESOLVER). gRPC's own client
// for DNS does not know names that come from elsewhere, such as a host's own from nss-myhostname,
// nor the interfaces of link-local addresses. Call it from main, before other threads start. Does nothing
// once gRPC runs, which reads the variable more than once and aborts where it has changed.
void UseSystemResolver();

}  // namespace gradsync

#endif  // GRADSYNC_CORE_PROGRAM_SYSTEM_RESOLVER_H_
