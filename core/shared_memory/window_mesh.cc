#include "core/shared_memory/window_mesh.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/base/status_macros.h"
#include "core/shared_memory/window_signals.h"

namespace gradsync {
namespace {

constexpr absl::string_view kVersion = "gradsync window 1";
constexpr absl::string_view kFarewell = "farewell";

// A member is lost after this many of its watchers' beats without one of its own. Beats, not time:
// a job that was stopped and goes on must not take the pause for silence.
constexpr int kBeatsOfSilence = 8;

WindowControl& ControlOf(const Window& window) {
  return *reinterpret_cast<WindowControl*>(window.data());
}

}  // namespace

absl::StatusOr<std::unique_ptr<WindowMesh>> WindowMesh::Create(WindowMeshOptions options) {
  GS_ASSIGN_OR_RETURN(UnixListener listener, UnixListener::Listen());
  FileDescriptor cancel(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!cancel.valid()) {
    return absl::UnavailableError(
        absl::StrCat("window mesh: cannot create an eventfd: ", std::strerror(errno)));
  }
  return std::unique_ptr<WindowMesh>(
      new WindowMesh(std::move(options), std::move(listener), std::move(cancel)));
}

WindowMesh::WindowMesh(WindowMeshOptions options, UnixListener listener, FileDescriptor cancel)
    : options_(std::move(options)),
      listener_(std::move(listener)),
      cancel_(std::move(cancel)),
      sockets_(options_.members.size()),
      windows_(options_.members.size()),
      pulses_(options_.members.size()) {
  windows_[options_.self] = options_.window;
  polled_.reserve(1 + options_.members.size());
  polled_members_.reserve(1 + options_.members.size());
}

WindowMesh::~WindowMesh() { Stop(); }

void WindowMesh::Stop() {
  Cancel();
  if (watch_.joinable()) watch_.join();
}

absl::Status WindowMesh::Connect(const std::vector<std::string>& addresses, Deadline deadline) {
  const int members = static_cast<int>(options_.members.size());
  int to_come = 0;
  for (int member = 0; member < members; ++member) {
    if (!options_.members[member].linked || member == options_.self) continue;
    if (member < options_.self) {
      GS_RETURN_IF_ERROR(Dial(member, addresses[member], deadline));
    } else {
      ++to_come;
    }
  }
  while (to_come-- > 0) GS_RETURN_IF_ERROR(AcceptOne(deadline));
  listener_ = UnixListener();
  watch_ = std::thread([this] { Watch(); });
  return absl::OkStatus();
}

absl::Status WindowMesh::Dial(int member, const std::string& address, Deadline deadline) {
  absl::StatusOr<UnixSocket> socket = UnixSocket::Connect(address);
  if (!socket.ok()) return NoConnection(member, socket.status());
  const absl::Status sent = socket->Send(Greeting(), options_.window->file());
  if (!sent.ok()) return NoConnection(member, sent);
  absl::StatusOr<UnixMessage> reply = socket->Receive(deadline, cancel_.get());
  if (!reply.ok()) return NoConnection(member, reply.status());
  GS_ASSIGN_OR_RETURN(const int found, CheckGreeting(reply->bytes, options_.members[member].name));
  if (found != member) {
    return absl::InvalidArgumentError(absl::StrCat("window mesh: expected ",
                                                   options_.members[member].name, " at ", address,
                                                   ", found ", options_.members[found].name));
  }
  return Keep(member, *std::move(socket), std::move(reply->file));
}

absl::Status WindowMesh::AcceptOne(Deadline deadline) {
  const auto waited = [this](const absl::Status& why) {
    return absl::Status(why.code(),
                        absl::StrCat("waiting for ", MissingMembers(), ": ", why.message()));
  };
  absl::StatusOr<UnixSocket> socket = listener_.Accept(deadline, cancel_.get());
  if (!socket.ok()) return waited(socket.status());
  absl::StatusOr<UnixMessage> hello = socket->Receive(deadline, cancel_.get());
  if (!hello.ok()) return waited(hello.status());
  GS_ASSIGN_OR_RETURN(const int member,
                      CheckGreeting(hello->bytes, absl::StrCat("process ", socket->peer_pid())));
  if (member <= options_.self || !options_.members[member].linked || windows_[member] != nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("window mesh: ", options_.members[member].name,
                                                   " connected, expected ", MissingMembers()));
  }
  GS_RETURN_IF_ERROR(socket->Send(Greeting(), options_.window->file()));
  return Keep(member, *std::move(socket), std::move(hello->file));
}

// That member is to blame, but for what this process has not.
absl::Status WindowMesh::NoConnection(int member, const absl::Status& why) const {
  return absl::Status(why.code(),
                      absl::StrCat(absl::IsResourceExhausted(why) ? "no connection to " : "",
                                   options_.members[member].name, ": ", why.message()));
}

std::string WindowMesh::Greeting() const {
  return absl::StrCat(kVersion, "\n", options_.self, "\n", options_.greeting);
}

// Returns the member that sent it.
absl::StatusOr<int> WindowMesh::CheckGreeting(absl::string_view bytes,
                                              const std::string& from) const {
  if (bytes.empty()) {
    return absl::UnavailableError(absl::StrCat(from, " closed its connection"));
  }
  const std::vector<std::string> parts = absl::StrSplit(bytes, absl::MaxSplits('\n', 2));
  int member = -1;
  if (parts.size() != 3 || parts[0] != kVersion || !absl::SimpleAtoi(parts[1], &member) ||
      member < 0 || member >= static_cast<int>(options_.members.size())) {
    return absl::InvalidArgumentError(absl::StrCat("window mesh: expected the greeting \"",
                                                   kVersion, "\" from ", from,
                                                   ", found something else"));
  }
  if (parts[2] != options_.greeting) {
    return absl::FailedPreconditionError(absl::StrCat("window mesh: expected \"", options_.greeting,
                                                      "\", found \"", parts[2], "\" at ",
                                                      options_.members[member].name));
  }
  return member;
}

absl::Status WindowMesh::Keep(int member, UnixSocket socket, FileDescriptor window) {
  absl::StatusOr<std::shared_ptr<Window>> mapped =
      Window::Map(std::move(window), options_.members[member].bytes);
  if (!mapped.ok()) return NoConnection(member, mapped.status());
  windows_[member] = *std::move(mapped);
  MutexLock lock(&mutex_);
  sockets_[member] = std::move(socket);
  if (leaving_) SayFarewell(member);
  return absl::OkStatus();
}

std::string WindowMesh::MissingMembers() const {
  std::vector<std::string> missing;
  for (size_t member = 0; member < windows_.size(); ++member) {
    if (options_.members[member].linked && windows_[member] == nullptr) {
      missing.push_back(options_.members[member].name);
    }
  }
  return absl::StrJoin(missing, ", ");
}

std::string WindowMesh::Name(int member) const {
  return absl::StrCat(options_.members[member].name, " (process ", sockets_[member].peer_pid(),
                      " of this host)");
}

void WindowMesh::Leave() {
  MutexLock lock(&mutex_);
  leaving_ = true;
  for (size_t member = 0; member < sockets_.size(); ++member) {
    if (sockets_[member].file() >= 0) SayFarewell(static_cast<int>(member));
  }
}

void WindowMesh::SayFarewell(int member) {
  // Fails when that one has left already, which is fine.
  sockets_[member].Send(kFarewell).IgnoreError();
}

void WindowMesh::Cancel() { eventfd_write(cancel_.get(), 1); }

void WindowMesh::Watch() {
  const int64_t beat = absl::ToInt64Milliseconds(options_.silence / kBeatsOfSilence);
  const int beat_milliseconds =
      static_cast<int>(std::min<int64_t>(std::max<int64_t>(beat, 1), 60000));
  Deadline next_beat = Deadline::Now();
  while (true) {
    polled_.assign(1, {cancel_.get(), POLLIN, 0});
    polled_members_.assign(1, options_.self);
    for (size_t member = 0; member < sockets_.size(); ++member) {
      if (sockets_[member].file() < 0 || pulses_[member].left) continue;
      polled_.push_back({sockets_[member].file(), POLLIN, 0});
      polled_members_.push_back(static_cast<int>(member));
    }
    poll(polled_.data(), polled_.size(), next_beat.PollTimeout());
    if (polled_[0].revents != 0) return;
    for (size_t i = 1; i < polled_.size(); ++i) {
      if (polled_[i].revents != 0) ReadFrom(polled_members_[i]);
    }
    if (next_beat.passed()) {
      Beat();
      next_beat = Deadline::In(absl::Milliseconds(beat_milliseconds));
    }
  }
}

void WindowMesh::Beat() {
  ControlOf(*options_.window).heartbeat.value.fetch_add(1, std::memory_order_relaxed);
  for (size_t i = 0; i < sockets_.size(); ++i) {
    Pulse& pulse = pulses_[i];
    if (sockets_[i].file() < 0 || pulse.left) continue;
    const uint32_t now = ControlOf(*windows_[i]).heartbeat.value.load(std::memory_order_relaxed);
    // Zero: it has not begun, and Connect() has a deadline.
    pulse.missed = now != 0 && now == pulse.heartbeat ? pulse.missed + 1 : 0;
    pulse.heartbeat = now;
    if (pulse.missed > kBeatsOfSilence) {
      Lost(absl::DeadlineExceededError(absl::StrCat(Name(static_cast<int>(i)), " has not run for ",
                                                    absl::FormatDuration(options_.silence))));
    }
  }
}

void WindowMesh::ReadFrom(int member) {
  const absl::StatusOr<UnixMessage> message =
      sockets_[member].Receive(Deadline::Never(), cancel_.get());
  pulses_[member].left = true;
  if (message.ok() && message->bytes == kFarewell) return;
  Lost(absl::UnavailableError(
      absl::StrCat(Name(member), " is gone: its connection was closed without a farewell")));
}

void WindowMesh::Lost(absl::Status status) {
  {
    MutexLock lock(&mutex_);
    if (leaving_ || lost_) return;
    lost_ = true;
  }
  options_.on_lost(std::move(status));
}

}  // namespace gradsync
