// A link that keeps streams between two ends of one process out of the network.

#ifndef GRADSYNC_CORE_LINKS_NEAR_LINK_H_
#define GRADSYNC_CORE_LINKS_NEAR_LINK_H_

#include <memory>

#include "core/links/frame_stream.h"

namespace gradsync {

// As `far`, but for Connect() to an address at which a listener of this very link listens: such a
// stream is one of core/links/in_process_stream.h, whose receiver reads the sender's memory. It
// says `proof` of itself, as those that `far` opens should. Listeners are reached by other
// processes over `far`, under the same address. Thread-safe.
std::shared_ptr<StreamLink> NewNearLink(std::shared_ptr<StreamLink> far, StreamProof proof);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_LINKS_NEAR_LINK_H_
