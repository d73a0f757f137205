#include "base/credentials.h"

namespace gradsync {

Credentials InsecureCredentials() {
  return Credentials{grpc::InsecureChannelCredentials(), grpc::InsecureServerCredentials()};
}

}  // namespace gradsync
