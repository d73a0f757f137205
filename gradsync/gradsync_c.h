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
 * one thread at a time, any thread, but for gradsync_fail(). A process may have several groups, of jobs
 * with different masters. Texts are UTF-8, and copied where they are kept.
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
#define GRADSYNC_C_VERSION 101
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

/* Called by gradsync_join_with() on rank 0 once it listens, before it waits for anybody: `address` is
 * host:port, what the other ranks are to have as their option master where rank 0's has port 0, any free
 * one. Valid during the call. Returns 0, or anything else where it cannot be told, which ends the join
 * with ABORTED (10). */
typedef int (*gradsync_listening)(const char *address, void *context);

/* gradsync_join(), with a call of `on_listening`, which may be NULL, with `context`, on this thread. Not
 * called where there is no option master. */
GRADSYNC_API int gradsync_join_with(const char *const *options, gradsync_listening on_listening,
                                    void *context, gradsync_group **group);

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

/* Collective calls, over the caller's own memory of the host: gradsync/collectives.h, and there the rules
 * of DataType, ReduceOp and of memory that overlaps. All ranks make the same calls in the same order; they
 * block until results are here and inputs may change again, at most for the option `timeout`, and may come
 * between gradsync_launch() and gradsync_wait(). The first one connects the ranks. With parameter servers
 * workers do the servers' part. With the option topology=local, or one rank, each is alone, in a world of
 * one, and all of these work without anybody. Errors: INVALID_ARGUMENT for arguments that are wrong by
 * themselves, which changes nothing; FAILED_PRECONDITION (9), on all ranks, where two make different
 * calls, naming both. But for the first the group has failed then. */
enum {
  GRADSYNC_FLOAT32 = 0,
  GRADSYNC_FLOAT64 = 1,
  GRADSYNC_FLOAT16 = 2,
  GRADSYNC_BFLOAT16 = 3,
  GRADSYNC_INT8 = 4,
  GRADSYNC_UINT8 = 5,
  GRADSYNC_INT16 = 6,
  GRADSYNC_INT32 = 7,
  GRADSYNC_INT64 = 8,
  GRADSYNC_BOOL = 9
};
enum {
  GRADSYNC_SUM = 0,
  GRADSYNC_AVG = 1,
  GRADSYNC_PRODUCT = 2,
  GRADSYNC_MIN = 3,
  GRADSYNC_MAX = 4,
  GRADSYNC_BAND = 5,
  GRADSYNC_BOR = 6,
  GRADSYNC_BXOR = 7
};

/* In place, element by element: `op` of all ranks' data, on all ranks. */
GRADSYNC_API int gradsync_all_reduce(gradsync_group *group, void *data, int64_t count, int type,
                                     int op);

/* All ranks' data become those of rank `root`. */
GRADSYNC_API int gradsync_broadcast_bytes(gradsync_group *group, void *data, int64_t bytes,
                                          int root);

/* Each rank gives `bytes`; `output` has room for all ranks', in their order. */
GRADSYNC_API int gradsync_all_gather(gradsync_group *group, const void *input, void *output,
                                     int64_t bytes);

/* Each rank gives world_size times `count` elements, and gets `op` of all ranks' elements from its own
 * rank times `count` on. */
GRADSYNC_API int gradsync_reduce_scatter(gradsync_group *group, const void *input, void *output,
                                         int64_t count, int type, int op);

/* Gives rank r input_bytes[r] of `input`, and takes output_bytes[r] from it into `output`, each one
 * behind the other in the order of ranks. Both arrays have world_size elements. */
GRADSYNC_API int gradsync_all_to_all(gradsync_group *group, const void *input,
                                     const int64_t *input_bytes, void *output,
                                     const int64_t *output_bytes);

/* Match up by their order between two ranks. gradsync_send() may return before the data are received,
 * but needs the other rank to be in some call. */
GRADSYNC_API int gradsync_send(gradsync_group *group, const void *data, int64_t bytes, int to);
GRADSYNC_API int gradsync_recv(gradsync_group *group, void *data, int64_t bytes, int from);

/* Returns when all ranks have come. */
GRADSYNC_API int gradsync_barrier(gradsync_group *group);

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
