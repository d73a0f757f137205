/* The C interface of gradsync: what other languages, and C++ without LibTorch, average gradients with.
 *
 *   gradsync_group *group;
 *   const char *const options[] = {"topology=ring", NULL};
 *   if (gradsync_join(options, &group) != 0) { puts(gradsync_error()); exit(1); }
 *   const gradsync_tensor tensors[] = {{"weight", 4096}, {"bias", 64}};
 *   if (gradsync_bind(group, tensors, 2, 0) != 0) ...
 *   each step: write gradients to gradsync_bucket_gradients(group, b); gradsync_launch(group, b), for
 *              each b in order; gradsync_wait(group, b): there is the mean of all ranks' gradients
 *   gradsync_leave(group);
 *   gradsync_free(group);
 *
 * Functions that return int return 0, or the code of an error with the numbers of gRPC's status codes
 * (gradsync/status.h), and then gradsync_error() has its text. None throws. A group is to be used by
 * one thread at a time, but for gradsync_fail(). Texts are UTF-8, and copied where they are kept.
 *
 * The interface only grows: what is here keeps its meaning as long as GRADSYNC_C_VERSION / 100 does.
 */

#ifndef GRADSYNC_GRADSYNC_GRADSYNC_C_H_
#define GRADSYNC_GRADSYNC_GRADSYNC_C_H_

#include <stdint.h>

#if defined(_WIN32)
#define GRADSYNC_API
#else
#define GRADSYNC_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Of this header; gradsync_version() is that of the library which is linked. */
#define GRADSYNC_C_VERSION 100
GRADSYNC_API int gradsync_version(void);

/* One line on the newest error of the calling thread: what was expected, where, and what was found; ""
 * before there is one. Valid until the thread's next call of a function that returns int. */
GRADSYNC_API const char *gradsync_error(void);

/* A rank that has joined a job. */
typedef struct gradsync_group gradsync_group;

/* Collective. `options`: "name=value", as the members of Options in gradsync/options.h are called,
 * with NULL at the end; NULL alone for the defaults. Blocks until the other ranks have come, for at
 * most the option `timeout` for each thing that is waited for. *group is to be freed. Errors:
 * INVALID_ARGUMENT (3) naming the option, before anybody is met; those of Group::Join(). */
GRADSYNC_API int gradsync_join(const char *const *options, gradsync_group **group);

GRADSYNC_API int gradsync_rank(const gradsync_group *group);
GRADSYNC_API int gradsync_world_size(const gradsync_group *group);

/* A parameter, and so a gradient: contiguous fp32 elements. */
typedef struct gradsync_tensor {
  const char *name;
  int64_t numel;
} gradsync_tensor;

/* Collective, once: `count` tensors in the order in which their gradients become ready, the same on all
 * ranks. `bucket_bytes`: about how many are exchanged at a time; 0: 25 MiB, after a first bucket of 1
 * MiB. Errors: those of Exchange::Bind(). */
GRADSYNC_API int gradsync_bind(gradsync_group *group, const gradsync_tensor *tensors, int64_t count,
                               int64_t bucket_bytes);

/* 0 before gradsync_bind(). */
GRADSYNC_API int gradsync_buckets(const gradsync_group *group);

/* The library's memory, fp32 elements in the host's memory, 64-byte aligned, zero at first; NULL and 0
 * where `bucket` is none. Valid until gradsync_free(). What lies between tensors must stay zero. */
GRADSYNC_API float *gradsync_bucket_gradients(const gradsync_group *group, int bucket);
GRADSYNC_API float *gradsync_bucket_parameters(const gradsync_group *group, int bucket);
GRADSYNC_API int64_t gradsync_bucket_numel(const gradsync_group *group, int bucket);

/* Where a tensor of gradsync_bind() lies: in which bucket, from which element. Errors:
 * INVALID_ARGUMENT where there is no such tensor. */
GRADSYNC_API int gradsync_place(const gradsync_group *group, int64_t tensor, int *bucket,
                                int64_t *offset);

/* Collective, between steps: all ranks' parameters become rank 0's. */
GRADSYNC_API int gradsync_broadcast(gradsync_group *group);

/* Begins the exchange of a bucket whose gradients are complete: buckets in order, each once a step.
 * Never waits for another rank. Until gradsync_wait() the gradients belong to the library. */
GRADSYNC_API int gradsync_launch(gradsync_group *group, int bucket);

/* Blocks until the bucket's gradients are the mean over ranks, for at most the option `timeout`. */
GRADSYNC_API int gradsync_wait(gradsync_group *group, int bucket);

/* Ends the job for all ranks, at any time, from any thread, because of `reason`, one line. Returns the
 * code of what the group agreed on, whose text names the first cause. */
GRADSYNC_API int gradsync_fail(gradsync_group *group, const char *reason);

/* Collective: leaves in good order, when all ranks do. Afterwards nothing is exchanged any more. */
GRADSYNC_API int gradsync_leave(gradsync_group *group);

/* A group that has not left is failed, so that no rank waits for this one. NULL is nothing. */
GRADSYNC_API void gradsync_free(gradsync_group *group);

#ifdef __cplusplus
}
#endif

#endif /* GRADSYNC_GRADSYNC_GRADSYNC_C_H_ */
