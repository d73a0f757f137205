#ifndef GRADSYNC_WORKER_FLAG_TOPICS_H_
#define GRADSYNC_WORKER_FLAG_TOPICS_H_

#include <vector>

#include "core/base/flags.h"

namespace gradsync {

// How --help of //worker groups its flags. Thread-safe.
std::vector<FlagTopic> WorkerTopics();

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_FLAG_TOPICS_H_
