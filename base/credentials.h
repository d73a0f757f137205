// What a link presents to its peers and what it asks of them.
#ifndef GRADSYNC_BASE_CREDENTIALS_H_
#define GRADSYNC_BASE_CREDENTIALS_H_

#include <memory>

#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"

namespace gradsync {

// Every part that opens a connection or listens for one takes a Credentials by value; nothing reads
// them from a global or from the environment. Copies share the two objects, which are immutable, so
// a Credentials may be used by many threads and may outlive the part that it was given to.
struct Credentials {
  std::shared_ptr<grpc::ChannelCredentials> channel;  // for the side that connects; never null
  std::shared_ptr<grpc::ServerCredentials> server;    // for the side that listens; never null
};

// Neither encrypted nor authenticated: for one machine, or for a network that is trusted.
Credentials InsecureCredentials();

}  // namespace gradsync

#endif  // GRADSYNC_BASE_CREDENTIALS_H_
