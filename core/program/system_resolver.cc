#include "core/program/system_resolver.h"

#include <cstdlib>

#include "grpc/grpc.h"

namespace gradsync {

void UseSystemResolver() {
  if (grpc_is_initialized() == 0) setenv("GRPC_DNS_RESOLVER", "native", /*replace=*/0);
}

}  // namespace gradsync
