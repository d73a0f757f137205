#ifndef GRADSYNC_CORE_GROUP_IN_MEMORY_STORE_H_
#define GRADSYNC_CORE_GROUP_IN_MEMORY_STORE_H_

#include <memory>

#include "core/group/key_value_store.h"
#include "core/group/store_map.h"

namespace gradsync {

// A store that lives in this process and is shared by its threads: for tests in which a rank is a
// thread, and for jobs of one worker. Never UNAVAILABLE. Its watchers may outlive it. Each watch
// that pends holds a thread. Deadlines do not pass while the process is stopped.
std::shared_ptr<KeyValueStore> NewInMemoryStore();

// Over a map that others use too, such as a store's that is served: without the network. UNAVAILABLE
// once the map is closed.
std::shared_ptr<KeyValueStore> NewInMemoryStore(std::shared_ptr<StoreMap> map);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_GROUP_IN_MEMORY_STORE_H_
