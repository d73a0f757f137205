// All of gradsync for a program that trains with LibTorch. Without LibTorch: gradsync/exchange.h; from
// other languages: gradsync/gradsync_c.h.

#ifndef GRADSYNC_GRADSYNC_GRADSYNC_H_
#define GRADSYNC_GRADSYNC_GRADSYNC_H_

#include "gradsync/ddp.h"        // IWYU pragma: export
#include "gradsync/group.h"      // IWYU pragma: export
#include "gradsync/optimizer.h"  // IWYU pragma: export
#include "gradsync/options.h"    // IWYU pragma: export
#include "gradsync/sampler.h"    // IWYU pragma: export
#include "gradsync/status.h"     // IWYU pragma: export
#include "gradsync/version.h"    // IWYU pragma: export

#endif  // GRADSYNC_GRADSYNC_GRADSYNC_H_
