#include "base/system_resolver.h"

#include <cstdlib>

namespace gradsync {

void UseSystemResolver() { setenv("GRPC_DNS_RESOLVER", "native", /*replace=*/0); }

}  // namespace gradsync
