// The algorithms, on messages (transport.h). A call's first message to each other rank says what is
// called, and each rank waits for one of all others before its call ends: so two that differ notice,
// whichever of them waits for which. With n ranks and x bytes each rank sends
//
//   AllReduce       of few bytes     (n-1) x: all to all, each folds for itself; one message's time
//                   by owners, ring  2(n-1)/n x: shares to their owners, sums to all
//   ReduceScatter   by owners, ring  (n-1)/n of its input
//   Broadcast                        x from the root through all (a ring), or to all others at once
//   AllGather, AllToAll              all that others get
//
// By owners pieces go in rounds. In round t a rank sends its contributions to the piece t of all
// shares, folds its own share's piece t - lead, which it sends to all, and takes the sums of pieces t
// - 2 lead. Each rank takes messages in the order in which their sender sends them, and of all ranks
// the one that is furthest behind finds sent what it waits for, so none waits for ever. (Owners of
// shares are what Rabenseifner's reduce-scatter and allgather have by halving; "Optimization of
// collective reduction operations", 2004.) Rings: core/plan/ring_schedule.h.

#include "core/collectives/group_collectives.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/errors.h"
#include "core/base/status_macros.h"
#include "core/collectives/stream_transport.h"
#include "core/collectives/window_transport.h"
#include "core/plan/ring_schedule.h"
#include "core/plan/stripes.h"

namespace gradsync {
namespace {

constexpr int64_t kShareAlignment = 16;  // elements

// For a failure to be published, besides what whoever knows better is waited for.
constexpr absl::Duration kVerdictTimeout = absl::Seconds(5);

// In all words about it, by which other ranks know what was published.
constexpr absl::string_view kDiffer = " make different calls: ";

std::string Describe(const CollectiveCall& call) {
  const auto reduction = [&call](absl::string_view name) {
    return absl::StrCat(name, "(", FoldName(call.op), " of ", call.count, " ",
                        ElementName(call.kind), ")");
  };
  std::string text = absl::StrCat("call ", call.number, ", ");
  switch (call.what) {
    case CollectiveCall::kAllReduce:
      return absl::StrCat(text, reduction("all_reduce"));
    case CollectiveCall::kReduceScatter:
      return absl::StrCat(text, reduction("reduce_scatter"));
    case CollectiveCall::kBroadcast:
      return absl::StrCat(text, "broadcast(", call.count, " bytes of rank ", call.root, ")");
    case CollectiveCall::kAllGather:
      return absl::StrCat(text, "all_gather(", call.count, " bytes)");
    case CollectiveCall::kAllToAll:
      return absl::StrCat(text, "all_to_all(", call.count, " bytes between them)");
    case CollectiveCall::kBarrier:
      return absl::StrCat(text, "barrier()");
    case CollectiveCall::kLeave:
      return absl::StrCat(text, "leave()");
    case CollectiveCall::kSend:
      break;
  }
  return absl::StrCat(text, "send(", call.count, " bytes)");
}

// `times` so many elements of `element` bytes.
absl::Status CheckCount(absl::string_view what, int64_t count, int64_t element, int64_t times) {
  const int64_t most = std::numeric_limits<int64_t>::max() / element / times;
  if (count >= 0 && count <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, ": expected 0 to ", most, ", found ", count));
}

void Move(void* to, const void* from, int64_t bytes) {
  if (bytes > 0 && to != from) std::memmove(to, from, static_cast<size_t>(bytes));
}

absl::Span<const char> Bytes(const char* from, int64_t bytes) {
  return absl::MakeConstSpan(from, static_cast<size_t>(bytes));
}

CollectiveCall CallOf(CollectiveCall::What what, int64_t count = 0, int root = 0) {
  CollectiveCall call;
  call.what = what;
  call.count = count;
  call.root = root;
  return call;
}

CollectiveCall ReductionOf(CollectiveCall::What what, int64_t count, ElementKind kind, FoldOp op) {
  CollectiveCall call = CallOf(what, count);
  call.kind = kind;
  call.op = op;
  return call;
}

absl::Status CheckOptions(const GroupCollectivesOptions& options) {
  const WorkerGroup& group = options.group;
  if (group.world_size < 1 || group.rank < 0 || group.rank >= group.world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("collectives: expected a rank in 0..world_size-1, found ", group.rank, " of ",
                     group.world_size));
  }
  if (group.world_size > 1 && group.store == nullptr) {
    return absl::InvalidArgumentError("collectives: expected a store with more than one rank");
  }
  if (options.owners < 0 || options.owners > group.world_size) {
    return absl::InvalidArgumentError(absl::StrCat("collectives: expected 0 to ", group.world_size,
                                                   " owners, found ", options.owners));
  }
  return absl::OkStatus();
}

}  // namespace

// The cut of a reduction, in elements.
struct GroupCollectives::Shares {
  int64_t count = 0;      // of all
  int64_t size = 0;       // of each, but for the last
  int64_t element = 1;    // bytes
  int64_t piece = 1;      // of a message
  int64_t out_begin = 0;  // the one that lies where the result begins

  int64_t rounds() const { return (size + piece - 1) / piece; }
  int64_t begin(int share) const { return std::min(share * size, count); }
  int64_t end(int share) const { return begin(share + 1); }

  // Elements of a share that go in one message: `count` of them, maybe none, from `begin` on.
  struct Piece {
    int64_t begin = 0;
    int64_t count = 0;
  };
  Piece PieceOf(int share, int64_t round) const {
    const int64_t first = std::min(begin(share) + round * piece, end(share));
    return {first, std::min(first + piece, end(share)) - first};
  }
};

GroupCollectives::GroupCollectives(const GroupCollectivesOptions& options)
    : options_(options),
      channel_(options.group, "collectives"),
      life_(options.group.RankOfJob(options.group.rank)) {
  if (alone()) return;
  const auto report = [this](absl::Status status) { group_error_->Report(std::move(status)); };
  if (options_.link == nullptr) {
    WindowTransportOptions windows;
    windows.group = options_.group;
    windows.on_error = report;
    windows.piece_bytes = options_.piece_bytes;
    windows.small_bytes = options_.small_bytes;
    transport_ = std::make_unique<WindowTransport>(std::move(windows));
  } else {
    StreamTransportOptions streams;
    streams.group = options_.group;
    streams.link = options_.link;
    streams.terms = absl::StrCat(TopologyName(options_.topology), ", ", owners(), " owners");
    streams.on_error = report;
    streams.piece_bytes = options_.piece_bytes;
    streams.small_bytes = options_.small_bytes;
    transport_ = std::make_unique<StreamTransport>(std::move(streams));
  }
  messages_.resize(n());
  inputs_.resize(n());
  sends_.resize(n());
  receives_.resize(n());
  group_error_ = std::make_unique<GroupError>(
      options_.group, [this](absl::Status status) { OnFailure(std::move(status)); });
}

GroupCollectives::~GroupCollectives() {
  if (alone()) return;
  // Others learn why before they see connections end.
  if (!life_.left() && !has_failed_) {
    Failed(absl::CancelledError(absl::StrCat(options_.group.Name(self()),
                                             " left without finishing its collectives")))
        .IgnoreError();
  }
  transport_->Close();
  group_error_.reset();
}

absl::StatusOr<std::unique_ptr<GroupCollectives>> GroupCollectives::Open(
    const GroupCollectivesOptions& options, Deadline deadline) {
  GS_RETURN_IF_ERROR(CheckOptions(options));
  std::unique_ptr<GroupCollectives> collectives(new GroupCollectives(options));
  GS_RETURN_IF_ERROR(collectives->Connect(deadline));
  return collectives;
}

absl::Status GroupCollectives::Connect(Deadline deadline) {
  if (!alone()) {
    absl::Status connected = transport_->Connect(channel_, deadline);
    if (!connected.ok()) return Failed(std::move(connected));
  }
  life_.SetBound();
  return absl::OkStatus();
}

absl::Status GroupCollectives::CheckUsable() const {
  if (has_failed_) {
    MutexLock lock(&mutex_);
    return failure_;
  }
  return life_.CheckUsable();
}

absl::Status GroupCollectives::CheckRank(absl::string_view what, int rank) const {
  if (rank >= 0 && rank < n()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, ": expected a rank from 0 to ", n() - 1, ", found ", rank));
}

absl::Status GroupCollectives::CheckOther(absl::string_view what, int rank) const {
  GS_RETURN_IF_ERROR(CheckRank(what, rank));
  if (rank != self()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, ": expected another rank, found ", rank, ", which is this one"));
}

absl::Status GroupCollectives::Run(const CollectiveCall& call, Deadline deadline,
                                   absl::FunctionRef<absl::Status()> algorithm) {
  GS_RETURN_IF_ERROR(CheckUsable());
  if (alone()) return algorithm();
  transport_->Begin(deadline);
  const bool collective = call.what != CollectiveCall::kSend;
  if (collective) {
    const uint64_t number = call_.number + 1;
    call_ = call;
    call_.number = number;
    greeted_.assign(n(), false);
    // Those of an all-to-all are its own.
    if (call.what != CollectiveCall::kAllToAll) counts_.assign(n(), call.count);
  }
  absl::Status status = algorithm();
  if (status.ok() && collective) status = AwaitGreetings();
  if (status.ok()) status = transport_->Flush();
  if (status.ok()) return status;
  if (absl::IsDeadlineExceeded(status)) {
    status = Annotate(Describe(collective ? call_ : call), status);
  }
  return Failed(std::move(status));
}

// This rank's error, or the group's where there was one before. Whatever was lent is the caller's
// again.
absl::Status GroupCollectives::Failed(absl::Status own) {
  group_error_->Report(own);
  {
    const Deadline patience = Deadline::In(PatienceFor(options_.group, own) + kVerdictTimeout);
    MutexLock lock(&mutex_);
    while (failure_.ok() && !changed_.WaitWithDeadline(&mutex_, patience)) {
    }
    own = failure_.ok() ? Certain(std::move(own)) : failure_;
  }
  OnFailure(own);
  transport_->Settle();
  return own;
}

void GroupCollectives::OnFailure(absl::Status status) {
  if (left_) return;
  if (absl::IsAborted(status) && absl::StrContains(status.message(), kDiffer)) {
    status = absl::FailedPreconditionError(status.message());
  }
  {
    MutexLock lock(&mutex_);
    if (!failure_.ok()) return;
    failure_ = status;
    has_failed_ = true;
    changed_.SignalAll();
  }
  transport_->Fail(status);
}

absl::Status GroupCollectives::Differ(int other, absl::string_view theirs,
                                      absl::string_view mine) const {
  const WorkerGroup& group = options_.group;
  const bool first = self() < other;
  const int a = first ? self() : other, b = first ? other : self();
  return absl::FailedPreconditionError(
      absl::StrCat("ranks ", group.RankOfJob(a), ", ", group.RankOfJob(b), kDiffer, group.Name(a),
                   " ", first ? mine : theirs, "; ", group.Name(b), " ", first ? theirs : mine));
}

absl::Status GroupCollectives::Check(int from, const CollectiveCall& theirs) const {
  CollectiveCall mine = call_;
  mine.count = counts_[from];
  if (theirs.number == mine.number && theirs.count == mine.count && theirs.root == mine.root &&
      theirs.what == mine.what && theirs.kind == mine.kind && theirs.op == mine.op) {
    return absl::OkStatus();
  }
  return Differ(from, Describe(theirs), Describe(mine));
}

// Where the first message to some rank would have bytes that it cannot make sense of.
absl::Status GroupCollectives::Greet() {
  CollectiveCall hello = call_;
  hello.hello = true;
  return alone() ? absl::OkStatus()
                 : transport_->Send(kCollectives, CallTransport::kAllOthers, hello, {});
}

absl::Status GroupCollectives::AwaitGreetings() {
  for (int rank = 0; rank < n(); ++rank) {
    if (rank == self() || greeted_[rank]) continue;
    GS_ASSIGN_OR_RETURN(const CallMessage* const message, transport_->Receive(kCollectives, rank));
    GS_RETURN_IF_ERROR(Check(rank, message->call));
    if (!message->call.hello) return WrongSize(rank, *message, 0);
    transport_->Release(kCollectives, rank);
  }
  return absl::OkStatus();
}

absl::Status GroupCollectives::WrongSize(int from, const CallMessage& message,
                                         int64_t bytes) const {
  return absl::DataLossError(absl::StrCat(options_.group.Name(from), ", ", Describe(message.call),
                                          ": expected a message of ", bytes, " bytes, found ",
                                          message.size()));
}

// The next piece of the call from that rank, to be released.
absl::StatusOr<const CallMessage*> GroupCollectives::Next(int from, int64_t bytes) {
  while (true) {
    GS_ASSIGN_OR_RETURN(const CallMessage* const message, transport_->Receive(kCollectives, from));
    GS_RETURN_IF_ERROR(Check(from, message->call));
    greeted_[from] = true;
    if (!message->call.hello) {
      if (message->size() == static_cast<size_t>(bytes)) return message;
      return WrongSize(from, *message, bytes);
    }
    transport_->Release(kCollectives, from);
  }
}

absl::Status GroupCollectives::TakeNext(int from, char* to, int64_t bytes) {
  GS_ASSIGN_OR_RETURN(const CallMessage* const message, Next(from, bytes));
  CopyParts(message->parts, to);
  transport_->Release(kCollectives, from);
  return absl::OkStatus();
}

absl::Status GroupCollectives::SendTo(int to, const char* from, int64_t bytes) {
  return transport_->Send(kCollectives, to, call_, Bytes(from, bytes));
}

absl::Status GroupCollectives::AllReduce(void* data, int64_t count, ElementKind kind, FoldOp op,
                                         Deadline deadline) {
  GS_RETURN_IF_ERROR(CheckFold(kind, op));
  GS_RETURN_IF_ERROR(CheckCount("count", count, BytesOf(kind), 2));
  const CollectiveCall call = ReductionOf(CollectiveCall::kAllReduce, count, kind, op);
  return Run(call, deadline, [&] {
    if (alone()) return absl::OkStatus();
    char* const bytes = static_cast<char*>(data);
    Shares shares;
    shares.count = count;
    shares.element = BytesOf(kind);
    shares.size = (count + n() - 1) / n();
    shares.size = (shares.size + kShareAlignment - 1) / kShareAlignment * kShareAlignment;
    shares.piece = piece_bytes() / shares.element;
    if (count * shares.element <= static_cast<int64_t>(transport_->small_bytes())) {
      return ReduceAtOnce(bytes, shares);
    }
    return Reduce(bytes, bytes, shares, /*gather=*/true);
  });
}

absl::Status GroupCollectives::ReduceScatter(const void* input, void* output, int64_t count,
                                             ElementKind kind, FoldOp op, Deadline deadline) {
  GS_RETURN_IF_ERROR(CheckFold(kind, op));
  GS_RETURN_IF_ERROR(CheckCount("count", count, BytesOf(kind), n()));
  const CollectiveCall call = ReductionOf(CollectiveCall::kReduceScatter, count, kind, op);
  return Run(call, deadline, [&] {
    Shares shares;
    shares.count = n() * count;
    shares.element = BytesOf(kind);
    shares.size = count;
    shares.out_begin = self() * count;
    if (alone()) {
      Move(output, input, count * shares.element);
      return absl::OkStatus();
    }
    shares.piece = piece_bytes() / shares.element;
    return Reduce(static_cast<const char*>(input), static_cast<char*>(output), shares,
                  /*gather=*/false);
  });
}

absl::Status GroupCollectives::Reduce(const char* in, char* out, const Shares& shares,
                                      bool gather) {
  if (transport_->shares_memory() || options_.topology == Topology::kPs) {
    return ReduceByOwners(in, out, shares, gather);
  }
  return ReduceInRing(in, out, shares, gather);
}

// What all ranks give to a piece of the share, in the order of its fold: this one its own `bytes`,
// the others what messages_ have; all from `offset` on.
absl::Span<const FoldInput> GroupCollectives::InputsOf(int share, absl::Span<const char> own,
                                                       int64_t offset) {
  own_ = own;
  for (int position = 0; position < n(); ++position) {
    const int rank = FoldRank(share, position, n());
    inputs_[position].parts =
        rank == self() ? absl::MakeConstSpan(&own_, 1) : messages_[rank]->parts;
    inputs_[position].offset = static_cast<size_t>(offset);
  }
  return inputs_;
}

absl::Status GroupCollectives::TakeAll(int64_t bytes) {
  for (int rank = 0; rank < n(); ++rank) {
    if (rank == self()) continue;
    GS_ASSIGN_OR_RETURN(messages_[rank], Next(rank, bytes));
  }
  return absl::OkStatus();
}

void GroupCollectives::ReleaseAll() {
  for (int rank = 0; rank < n(); ++rank) {
    if (rank != self()) transport_->Release(kCollectives, rank);
  }
}

absl::Status GroupCollectives::ReduceAtOnce(char* data, const Shares& shares) {
  const int64_t bytes = shares.count * shares.element;
  GS_ASSIGN_OR_RETURN(char* const copy,
                      transport_->Reserve(kCollectives, static_cast<size_t>(bytes)));
  if (bytes > 0) std::memcpy(copy, data, static_cast<size_t>(bytes));
  transport_->Post(kCollectives, CallTransport::kAllOthers, call_, static_cast<size_t>(bytes));
  GS_RETURN_IF_ERROR(TakeAll(bytes));
  for (int share = 0; share < n(); ++share) {
    const int64_t offset = shares.begin(share) * shares.element;
    Fold(call_.kind, call_.op, InputsOf(share, Bytes(data, bytes), offset),
         shares.end(share) - shares.begin(share), n(), data + offset);
  }
  ReleaseAll();
  return absl::OkStatus();
}

int GroupCollectives::owners() const {
  return options_.link == nullptr || options_.owners == 0 ? n() : options_.owners;
}

absl::Status GroupCollectives::ReduceByOwners(const char* in, char* out, const Shares& shares,
                                              bool gather) {
  GS_RETURN_IF_ERROR(Greet());
  const int owners = gather ? this->owners() : n();
  // Share j is owner j * owners / n's.
  const auto first_of = [&](int owner) {
    return std::min(n(), (owner * n() + owners - 1) / owners);
  };
  const int64_t lead = transport_->lead();
  const auto is_round = [&](int64_t round) { return round >= 0 && round < shares.rounds(); };
  for (int64_t t = 0; t < shares.rounds() + 2 * lead; ++t) {
    for (int i = 1; i < n() && is_round(t); ++i) {
      const int owner = (self() + i) % n();
      for (int share = first_of(owner); share < first_of(owner + 1); ++share) {
        const Shares::Piece piece = shares.PieceOf(share, t);
        if (piece.count == 0) continue;
        GS_RETURN_IF_ERROR(
            SendTo(owner, in + piece.begin * shares.element, piece.count * shares.element));
      }
    }
    for (int share = first_of(self()); share < first_of(self() + 1) && is_round(t - lead);
         ++share) {
      GS_RETURN_IF_ERROR(FoldOwnShare(in, out, shares, share, t - lead, gather));
    }
    for (int i = 1; i < n() && gather && is_round(t - 2 * lead); ++i) {
      const int owner = (self() + i) % n();
      for (int share = first_of(owner); share < first_of(owner + 1); ++share) {
        const Shares::Piece piece = shares.PieceOf(share, t - 2 * lead);
        if (piece.count == 0) continue;
        GS_RETURN_IF_ERROR(
            TakeNext(owner, out + piece.begin * shares.element, piece.count * shares.element));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status GroupCollectives::FoldOwnShare(const char* in, char* out, const Shares& shares,
                                            int share, int64_t round, bool gather) {
  const Shares::Piece piece = shares.PieceOf(share, round);
  if (piece.count == 0) return absl::OkStatus();
  const int64_t bytes = piece.count * shares.element;
  char* const to = out + (piece.begin - shares.out_begin) * shares.element;
  GS_RETURN_IF_ERROR(TakeAll(bytes));
  char* copy = nullptr;
  if (gather && transport_->shares_memory()) {
    GS_ASSIGN_OR_RETURN(copy, transport_->Reserve(kCollectives, static_cast<size_t>(bytes)));
  }
  Fold(call_.kind, call_.op, InputsOf(share, Bytes(in + piece.begin * shares.element, bytes), 0),
       piece.count, n(), to, copy);
  ReleaseAll();
  if (!gather) return absl::OkStatus();
  if (copy == nullptr) return SendTo(CallTransport::kAllOthers, to, bytes);
  transport_->Post(kCollectives, CallTransport::kAllOthers, call_, static_cast<size_t>(bytes));
  return absl::OkStatus();
}

// Hop by hop, and within a hop piece by piece: each piece goes on as soon as it has come. Nothing
// holds back what a rank sends first, so this is for streams, which have room for it.
absl::Status GroupCollectives::ReduceInRing(const char* in, char* out, const Shares& shares,
                                            bool gather) {
  GS_RETURN_IF_ERROR(Greet());
  const int next = RingNext(self(), n()), previous = RingPrevious(self(), n());
  const int hops = gather ? 2 * (n() - 1) : n() - 1;
  for (int64_t round = 0; round < shares.rounds(); ++round) {
    const Shares::Piece piece = shares.PieceOf(ReduceSendChunk(self(), 1, n()), round);
    if (piece.count == 0) continue;
    GS_RETURN_IF_ERROR(
        SendTo(next, in + piece.begin * shares.element, piece.count * shares.element));
  }
  for (int hop = 1; hop <= hops; ++hop) {
    const int gathered = hop - (n() - 1);  // so many hops since its owner
    const int share = gathered <= 0 ? ReduceSendChunk(self(), hop + 1, n())
                                    : GatherSendChunk(self(), gathered + 1, n());
    for (int64_t round = 0; round < shares.rounds(); ++round) {
      const Shares::Piece piece = shares.PieceOf(share, round);
      if (piece.count == 0) continue;
      const int64_t bytes = piece.count * shares.element;
      char* const to = out + (piece.begin - shares.out_begin) * shares.element;
      if (gathered > 0) {
        GS_RETURN_IF_ERROR(TakeNext(previous, to, bytes));
        if (hop < hops) GS_RETURN_IF_ERROR(SendTo(next, to, bytes));
        continue;
      }
      GS_ASSIGN_OR_RETURN(const CallMessage* const sum, Next(previous, bytes));
      own_ = Bytes(in + piece.begin * shares.element, bytes);
      const FoldInput inputs[] = {{sum->parts}, {absl::MakeConstSpan(&own_, 1)}};
      if (gathered < 0) {
        GS_ASSIGN_OR_RETURN(char* const so_far,
                            transport_->Reserve(kCollectives, static_cast<size_t>(bytes)));
        Fold(call_.kind, call_.op, inputs, piece.count, /*divisor=*/1, so_far);
        transport_->Post(kCollectives, next, call_, static_cast<size_t>(bytes));
      } else {
        Fold(call_.kind, call_.op, inputs, piece.count, n(), to);
        if (gather) GS_RETURN_IF_ERROR(SendTo(next, to, bytes));
      }
      transport_->Release(kCollectives, previous);
    }
  }
  return absl::OkStatus();
}

absl::Status GroupCollectives::Broadcast(void* data, int64_t bytes, int root, Deadline deadline) {
  GS_RETURN_IF_ERROR(CheckCount("bytes", bytes, 1, 1));
  GS_RETURN_IF_ERROR(CheckRank("root", root));
  return Run(CallOf(CollectiveCall::kBroadcast, bytes, root), deadline, [&] {
    if (alone()) return absl::OkStatus();
    char* const all = static_cast<char*>(data);
    const bool ring = !transport_->shares_memory() && n() > 2 &&
                      bytes > static_cast<int64_t>(transport_->small_bytes());
    const int previous = ring ? RingPrevious(self(), n()) : root;
    const int next = RingNext(self(), n());
    const bool passes_on = ring && self() != root && next != root;
    // Of few bytes the root's own are its greeting.
    if (ring || self() != root) GS_RETURN_IF_ERROR(Greet());
    int64_t begin = 0;
    do {
      const int64_t size = std::min(piece_bytes(), bytes - begin);
      char* const piece = all + begin;
      if (self() == root) {
        GS_RETURN_IF_ERROR(SendTo(ring ? next : CallTransport::kAllOthers, piece, size));
      } else {
        GS_RETURN_IF_ERROR(TakeNext(previous, piece, size));
      }
      if (passes_on) GS_RETURN_IF_ERROR(SendTo(next, piece, size));
      begin += size;
    } while (begin < bytes);
    return absl::OkStatus();
  });
}

absl::Status GroupCollectives::AllGather(const void* input, void* output, int64_t bytes,
                                         Deadline deadline) {
  GS_RETURN_IF_ERROR(CheckCount("bytes", bytes, 1, n()));
  return Run(CallOf(CollectiveCall::kAllGather, bytes), deadline, [&] {
    std::vector<Range> gives(n(), Range{0, bytes}), takes;
    for (int rank = 0; rank < n(); ++rank) takes.push_back({rank * bytes, bytes});
    return Exchange(static_cast<const char*>(input), gives, static_cast<char*>(output), takes);
  });
}

absl::Status GroupCollectives::AllToAll(const void* input, absl::Span<const int64_t> input_bytes,
                                        void* output, absl::Span<const int64_t> output_bytes,
                                        Deadline deadline) {
  const size_t ranks = static_cast<size_t>(n());
  if (input_bytes.size() != ranks || output_bytes.size() != ranks) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sizes: expected ", n(), ", found ", input_bytes.size(), " and ", output_bytes.size()));
  }
  if (input_bytes[self()] != output_bytes[self()]) {
    return absl::InvalidArgumentError(
        absl::StrCat("sizes of what this rank gives itself: expected the same, found ",
                     input_bytes[self()], " and ", output_bytes[self()]));
  }
  std::vector<Range> gives, takes;
  Range given, taken;
  for (size_t rank = 0; rank < ranks; ++rank) {
    GS_RETURN_IF_ERROR(CheckCount("input_bytes", input_bytes[rank], 1, n()));
    GS_RETURN_IF_ERROR(CheckCount("output_bytes", output_bytes[rank], 1, n()));
    given = {given.begin + given.bytes, input_bytes[rank]};
    taken = {taken.begin + taken.bytes, output_bytes[rank]};
    gives.push_back(given);
    takes.push_back(taken);
  }
  counts_.assign(output_bytes.begin(), output_bytes.end());
  return Run(CallOf(CollectiveCall::kAllToAll), deadline, [&] {
    return Exchange(static_cast<const char*>(input), gives, static_cast<char*>(output), takes);
  });
}

// Pieces go in rounds here too. Of nothing there is one message.
absl::Status GroupCollectives::Exchange(const char* in, const std::vector<Range>& gives, char* out,
                                        const std::vector<Range>& takes) {
  Move(out + takes[self()].begin, in + gives[self()].begin, gives[self()].bytes);
  if (alone()) return absl::OkStatus();
  const bool to_all = call_.what == CollectiveCall::kAllGather;
  const auto has_piece = [this](const Range& range, int64_t t) {
    return t == 0 || (t > 0 && t * piece_bytes() < range.bytes);
  };
  const auto piece_of = [this](const Range& range, int64_t t) {
    const int64_t begin = t * piece_bytes();
    return Range{range.begin + begin, std::min(piece_bytes(), range.bytes - begin)};
  };
  const int64_t lead = transport_->lead();
  bool any = true;
  for (int64_t t = 0; any || t <= lead; ++t) {
    any = false;
    for (int i = 1; i < n(); ++i) {
      const int rank = (self() + i) % n();
      if (!has_piece(gives[rank], t) || (to_all && i > 1)) continue;
      any = true;
      const Range piece = piece_of(gives[rank], t);
      CollectiveCall call = call_;
      if (!to_all) call.count = gives[rank].bytes;
      GS_RETURN_IF_ERROR(transport_->Send(kCollectives, to_all ? CallTransport::kAllOthers : rank,
                                          call, Bytes(in + piece.begin, piece.bytes)));
    }
    for (int i = 1; i < n(); ++i) {
      const int rank = (self() + i) % n();
      if (!has_piece(takes[rank], t - lead)) continue;
      any = true;
      const Range piece = piece_of(takes[rank], t - lead);
      GS_RETURN_IF_ERROR(TakeNext(rank, out + piece.begin, piece.bytes));
    }
  }
  return absl::OkStatus();
}

absl::Status GroupCollectives::Send(const void* data, int64_t bytes, int to, Deadline deadline) {
  GS_RETURN_IF_ERROR(CheckCount("bytes", bytes, 1, 1));
  GS_RETURN_IF_ERROR(CheckOther("to", to));
  GS_RETURN_IF_ERROR(CheckUsable());
  CollectiveCall call = CallOf(CollectiveCall::kSend, bytes);
  call.number = ++sends_[to];
  return Run(call, deadline, [&]() -> absl::Status {
    const char* const from = static_cast<const char*>(data);
    // What fits in one message is copied, so that nobody waits for it to be read.
    if (bytes <= piece_bytes()) {
      GS_ASSIGN_OR_RETURN(char* const copy, transport_->Reserve(kMail, static_cast<size_t>(bytes)));
      Move(copy, from, bytes);
      transport_->Post(kMail, to, call, static_cast<size_t>(bytes));
      return absl::OkStatus();
    }
    for (int64_t begin = 0; begin < bytes; begin += piece_bytes()) {
      GS_RETURN_IF_ERROR(transport_->Send(
          kMail, to, call, Bytes(from + begin, std::min(piece_bytes(), bytes - begin))));
    }
    return absl::OkStatus();
  });
}

absl::Status GroupCollectives::Recv(void* data, int64_t bytes, int from, Deadline deadline) {
  GS_RETURN_IF_ERROR(CheckCount("bytes", bytes, 1, 1));
  GS_RETURN_IF_ERROR(CheckOther("from", from));
  GS_RETURN_IF_ERROR(CheckUsable());
  CollectiveCall call = CallOf(CollectiveCall::kSend, bytes);
  call.number = ++receives_[from];
  return Run(call, deadline, [&]() -> absl::Status {
    char* const to = static_cast<char*>(data);
    int64_t begin = 0;
    do {
      const int64_t size = std::min(piece_bytes(), bytes - begin);
      GS_ASSIGN_OR_RETURN(const CallMessage* const message, transport_->Receive(kMail, from));
      const CollectiveCall& theirs = message->call;
      if (theirs.number != call.number || theirs.count != call.count) {
        return Differ(from, Describe(theirs),
                      absl::StrCat("call ", call.number, ", recv(", call.count, " bytes)"));
      }
      if (message->size() != static_cast<size_t>(size)) return WrongSize(from, *message, size);
      CopyParts(message->parts, to + begin);
      transport_->Release(kMail, from);
      begin += size;
    } while (begin < bytes);
    return absl::OkStatus();
  });
}

absl::Status GroupCollectives::Barrier(Deadline deadline) {
  return Run(CallOf(CollectiveCall::kBarrier), deadline, [this] { return Greet(); });
}

absl::Status GroupCollectives::Finish(Deadline deadline) {
  if (life_.left()) return absl::OkStatus();
  GS_RETURN_IF_ERROR(Run(CallOf(CollectiveCall::kLeave), deadline, [this] { return Greet(); }));
  life_.SetLeft();
  if (alone()) return absl::OkStatus();
  group_error_->Leave();
  const absl::Status goodbye = transport_->Finish(deadline);
  left_ = true;
  if (goodbye.ok()) return goodbye;
  // Others would take the end of this rank's streams for the failure.
  return has_failed_ ? CheckUsable() : PublishFailure(options_.group, goodbye);
}

}  // namespace gradsync
