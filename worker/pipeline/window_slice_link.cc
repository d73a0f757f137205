#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ops/add.h"
#include "ATen/ops/empty_like.h"
#include "ATen/ops/from_blob.h"
#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/base/host_identity.h"
#include "core/base/mutex.h"
#include "core/base/status_macros.h"
#include "core/group/group_error.h"
#include "core/shared_memory/window.h"
#include "core/shared_memory/window_mesh.h"
#include "core/shared_memory/window_signals.h"
#include "worker/pipeline/slice_link.h"

namespace gradsync {
namespace {

// How long a rank that failed waits to learn what the group makes of it: GroupError publishes in at
// most two seconds.
constexpr absl::Duration kVerdictTimeout = absl::Seconds(5);

// Of a tensor, what a round moves. Small enough to stay in a cache until it is read.
constexpr int64_t kPieceBytes = 1 << 20;

// What a slice says of the tensor of which a piece is here.
struct alignas(64) PieceHeader {
  int64_t elements;
  int64_t type;  // at::ScalarType
};

// Rounds take turns with the two places. Whoever writes to one has seen all slices begin the round
// between, and so end their reading of the round before that.
struct Place {
  PieceHeader header;
  char bytes[kPieceBytes];
};

struct SliceWindow {
  WindowControl control;
  Place places[2];
};

class WindowSliceLink : public SliceLink {
 public:
  explicit WindowSliceLink(const WorkerGroup& group) : group_(group) {
    group_error_ =
        std::make_unique<GroupError>(group_, [this](const absl::Status& status) { Fail(status); });
  }

  ~WindowSliceLink() override {
    Fail(absl::CancelledError(absl::StrCat("rank ", group_.RankOfJob(group_.rank), " left")));
    if (mesh_ != nullptr) mesh_->Stop();  // which calls the group's error
    group_error_.reset();
  }

  int slice() const override { return group_.rank; }
  int slices() const override { return group_.world_size; }

  absl::Status Connect(const std::string& fingerprint, Deadline deadline) override {
    const absl::Status status = TryToConnect(fingerprint, deadline);
    return status.ok() ? status : Agreed(status);
  }

  absl::StatusOr<at::Tensor> Sum(const at::Tensor& own, Deadline deadline) override {
    const at::Tensor flat = own.detach().contiguous().flatten();
    const at::Tensor sum = at::empty_like(flat);
    GS_RETURN_IF_ERROR(Exchange(flat, deadline, [&](int64_t first, const Tensors& pieces) {
      Add(pieces, sum.narrow(0, first, pieces[0].numel()));
    }));
    Count(flat.nbytes(), flat.nbytes());
    return sum.view(own.sizes());
  }

  absl::StatusOr<at::Tensor> SumPart(const at::Tensor& own, Deadline deadline) override {
    const at::Tensor flat = own.detach().contiguous().flatten();
    const int64_t size = flat.numel() / slices();
    const int64_t begin = size * slice();
    const at::Tensor sum = at::empty_like(flat.narrow(0, 0, size));
    GS_RETURN_IF_ERROR(Exchange(flat, deadline, [&](int64_t first, const Tensors& pieces) {
      const int64_t from = std::max(first, begin);
      const int64_t count = std::min(first + pieces[0].numel(), begin + size) - from;
      if (count <= 0) return;
      Tensors mine;
      for (const at::Tensor& piece : pieces) mine.push_back(piece.narrow(0, from - first, count));
      Add(mine, sum.narrow(0, from - begin, count));
    }));
    Count(sum.nbytes(), sum.nbytes());
    return sum.view(own.sizes().slice(1));
  }

  absl::StatusOr<std::vector<at::Tensor>> Gather(const at::Tensor& own,
                                                 Deadline deadline) override {
    const at::Tensor flat = own.detach().contiguous().flatten();
    Tensors all;
    for (int s = 0; s < slices(); ++s) all.push_back(at::empty_like(flat));
    GS_RETURN_IF_ERROR(Exchange(flat, deadline, [&](int64_t first, const Tensors& pieces) {
      for (int s = 0; s < slices(); ++s) {
        all[s].narrow(0, first, pieces[s].numel()).copy_(pieces[s]);
      }
    }));
    Count(flat.nbytes(), flat.nbytes());
    for (at::Tensor& tensor : all) tensor = tensor.view(own.sizes());
    return all;
  }

  // A last round, after which nobody waits for another, and whose end nobody misses.
  absl::Status Finish(Deadline deadline) override {
    GS_RETURN_IF_ERROR(Round(deadline));
    group_error_->Leave();
    if (mesh_ != nullptr) mesh_->Leave();
    return absl::OkStatus();
  }

  int64_t bytes_sent() const override { return bytes_sent_; }
  int64_t bytes_received() const override { return bytes_received_; }

 private:
  using Tensors = std::vector<at::Tensor>;

  // Into `sum`, in the order of slices.
  static void Add(const Tensors& pieces, at::Tensor sum) {
    if (pieces.size() == 1) {
      sum.copy_(pieces[0]);
      return;
    }
    at::add_out(sum, pieces[0], pieces[1]);
    for (size_t i = 2; i < pieces.size(); ++i) sum.add_(pieces[i]);
  }

  // `to_each` other slice, `of_each`.
  void Count(size_t to_each, size_t of_each) {
    bytes_sent_ += static_cast<int64_t>(to_each) * (slices() - 1);
    bytes_received_ += static_cast<int64_t>(of_each) * (slices() - 1);
  }

  absl::Status TryToConnect(const std::string& fingerprint, Deadline deadline) {
    GS_ASSIGN_OR_RETURN(std::vector<std::string> addresses, MeetOthers(fingerprint, deadline));
    if (mesh_ != nullptr) GS_RETURN_IF_ERROR(mesh_->Connect(addresses, deadline));
    std::vector<WindowControl*> controls;
    for (int s = 0; s < slices(); ++s) {
      windows_.push_back(mesh_ != nullptr ? mesh_->window(s) : window_);
      controls.push_back(&reinterpret_cast<SliceWindow*>(windows_[s]->data())->control);
    }
    const WindowSignals::Holders all = {0, slices()};
    MutexLock lock(&mutex_);
    signals_ = std::make_unique<WindowSignals>(controls, slice(), all, all);
    return failed_;
  }

  // Returns where each slice's mesh listens. Also tells the others when this one cannot take part,
  // so that nobody waits for it.
  absl::StatusOr<std::vector<std::string>> MeetOthers(const std::string& fingerprint,
                                                      Deadline deadline) {
    const absl::StatusOr<HostIdentity> host = ReadHostIdentity();
    absl::Status able = host.status();
    if (able.ok()) able = MakeWindow(fingerprint);
    const std::string mine =
        able.ok() ? absl::StrCat(host->Key(), "\n", mesh_ != nullptr ? mesh_->address() : "")
                  : std::string(able.message());
    const absl::StatusOr<std::vector<std::string>> told =
        group_.store->AllGather(group_.Key("slices"), slice(), slices(), mine, deadline);
    if (!told.ok()) return group_.InJob(told.status());
    const std::vector<std::string>& all = *told;
    GS_RETURN_IF_ERROR(able);
    std::vector<std::string> addresses;
    for (int s = 0; s < slices(); ++s) {
      const std::vector<std::string> parts = absl::StrSplit(all[s], '\n');
      if (parts.size() != 2 || parts[0] != host->Key()) {
        return absl::FailedPreconditionError(absl::StrCat(
            "expected all slices on one host that shares memory, rank ", group_.RankOfJob(s),
            " says ", parts[0], "; use --tensor_link=grpc or tcp"));
      }
      addresses.push_back(parts[1]);
    }
    return addresses;
  }

  absl::Status MakeWindow(const std::string& fingerprint) {
    GS_ASSIGN_OR_RETURN(window_, Window::Create(sizeof(SliceWindow)));
    if (slices() == 1) return absl::OkStatus();
    WindowMeshOptions options;
    for (int s = 0; s < slices(); ++s) {
      options.members.push_back(
          {absl::StrCat("rank ", group_.RankOfJob(s)), /*linked=*/true, sizeof(SliceWindow)});
    }
    options.self = slice();
    options.greeting = absl::StrCat(group_.Key("slices"), " ", fingerprint);
    options.window = window_;
    options.silence = group_.timeout;
    options.on_lost = [this](absl::Status status) { group_error_->Report(std::move(status)); };
    GS_ASSIGN_OR_RETURN(auto mesh, WindowMesh::Create(std::move(options)));
    MutexLock lock(&mutex_);
    mesh_ = std::move(mesh);
    return failed_;
  }

  Place& PlaceOf(int s) const {
    return reinterpret_cast<SliceWindow*>(windows_[s]->data())->places[round_ % 2];
  }

  // Calls `use` with all slices' pieces of their flat tensors, and where these begin, one piece after
  // the other.
  absl::Status Exchange(const at::Tensor& flat, Deadline deadline,
                        const std::function<void(int64_t first, const Tensors& pieces)>& use) {
    const int64_t element = static_cast<int64_t>(flat.element_size());
    const int64_t most = kPieceBytes / element;
    PatientDeadline patience(deadline);
    int64_t first = 0;
    do {
      const int64_t count = std::min(most, flat.numel() - first);
      ++round_;
      Place& own = PlaceOf(slice());
      own.header = {flat.numel(), static_cast<int64_t>(flat.scalar_type())};
      if (count > 0) {
        std::memcpy(own.bytes, static_cast<const char*>(flat.data_ptr()) + first * element,
                    static_cast<size_t>(count * element));
      }
      GS_RETURN_IF_ERROR(Await(&patience));
      Tensors pieces;
      for (int s = 0; s < slices(); ++s) {
        GS_RETURN_IF_ERROR(CheckPiece(s, own.header));
        pieces.push_back(at::from_blob(PlaceOf(s).bytes, {count}, flat.scalar_type()));
      }
      use(first, pieces);
      first += count;
    } while (first < flat.numel());
    return absl::OkStatus();
  }

  absl::Status Round(Deadline deadline) {
    ++round_;
    PatientDeadline patience(deadline);
    return Await(&patience);
  }

  // Tells that this slice has begun the round, and waits until all have.
  absl::Status Await(PatientDeadline* patience) {
    const uint32_t round = static_cast<uint32_t>(round_);
    const auto all_here = [&] { return signals_->AllReached(WindowControl::kReady, round); };
    if (signals_->Publish(WindowControl::kReady, round)) signals_->RingOwners();
    for (;;) {
      signals_->Await(
          WindowSignals::kThread, [&] { return has_failed_.load() || all_here(); }, kWindowSpin,
          patience->next_look());
      if (has_failed_) {
        MutexLock lock(&mutex_);
        return failed_;
      }
      if (all_here()) return absl::OkStatus();
      if (patience->Passed()) return Agreed(Missing());
    }
  }

  // Begins with nobody's name: who did not come may itself wait for another, and the group is asked
  // who is to blame.
  absl::Status Missing() const {
    std::vector<std::string> missing;
    for (int s = 0; s < slices(); ++s) {
      const SliceWindow& window = *reinterpret_cast<SliceWindow*>(windows_[s]->data());
      const uint32_t reached = window.control.counters[WindowControl::kReady].value.load();
      if (static_cast<int32_t>(reached - static_cast<uint32_t>(round_)) >= 0) continue;
      missing.push_back(absl::StrCat("rank ", group_.RankOfJob(s)));
    }
    return absl::DeadlineExceededError(absl::StrCat(
        "piece ", round_, " between slices did not come from ", absl::StrJoin(missing, ", ")));
  }

  absl::Status CheckPiece(int s, const PieceHeader& own) {
    const PieceHeader& header = PlaceOf(s).header;
    if (header.elements == own.elements && header.type == own.type) return absl::OkStatus();
    const auto describe = [](const PieceHeader& piece) {
      return absl::StrCat(piece.elements, " of type ", piece.type);
    };
    return Agreed(absl::InvalidArgumentError(
        absl::StrCat("rank ", group_.RankOfJob(s), ", piece ", round_, " between slices: expected ",
                     describe(own), ", found ", describe(header))));
  }

  // This rank's error, or the group's where there was one before.
  absl::Status Agreed(const absl::Status& own) {
    group_error_->Report(own);
    const Deadline deadline = Deadline::In(kVerdictTimeout);
    MutexLock lock(&mutex_);
    while (failed_.ok() && !changed_.WaitWithDeadline(&mutex_, deadline)) {
    }
    return failed_.ok() ? own : failed_;
  }

  // Of the whole job, or because this object goes away.
  void Fail(const absl::Status& status) {
    MutexLock lock(&mutex_);
    if (failed_.ok()) failed_ = status;
    has_failed_ = true;
    if (mesh_ != nullptr) mesh_->Cancel();
    if (signals_ != nullptr) signals_->RingSelf();
    changed_.SignalAll();
  }

  const WorkerGroup group_;
  std::shared_ptr<Window> window_;
  std::vector<std::shared_ptr<Window>> windows_;  // by slice
  int64_t round_ = 0;
  int64_t bytes_sent_ = 0;
  int64_t bytes_received_ = 0;

  // What a failure, on another thread, ends.
  Mutex mutex_;
  CondVar changed_;
  absl::Status failed_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> has_failed_{false};
  std::unique_ptr<WindowMesh>
      mesh_;  // written once by Connect(), under mutex_; null with one slice
  std::unique_ptr<WindowSignals> signals_;  // the same
  std::unique_ptr<GroupError> group_error_;
};

}  // namespace

std::unique_ptr<SliceLink> NewWindowSliceLink(const WorkerGroup& group) {
  return std::make_unique<WindowSliceLink>(group);
}

}  // namespace gradsync
