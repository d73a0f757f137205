#ifndef GRADSYNC_TESTS_RANK_THREADS_H_
#define GRADSYNC_TESTS_RANK_THREADS_H_

#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace gradsync {

// Runs `body(rank)` for each rank on a thread of its own and returns when all have returned.
inline void RunRanks(int world_size, const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace gradsync

#endif  // GRADSYNC_TESTS_RANK_THREADS_H_
