/* A rank of a program in C, which averages gradients and says what it got:
 *
 *   c_rank HOW STEPS [NAME=VALUE]...    options of gradsync_join()
 *
 * HOW it ends after its steps: "leaves"; "frees" its group without leaving; "fails" the group; "dies";
 * or "other", which has other tensors than the rest. Prints "ok SUM" with the sum of its parameters, or
 * "error CODE TEXT". */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gradsync/gradsync_c.h"

enum { kTensors = 3 };

static gradsync_group *group = NULL;

static int Failed(int code) {
  printf("error %d %s\n", code, gradsync_error());
  gradsync_free(group);
  return 1;
}

/* What rank `rank` contributes in `step` to element `i` of tensor `t`: an integer, whose sums and halves
 * are exact. */
static float Gradient(int rank, int step, int t, int64_t i) {
  return (float)((rank + 1) * (2 + (i + t) % 5) + 2 * step);
}

static float *GradientsOf(int t) {
  int bucket = 0;
  int64_t offset = 0;
  if (gradsync_place(group, t, &bucket, &offset) != 0) return NULL;
  return gradsync_bucket_gradients(group, bucket) + offset;
}

static float *ParametersOf(int t) {
  int bucket = 0;
  int64_t offset = 0;
  if (gradsync_place(group, t, &bucket, &offset) != 0) return NULL;
  return gradsync_bucket_parameters(group, bucket) + offset;
}

int main(int argc, char **argv) {
  gradsync_tensor tensors[kTensors] = {{"weight", 70001}, {"scale", 1}, {"bias", 1000}};
  const char *how = argc > 2 ? argv[1] : "";
  const int steps = argc > 2 ? atoi(argv[2]) : 0;
  double sum = 0;
  int code, b, t, step;
  int64_t i;
  if (gradsync_version() != GRADSYNC_C_VERSION) return 3;
  code = gradsync_join(argc > 3 ? (const char *const *)(argv + 3) : NULL, &group);
  if (code != 0) return Failed(code);
  const int rank = gradsync_rank(group), ranks = gradsync_world_size(group);
  if (strcmp(how, "other") == 0) tensors[1].numel = 2;
  code = gradsync_bind(group, tensors, kTensors, 65536);
  if (code != 0) return Failed(code);
  for (t = 0; t < kTensors; ++t) {
    for (i = 0; i < tensors[t].numel; ++i) ParametersOf(t)[i] = (float)(rank == 0 ? 1 : -1);
  }
  code = gradsync_broadcast(group);
  if (code != 0) return Failed(code);
  for (step = 1; step <= steps; ++step) {
    for (t = 0; t < kTensors; ++t) {
      for (i = 0; i < tensors[t].numel; ++i) GradientsOf(t)[i] = Gradient(rank, step, t, i);
    }
    for (b = 0; b < gradsync_buckets(group); ++b) {
      code = gradsync_launch(group, b);
      if (code != 0) return Failed(code);
    }
    for (b = 0; b < gradsync_buckets(group); ++b) {
      code = gradsync_wait(group, b);
      if (code != 0) return Failed(code);
    }
    for (t = 0; t < kTensors; ++t) {
      for (i = 0; i < tensors[t].numel; ++i) {
        float mean = 0;
        int r;
        for (r = 0; r < ranks; ++r) mean += Gradient(r, step, t, i);
        mean /= (float)ranks;
        if (GradientsOf(t)[i] != mean) {
          printf("wrong: tensor %d element %ld: expected %g, found %g\n", t, (long)i, mean,
                 GradientsOf(t)[i]);
          return 4;
        }
        ParametersOf(t)[i] -= 0.25f * mean;
      }
    }
  }
  if (strcmp(how, "dies") == 0) _exit(9);
  if (strcmp(how, "fails") == 0) {
    code = gradsync_fail(group, "the loss is not a number");
    return Failed(code);
  }
  if (strcmp(how, "frees") == 0) {
    gradsync_free(group);
    return 0;
  }
  for (t = 0; t < kTensors; ++t) {
    for (i = 0; i < tensors[t].numel; ++i) sum += ParametersOf(t)[i];
  }
  code = gradsync_leave(group);
  if (code != 0) return Failed(code);
  printf("ok %.1f\n", sum);
  gradsync_free(group);
  return 0;
}
