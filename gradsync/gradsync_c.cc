#include "gradsync/gradsync_c.h"

#include <exception>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gradsync/collectives.h"
#include "gradsync/exchange.h"
#include "gradsync/group.h"
#include "gradsync/options.h"
#include "gradsync/status.h"

struct gradsync_group {
  explicit gradsync_group(gradsync::Group joined) : group(std::move(joined)) {}

  gradsync::Group group;
  std::optional<gradsync::Exchange> exchange;        // from gradsync_bind() on
  std::optional<gradsync::Collectives> collectives;  // from the first collective call on
  bool left = false;

  bool HasBucket(int number) const {
    return exchange.has_value() && number >= 0 && number < exchange->buckets();
  }
};

namespace {

using gradsync::Collectives;
using gradsync::DataType;
using gradsync::ReduceOp;
using gradsync::Status;
using gradsync::StatusCode;

static_assert(GRADSYNC_BOOL == static_cast<int>(DataType::kBool) &&
              GRADSYNC_BXOR == static_cast<int>(ReduceOp::kBxor));

thread_local std::string newest_error;

int Answer(const Status& status) {
  newest_error = status.message();
  return static_cast<int>(status.code());
}

// No exception leaves the library: what `body` cannot do for want of memory, say, is an error too.
template <typename Body>
int Guarded(Body body) {
  try {
    return Answer(body());
  } catch (const std::bad_alloc&) {
    return Answer(Status(StatusCode::kResourceExhausted, "out of memory"));
  } catch (const std::exception& error) {
    return Answer(Status(StatusCode::kInternal, error.what()));
  }
}

Status Invalid(const std::string& text) { return Status(StatusCode::kInvalidArgument, text); }

Status CheckBucket(const gradsync_group& group, int bucket) {
  if (!group.exchange.has_value()) {
    return Status(StatusCode::kFailedPrecondition, "gradsync_bind() comes first");
  }
  if (group.HasBucket(bucket)) return Status();
  return Invalid("bucket: expected 0 to " + std::to_string(group.exchange->buckets() - 1) +
                 ", found " + std::to_string(bucket));
}

Status Join(const char* const* texts, gradsync_listening on_listening, void* context,
            gradsync_group** group) {
  gradsync::Options options;
  if (on_listening != nullptr) {
    options.on_listening = [=](const std::string& address) {
      if (on_listening(address.c_str(), context) == 0) return Status();
      return Status(StatusCode::kAborted, "on_listening could not tell anybody of " + address);
    };
  }
  for (; texts != nullptr && *texts != nullptr; ++texts) {
    const std::string text = *texts;
    const size_t equals = text.find('=');
    if (equals == std::string::npos) {
      return Invalid("options: expected name=value, found \"" + text + "\"");
    }
    Status status = options.Set(text.substr(0, equals), text.substr(equals + 1));
    if (!status.ok()) return status;
  }
  gradsync::Result<gradsync::Group> joined = gradsync::Group::Join(options);
  if (!joined.ok()) return joined.status();
  *group = new gradsync_group(std::move(joined).value());
  return Status();
}

Status Bind(gradsync_group* group, const gradsync_tensor* tensors, int64_t count,
            int64_t bucket_bytes) {
  if (count < 1) return Invalid("count: expected at least 1, found " + std::to_string(count));
  if (bucket_bytes < 0) {
    return Invalid("bucket_bytes: expected at least 0, found " + std::to_string(bucket_bytes));
  }
  std::vector<gradsync::Tensor> list;
  for (int64_t i = 0; i < count; ++i) list.push_back({tensors[i].name, tensors[i].numel});
  gradsync::ExchangeOptions options;
  if (bucket_bytes > 0) options.bucket_bytes = options.first_bucket_bytes = bucket_bytes;
  gradsync::Result<gradsync::Exchange> bound =
      gradsync::Exchange::Bind(&group->group, list, options);
  if (!bound.ok()) return bound.status();
  group->exchange.emplace(std::move(bound).value());
  return Status();
}

// `call` gets the group's collectives, which the first one opens.
template <typename Call>
int Collectively(gradsync_group* group, Call call) {
  return Guarded([&] {
    if (!group->collectives.has_value()) {
      gradsync::Result<Collectives> opened = Collectives::Open(group->group);
      if (!opened.ok()) return opened.status();
      group->collectives.emplace(std::move(opened).value());
    }
    return call(*group->collectives);
  });
}

}  // namespace

int gradsync_version(void) { return GRADSYNC_C_VERSION; }

const char* gradsync_error(void) { return newest_error.c_str(); }

int gradsync_join(const char* const* options, gradsync_group** group) {
  return gradsync_join_with(options, nullptr, nullptr, group);
}

int gradsync_join_with(const char* const* options, gradsync_listening on_listening, void* context,
                       gradsync_group** group) {
  return Guarded([&] { return Join(options, on_listening, context, group); });
}

int gradsync_rank(const gradsync_group* group) { return group->group.rank(); }
int gradsync_world_size(const gradsync_group* group) { return group->group.world_size(); }

int gradsync_bind(gradsync_group* group, const gradsync_tensor* tensors, int64_t count,
                  int64_t bucket_bytes) {
  return Guarded([&] { return Bind(group, tensors, count, bucket_bytes); });
}

int gradsync_buckets(const gradsync_group* group) {
  return group->exchange.has_value() ? group->exchange->buckets() : 0;
}

float* gradsync_bucket_gradients(const gradsync_group* group, int bucket) {
  return group->HasBucket(bucket) ? group->exchange->bucket(bucket).gradients : nullptr;
}

float* gradsync_bucket_parameters(const gradsync_group* group, int bucket) {
  return group->HasBucket(bucket) ? group->exchange->bucket(bucket).parameters : nullptr;
}

int64_t gradsync_bucket_numel(const gradsync_group* group, int bucket) {
  return group->HasBucket(bucket) ? group->exchange->bucket(bucket).numel : 0;
}

int gradsync_place(const gradsync_group* group, int64_t tensor, int* bucket, int64_t* offset) {
  return Guarded([&] {
    const int64_t tensors = group->exchange.has_value() ? group->exchange->tensors() : 0;
    if (tensor < 0 || tensor >= tensors) {
      return Invalid("tensor: expected 0 to " + std::to_string(tensors - 1) + ", found " +
                     std::to_string(tensor));
    }
    const gradsync::Place place = group->exchange->place(static_cast<int>(tensor));
    *bucket = place.bucket;
    *offset = place.offset;
    return Status();
  });
}

int gradsync_broadcast(gradsync_group* group) {
  return Guarded([&] {
    Status status = CheckBucket(*group, 0);
    return status.ok() ? group->exchange->Broadcast() : status;
  });
}

int gradsync_launch(gradsync_group* group, int bucket) {
  return Guarded([&] {
    Status status = CheckBucket(*group, bucket);
    return status.ok() ? group->exchange->Launch(bucket) : status;
  });
}

int gradsync_wait(gradsync_group* group, int bucket) {
  return Guarded([&] {
    Status status = CheckBucket(*group, bucket);
    return status.ok() ? group->exchange->Wait(bucket) : status;
  });
}

int gradsync_all_reduce(gradsync_group* group, void* data, int64_t count, int type, int op) {
  return Collectively(group, [&](Collectives& collectives) {
    return collectives.AllReduce(data, count, static_cast<DataType>(type),
                                 static_cast<ReduceOp>(op));
  });
}

int gradsync_broadcast_bytes(gradsync_group* group, void* data, int64_t bytes, int root) {
  return Collectively(
      group, [&](Collectives& collectives) { return collectives.Broadcast(data, bytes, root); });
}

int gradsync_all_gather(gradsync_group* group, const void* input, void* output, int64_t bytes) {
  return Collectively(
      group, [&](Collectives& collectives) { return collectives.AllGather(input, output, bytes); });
}

int gradsync_reduce_scatter(gradsync_group* group, const void* input, void* output, int64_t count,
                            int type, int op) {
  return Collectively(group, [&](Collectives& collectives) {
    return collectives.ReduceScatter(input, output, count, static_cast<DataType>(type),
                                     static_cast<ReduceOp>(op));
  });
}

int gradsync_all_to_all(gradsync_group* group, const void* input, const int64_t* input_bytes,
                        void* output, const int64_t* output_bytes) {
  return Collectively(group, [&](Collectives& collectives) {
    const int ranks = collectives.world_size();
    return collectives.AllToAll(input, {input_bytes, input_bytes + ranks}, output,
                                {output_bytes, output_bytes + ranks});
  });
}

int gradsync_send(gradsync_group* group, const void* data, int64_t bytes, int to) {
  return Collectively(group,
                      [&](Collectives& collectives) { return collectives.Send(data, bytes, to); });
}

int gradsync_recv(gradsync_group* group, void* data, int64_t bytes, int from) {
  return Collectively(
      group, [&](Collectives& collectives) { return collectives.Recv(data, bytes, from); });
}

int gradsync_barrier(gradsync_group* group) {
  return Collectively(group, [](Collectives& collectives) { return collectives.Barrier(); });
}

int gradsync_fail(gradsync_group* group, const char* reason) {
  return Guarded([&] { return group->group.Fail(Status(StatusCode::kCancelled, reason)); });
}

int gradsync_leave(gradsync_group* group) {
  return Guarded([&] {
    group->left = true;
    return group->group.Leave();
  });
}

void gradsync_free(gradsync_group* group) {
  if (group == nullptr) return;
  if (!group->left) {
    (void)gradsync_fail(group, "this rank's group was freed before it had left");
  }
  delete group;
}
