#include "core/base/keep_memory.h"

#include <malloc.h>

namespace gradsync {

void KeepFreedMemory() {
#ifdef __GLIBC__
  mallopt(M_MMAP_MAX, 0);         // large blocks come from the heap, too
  mallopt(M_TRIM_THRESHOLD, -1);  // whose end is never given back
#endif
}

}  // namespace gradsync
