// What parameter servers listen with: one address for streams over gRPC and over TCP.

#ifndef GRADSYNC_CORE_LINKS_SERVER_LINK_H_
#define GRADSYNC_CORE_LINKS_SERVER_LINK_H_

#include <memory>

#include "core/links/frame_stream.h"
#include "core/links/grpc_stream.h"
#include "core/links/tcp_stream.h"

namespace gradsync {

// A listener of this link takes what streams of NewGrpcLink() and of NewTcpLink() come, and gRPC's
// other calls; the first bytes of a connection say which it is. Connect() is NewGrpcLink()'s.
// Thread-safe; a StreamListener's destructor must not run on a thread of the link.
//
// `tcp.others` is set by it. Errors of Listen(): those of NewTcpLink().
std::shared_ptr<StreamLink> NewServerLink(GrpcLinkOptions grpc = {}, TcpLinkOptions tcp = {});

}  // namespace gradsync

#endif  // GRADSYNC_CORE_LINKS_SERVER_LINK_H_
