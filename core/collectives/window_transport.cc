#include "core/collectives/window_transport.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "core/base/process_resources.h"
#include "core/base/status_macros.h"
#include "core/shared_memory/mesh_addresses.h"

namespace gradsync {
namespace {

constexpr size_t kLineBytes = 64;
constexpr size_t kPageBytes = 4096;

// All slots of a rank, for collectives, and the bounds of one.
constexpr size_t kSlotsBytes = size_t{2} << 20;
constexpr size_t kLeastPiece = size_t{32} << 10;

// For each rank of the group. By the rule in which algorithms send (group_collectives.cc) the rank
// that is furthest behind waits for no room with three for each: so nobody waits for ever.
constexpr int kSlotsPerRank = 4;
constexpr int kMailSlots = 4;

// Greetings have no slot; of two calls a rank may have one each that was not read.
constexpr int kGreetings = 4;

// Up to here it is sooner done that each rank reads all that the others have than to wait for one more
// message. Two ranks move the same lines from cache to cache either way; of more, each reads that of
// all others.
constexpr size_t kSmallBytesOfTwo = size_t{64} << 10;
constexpr size_t kSmallBytes = size_t{16} << 10;

// Looks before sleeping, about 50 us of them, between which others may have this core: often where
// ranks share cores, else in case that the one that is waited for has none.
constexpr int kYields = 32;
constexpr int kLooksPerYield = 64;

// Whoever sleeps is woken at once for a message of so many bytes, since what follows takes time;
// otherwise when this rank waits or its call ends, by when the message is seen by those awake.
constexpr size_t kRingAtOnceBytes = 4096;

size_t RoundUp(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

size_t PieceBytes(const WindowTransportOptions& options) {
  if (options.piece_bytes != 0) return RoundUp(options.piece_bytes, kLineBytes);
  const size_t slots = static_cast<size_t>(kSlotsPerRank * options.group.world_size);
  return RoundUp(std::max(kSlotsBytes / slots, kLeastPiece), kLineBytes);
}

size_t SmallBytes(const WindowTransportOptions& options, size_t piece) {
  const size_t others = static_cast<size_t>(options.group.world_size - 1);
  const size_t small = options.small_bytes != 0 ? options.small_bytes
                       : others == 1            ? kSmallBytesOfTwo
                                                : kSmallBytes / others;
  return std::min(small, piece);
}

}  // namespace

WindowTransport::WindowTransport(WindowTransportOptions options)
    : options_(std::move(options)),
      piece_(PieceBytes(options_)),
      small_(SmallBytes(options_, piece_)),
      shares_cores_(options_.shares_cores.has_value() ? *options_.shares_cores : n() > HostCores()),
      kept_(n()),
      to_ring_(n(), false) {
  lanes_[kCollectives].slots = kSlotsPerRank * n();
  lanes_[kCollectives].notes = lanes_[kCollectives].slots + kGreetings;
  lanes_[kMail].slots = lanes_[kMail].notes = kMailSlots;
  window_bytes_ = sizeof(WindowControl) + kLanes * n() * sizeof(Count);
  for (LaneState& lane : lanes_) {
    lane.first_note = window_bytes_;
    window_bytes_ += static_cast<size_t>(n() * lane.notes) * sizeof(Note);
    lane.sent.resize(n());
    lane.read.resize(n());
    lane.received.resize(n());
    lane.until.resize(lane.slots, std::vector<uint64_t>(n()));
  }
  for (LaneState& lane : lanes_) {
    lane.first_slot = window_bytes_ = RoundUp(window_bytes_, kPageBytes);
    window_bytes_ += lane.slots * piece_;
  }
  for (auto& arrived : arrived_) arrived.resize(n());
}

WindowTransport::Count& WindowTransport::CountAt(int reader, CallLane lane, int sender) const {
  return reinterpret_cast<Count*>(memory_[reader] + sizeof(WindowControl))[lane * n() + sender];
}

WindowTransport::Note& WindowTransport::NoteAt(int sender, CallLane lane, int reader,
                                               uint64_t number) const {
  const LaneState& state = lanes_[lane];
  const uint64_t turn = number % static_cast<uint64_t>(state.notes);
  return reinterpret_cast<Note*>(memory_[sender] + state.first_note)[reader * state.notes + turn];
}

char* WindowTransport::SlotAt(int sender, CallLane lane, int slot) const {
  return memory_[sender] + lanes_[lane].first_slot + static_cast<size_t>(slot) * piece_;
}

absl::Status WindowTransport::Connect(SideChannel& channel, Deadline deadline) {
  GS_ASSIGN_OR_RETURN(const std::vector<std::string> addresses,
                      ExchangeMeshAddresses(
                          channel, [this] { return MakeWindow(); }, deadline));
  GS_RETURN_IF_ERROR(mesh_->Connect(addresses, deadline));
  std::vector<WindowControl*> controls;
  for (int rank = 0; rank < n(); ++rank) {
    windows_.push_back(mesh_->window(rank));
    memory_.push_back(windows_.back()->data());
    controls.push_back(reinterpret_cast<WindowControl*>(memory_.back()));
  }
  const WindowSignals::Holders all = {0, n()};
  MutexLock lock(&mutex_);
  signals_ = std::make_unique<WindowSignals>(std::move(controls), self(), all, all);
  return failed_;
}

absl::StatusOr<std::string> WindowTransport::MakeWindow() {
  GS_ASSIGN_OR_RETURN(window_, Window::Create(window_bytes_));
  WindowMeshOptions options;
  for (const std::string& name : options_.group.Names()) {
    options.members.push_back({name, /*linked=*/true, window_bytes_});
  }
  options.self = self();
  options.greeting =
      absl::StrCat(options_.group.Key("collectives"), " pieces of ", piece_, " bytes");
  options.window = window_;
  options.silence = options_.group.timeout;
  options.on_lost = options_.on_error;
  GS_ASSIGN_OR_RETURN(std::unique_ptr<WindowMesh> mesh, WindowMesh::Create(std::move(options)));
  MutexLock lock(&mutex_);
  mesh_ = std::move(mesh);
  if (!failed_.ok()) return failed_;
  return mesh_->address();
}

bool WindowTransport::IsFree(LaneState& state, CallLane lane, int slot) {
  for (int rank = 0; rank < n(); ++rank) {
    const uint64_t until = state.until[slot][rank];
    if (until <= state.read[rank]) continue;
    state.read[rank] = CountAt(rank, lane, self()).read.load(std::memory_order_acquire);
    if (until > state.read[rank]) return false;
  }
  return true;
}

// Slots of collectives are taken in turn, since they are read in turn; mail waits for its reader.
// True once there is one, as often as it is asked before that is posted.
bool WindowTransport::FindSlot(LaneState& state, CallLane lane) {
  if (state.reserved != kNoSlot) return true;
  const int tries = lane == kMail ? state.slots : 1;
  for (int i = 0; i < tries; ++i) {
    const int slot = (state.next_slot + i) % state.slots;
    if (!IsFree(state, lane, slot)) continue;
    state.reserved = slot;
    state.next_slot = (slot + 1) % state.slots;
    return true;
  }
  return false;
}

absl::StatusOr<char*> WindowTransport::Reserve(CallLane lane, size_t bytes) {
  LaneState& state = lanes_[lane];
  // Notes of mail are as many as its slots, so that an empty message takes one too.
  if (bytes == 0 && lane != kMail) return memory_[self()];
  GS_RETURN_IF_ERROR(Await([&] { return FindSlot(state, lane); }, kAllOthers));
  return SlotAt(self(), lane, state.reserved);
}

void WindowTransport::Post(CallLane lane, int to, const CollectiveCall& call, size_t bytes) {
  LaneState& state = lanes_[lane];
  const int slot = std::exchange(state.reserved, kNoSlot);
  const int first = to == kAllOthers ? 0 : to;
  const int last = to == kAllOthers ? n() - 1 : to;
  if (slot != kNoSlot) std::fill(state.until[slot].begin(), state.until[slot].end(), 0);
  for (int rank = first; rank <= last; ++rank) {
    if (rank == self()) continue;
    const uint64_t number = ++state.sent[rank];
    if (slot != kNoSlot) state.until[slot][rank] = number;
    Note& note = NoteAt(self(), lane, rank, number);
    note.slot = slot;
    note.bytes = bytes;
    note.call = call;
    note.number.store(number, std::memory_order_release);
    to_ring_[rank] = rings_ = true;
  }
  if (bytes >= kRingAtOnceBytes) Ring();
}

absl::Status WindowTransport::Send(CallLane lane, int to, const CollectiveCall& call,
                                   absl::Span<const char> bytes) {
  GS_ASSIGN_OR_RETURN(char* const slot, Reserve(lane, bytes.size()));
  if (!bytes.empty()) std::memcpy(slot, bytes.data(), bytes.size());
  Post(lane, to, call, bytes.size());
  return absl::OkStatus();
}

WindowTransport::Note& WindowTransport::NextNote(CallLane lane, int from) const {
  return NoteAt(from, lane, self(), lanes_[lane].received[from] + 1);
}

bool WindowTransport::HasNext(CallLane lane, int from) const {
  return NextNote(lane, from).number.load(std::memory_order_acquire) ==
         lanes_[lane].received[from] + 1;
}

absl::StatusOr<const CallMessage*> WindowTransport::Receive(CallLane lane, int from) {
  std::deque<Kept>& kept = kept_[from];
  Arrived& arrived = arrived_[lane][from];
  if (lane == kCollectives) {
    const uint64_t number = lanes_[lane].received[from] + 1;
    const std::atomic<uint64_t>& comes = NextNote(lane, from).number;
    GS_RETURN_IF_ERROR(
        Await([&] { return comes.load(std::memory_order_acquire) == number; }, from));
  } else {
    GS_RETURN_IF_ERROR(Await([&] { return !kept.empty() || HasNext(lane, from); }, from));
  }
  if (lane == kMail && !kept.empty()) {
    arrived.message.call = kept.front().call;
    arrived.bytes = kept.front().bytes;
  } else {
    GS_RETURN_IF_ERROR(Take(lane, from, &arrived));
  }
  arrived.message.parts = absl::MakeConstSpan(&arrived.bytes, 1);
  return &arrived.message;
}

// The next message, which is there. Its note is another process's, and read once.
absl::Status WindowTransport::Take(CallLane lane, int from, Arrived* arrived) {
  const Note& note = NextNote(lane, from);
  const int slot = note.slot;
  const size_t bytes = note.bytes;
  arrived->message.call = note.call;
  if (bytes > 0 && (bytes > piece_ || slot < 0 || slot >= lanes_[lane].slots)) {
    return absl::DataLossError(absl::StrCat(options_.group.Name(from), " sent a message of ", bytes,
                                            " bytes in slot ", slot, ": expected at most ", piece_,
                                            " bytes in one of ", lanes_[lane].slots));
  }
  arrived->bytes =
      bytes == 0 ? absl::Span<const char>() : absl::MakeConstSpan(SlotAt(from, lane, slot), bytes);
  return absl::OkStatus();
}

void WindowTransport::Release(CallLane lane, int from) {
  if (lane == kMail && !kept_[from].empty()) {
    kept_[from].pop_front();
  } else {
    CountRead(lane, from);
  }
}

void WindowTransport::CountRead(CallLane lane, int from) {
  const uint64_t read = ++lanes_[lane].received[from];
  CountAt(self(), lane, from).read.store(read, std::memory_order_release);
  to_ring_[from] = rings_ = true;
}

// Keeps what has come of the others' mail. Returns whether any has.
absl::StatusOr<bool> WindowTransport::KeepMail() {
  bool any = false;
  for (int rank = 0; rank < n(); ++rank) {
    while (rank != self() && HasNext(kMail, rank)) {
      Arrived arrived;
      GS_RETURN_IF_ERROR(Take(kMail, rank, &arrived));
      kept_[rank].push_back(
          {arrived.message.call, std::string(arrived.bytes.data(), arrived.bytes.size())});
      CountRead(kMail, rank);
      any = true;
    }
  }
  return any;
}

absl::Status WindowTransport::Flush() {
  Ring();
  return absl::OkStatus();
}

void WindowTransport::Ring() {
  if (!std::exchange(rings_, false)) return;
  signals_->RingMembers(to_ring_);
  std::fill(to_ring_.begin(), to_ring_.end(), false);
}

// Looks first, then sleeps. `from`: who is waited for, or kAllOthers.
template <typename Condition>
absl::Status WindowTransport::Await(const Condition& condition, int from) {
  if (condition()) return absl::OkStatus();
  Ring();
  const int looks_per_yield = shares_cores_ ? 1 : kLooksPerYield;
  for (int look = 1; look <= kYields * looks_per_yield; ++look) {
    if (condition()) return absl::OkStatus();
    if (look % looks_per_yield == 0) {
      sched_yield();
    } else {
      __builtin_ia32_pause();
    }
  }
  return AwaitAsleep(condition, from);
}

absl::Status WindowTransport::AwaitAsleep(absl::FunctionRef<bool()> condition, int from) {
  const auto mail_has_come = [this] {
    for (int rank = 0; rank < n(); ++rank) {
      if (rank != self() && HasNext(kMail, rank)) return true;
    }
    return false;
  };
  while (true) {
    signals_->Await(
        WindowSignals::kThread, [&] { return has_failed_ || condition() || mail_has_come(); },
        absl::ZeroDuration(), patience_->next_look());
    if (has_failed_) {
      MutexLock lock(&mutex_);
      return failed_;
    }
    if (condition()) return absl::OkStatus();
    GS_ASSIGN_OR_RETURN(const bool kept, KeepMail());
    Ring();
    if (!kept && patience_->Passed()) {
      return absl::DeadlineExceededError(absl::StrCat("expected a message, or room for one, from ",
                                                      WaitedFor(from), ", found none in time"));
    }
  }
}

std::string WindowTransport::WaitedFor(int from) const {
  if (from != kAllOthers) return options_.group.Name(from);
  std::vector<std::string> names;
  for (int rank = 0; rank < n(); ++rank) {
    const auto is_behind = [&](CallLane lane) {
      return CountAt(rank, lane, self()).read.load(std::memory_order_acquire) <
             lanes_[lane].sent[rank];
    };
    if (rank != self() && (is_behind(kCollectives) || is_behind(kMail))) {
      names.push_back(options_.group.Name(rank));
    }
  }
  return absl::StrJoin(names, ", ");
}

void WindowTransport::Fail(const absl::Status& status) {
  MutexLock lock(&mutex_);
  if (failed_.ok()) failed_ = status;
  has_failed_ = true;
  if (mesh_ != nullptr) mesh_->Cancel();
  if (signals_ != nullptr) signals_->RingSelf();
}

absl::Status WindowTransport::Finish(Deadline) {
  mesh_->Leave();
  return absl::OkStatus();
}

void WindowTransport::Close() {
  if (mesh_ != nullptr) mesh_->Stop();
}

}  // namespace gradsync
