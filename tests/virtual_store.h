// The rendezvous store between the processes of a VirtualWorld: the map, the alarm clocks and the
// rules of core/group/grpc_store.h, with messages of a VirtualNetwork in place of gRPC.

#ifndef GRADSYNC_TESTS_VIRTUAL_STORE_H_
#define GRADSYNC_TESTS_VIRTUAL_STORE_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/deadline.h"
#include "core/group/grpc_store.h"
#include "core/group/key_value_store.h"
#include "tests/virtual_network.h"
#include "tests/virtual_world.h"

namespace gradsync {

// Serves a store in the process that makes it, at its process's name, until it is destroyed.
class VirtualStoreServer {
 public:
  virtual ~VirtualStoreServer() = default;

  // For this process alone.
  virtual std::shared_ptr<KeyValueStore> local() const = 0;
};

// Where stores of one network are served.
class VirtualStores {
 public:
  VirtualStores(VirtualWorld* world, VirtualNetwork* network) : world_(world), network_(network) {}
  // Forgets what was to be heard after a message that never came.
  ~VirtualStores();

  // On a thread of the process that serves.
  std::unique_ptr<VirtualStoreServer> Serve(const std::string& address);

  // On a thread of the process that asks; waits until somebody serves there. Errors: as
  // ConnectStore().
  absl::StatusOr<std::shared_ptr<ConnectedStore>> Connect(const std::string& address,
                                                          Deadline deadline);

 private:
  friend class VirtualStoreServerImpl;
  friend class VirtualStoreClient;
  struct Service;

  VirtualWorld* const world_;
  VirtualNetwork* const network_;
  std::map<std::string, std::shared_ptr<Service>> services_;
  // Of all clients. What has arrived in one keeps its client, and so the lane itself.
  std::vector<std::weak_ptr<VirtualNetwork::Lane>> lanes_;
};

}  // namespace gradsync

#endif  // GRADSYNC_TESTS_VIRTUAL_STORE_H_
