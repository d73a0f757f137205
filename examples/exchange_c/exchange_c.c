/* A rank in C, which links no LibTorch: fits a line to points, of which each rank has its own.
 * Arguments are options, name=value, as gradsync/options.h has them:
 *
 *   torchrun --no_python --nproc_per_node=2 build/exchange_c topology=ring
 */

#include <openssl/sha.h>
#include <stdio.h>
#include <stdlib.h>

#include "gradsync/gradsync_c.h"

enum { kTensors = 2, kPoints = 32, kSteps = 50 };

static gradsync_group *group = NULL;

static void Check(int code) {
  if (code == 0) return;
  fprintf(stderr, "error %d: %s\n", code, gradsync_error());
  gradsync_free(group);
  exit(1);
}

int main(int argc, char **argv) {
  const gradsync_tensor tensors[kTensors] = {{"slope", 1}, {"offset", 1}};
  float *gradients[kTensors], *parameters[kTensors], values[kTensors];
  unsigned char sha256[SHA256_DIGEST_LENGTH];
  int rank, step, b, t, i;
  (void)argc;
  Check(gradsync_join((const char *const *)(argv + 1), &group));
  Check(gradsync_bind(group, tensors, kTensors, 0));
  for (t = 0; t < kTensors; ++t) {
    int64_t offset;
    Check(gradsync_place(group, t, &b, &offset));
    gradients[t] = gradsync_bucket_gradients(group, b) + offset;
    parameters[t] = gradsync_bucket_parameters(group, b) + offset;
  }
  rank = gradsync_rank(group);
  Check(gradsync_broadcast(group));
  for (step = 1; step <= kSteps; ++step) {
    *gradients[0] = *gradients[1] = 0;
    for (i = 0; i < kPoints; ++i) {
      const float x = (float)((i * 7 + rank * 3) % kPoints) / kPoints;
      const float error = *parameters[0] * x + *parameters[1] - (3 * x + 1);
      *gradients[0] += 2 * error * x / kPoints;
      *gradients[1] += 2 * error / kPoints;
    }
    for (b = 0; b < gradsync_buckets(group); ++b) Check(gradsync_launch(group, b));
    for (b = 0; b < gradsync_buckets(group); ++b) Check(gradsync_wait(group, b));
    for (t = 0; t < kTensors; ++t) *parameters[t] -= 0.5f * *gradients[t];
  }
  for (t = 0; t < kTensors; ++t) values[t] = *parameters[t];
  SHA256((const unsigned char *)values, sizeof values, sha256);
  printf("rank %d of %d: slope %g, offset %g\n", rank, gradsync_world_size(group),
         (double)*parameters[0], (double)*parameters[1]);
  Check(gradsync_leave(group));
  gradsync_free(group);
  printf("params_sha256 ");
  for (i = 0; i < SHA256_DIGEST_LENGTH; ++i) printf("%02x", sha256[i]);
  printf("\n");
  return 0;
}
