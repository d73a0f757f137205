#include "tests/virtual_store.h"

#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "core/base/alarm_clock.h"
#include "core/base/thread.h"
#include "core/group/key_value_store.h"
#include "core/group/store_map.h"

namespace gradsync {
namespace {

// As core/group/grpc_store_client.cc has it.
constexpr absl::Duration kGrace = absl::Seconds(2);

Deadline WithGrace(Deadline deadline) { return Deadline::In(deadline.remaining() + kGrace); }

}  // namespace

struct VirtualStores::Service {
  int process = 0;
  bool open = true;
  std::shared_ptr<StoreMap> map = std::make_shared<StoreMap>();
  // Of the process that serves, whose threads end with it.
  std::unique_ptr<AlarmClock> clock;
};

class VirtualStoreServerImpl : public VirtualStoreServer {
 public:
  VirtualStoreServerImpl(VirtualStores* stores, std::string address)
      : stores_(stores), address_(std::move(address)) {
    service_->process = stores_->world_->this_process();
    service_->clock = std::make_unique<AlarmClock>();
    stores_->services_[address_] = service_;
    stores_->world_->WakeQuietly(stores_);
  }

  ~VirtualStoreServerImpl() override {
    service_->map->Close(absl::UnavailableError("the store has shut down"));
    stores_->world_->Sleep(absl::Milliseconds(50));  // lets the answers out
    service_->open = false;
    stores_->services_.erase(address_);
    service_->clock.reset();
  }

  std::shared_ptr<KeyValueStore> local() const override { return NewInMemoryStore(service_->map); }

 private:
  VirtualStores* const stores_;
  const std::string address_;
  const std::shared_ptr<VirtualStores::Service> service_ =
      std::make_shared<VirtualStores::Service>();
};

class VirtualStoreClient : public ConnectedStore {
 public:
  using Service = VirtualStores::Service;

  VirtualStoreClient(VirtualStores* stores, std::string address, std::shared_ptr<Service> service)
      : state_(std::make_shared<State>(stores, std::move(address), std::move(service))) {
    state_->session = stores->network_->Begin(
        VirtualNetwork::SessionKind::kCalls, state_->process, state_->service->process,
        [weak = std::weak_ptr<State>(state_)](int process, bool /*silent*/) {
          const std::shared_ptr<State> state = weak.lock();
          if (state == nullptr) return;
          // At the server's end the caller's waits are given up.
          if (process != state->process) {
            for (const auto& [number, call] : state->calls) {
              state->world()->After(
                  absl::ZeroDuration(), process,
                  [call = call, service = state->service] { call->CancelAt(*service); });
            }
            return;
          }
          state->End(absl::UnavailableError("Socket closed"));
        });
  }

  absl::Status Set(absl::string_view key, absl::string_view value, Deadline deadline) override {
    return Ask(key, deadline,
               [key = std::string(key), value = std::string(value)](Service& service,
                                                                    const CallPtr& call) {
                 call->Answer(service.map->Set(key, value));
               })
        .status();
  }

  absl::StatusOr<std::string> SetIfAbsent(absl::string_view key, absl::string_view value,
                                          Deadline deadline) override {
    return First(Ask(key, deadline,
                     [key = std::string(key), value = std::string(value)](Service& service,
                                                                          const CallPtr& call) {
                       call->Answer(service.map->SetIfAbsent(key, value));
                     }));
  }

  absl::StatusOr<std::string> Get(absl::string_view key, Deadline deadline) override {
    return First(Ask(key, WithGrace(deadline), Getting(key, deadline.remaining())));
  }

  absl::StatusOr<std::vector<std::string>> AllGather(absl::string_view key, int rank,
                                                     int world_size, absl::string_view value,
                                                     Deadline deadline) override {
    return Ask(key, WithGrace(deadline),
               [key = std::string(key), rank, world_size, value = std::string(value),
                patience = deadline.remaining()](Service& service, const CallPtr& call) {
                 call->WaitAt(
                     service,
                     service.map->AllGather(key, rank, world_size, value,
                                            [call](absl::StatusOr<StoreMap::Values> values) {
                                              if (!values.ok())
                                                return call->Answer(values.status());
                                              call->Answer(**values);
                                            }),
                     patience);
               });
  }

  absl::StatusOr<std::string> Fail(absl::string_view prefix, absl::string_view reason,
                                   Deadline deadline) override {
    return First(Ask(prefix, deadline,
                     [prefix = std::string(prefix), reason = std::string(reason)](
                         Service& service, const CallPtr& call) {
                       call->Answer(service.map->Fail(prefix, reason));
                     }));
  }

  std::unique_ptr<Watcher> Watch(
      absl::string_view key, std::function<void(absl::StatusOr<std::string>)> callback) override {
    return std::make_unique<WatcherImpl>(
        state_, std::string(key), Getting(key, absl::InfiniteDuration()), std::move(callback));
  }

  std::unique_ptr<Watcher> Attend(absl::string_view key) override {
    // Nobody sets a key without a name: only the caller's end, or the store's, ends the wait.
    const Handler attending = [key = std::string(key)](Service& service, const CallPtr& call) {
      call->attended = key;
      Getting("", absl::InfiniteDuration())(service, call);
    };
    return std::make_unique<WatcherImpl>(state_, std::string(key), attending,
                                         [](const absl::StatusOr<std::string>&) {});
  }

  void Abandon(absl::Status reason) override {
    if (!state_->abandoned.ok()) return;
    state_->abandoned = reason;
    state_->End(std::move(reason));
  }

  const std::string& address() const override { return state_->address; }

 private:
  using Values = std::vector<std::string>;
  struct Call;
  using CallPtr = std::shared_ptr<Call>;

  struct State {
    State(VirtualStores* stores, std::string address, std::shared_ptr<Service> service)
        : stores(stores),
          address(std::move(address)),
          service(std::move(service)),
          process(stores->world_->this_process()) {
      stores->lanes_.insert(stores->lanes_.end(), {calls_lane, answers});
    }
    ~State() { stores->network_->End(session); }

    VirtualWorld* world() const { return stores->world_; }

    // Ends what is under way here.
    void End(const absl::Status& why) {
      const std::map<int64_t, CallPtr> ended = calls;
      for (const auto& [number, call] : ended) call->Resolve(why);
    }

    VirtualStores* const stores;
    const std::string address;
    const std::shared_ptr<Service> service;
    const int process;
    VirtualNetwork::SessionId session = 0;
    int64_t numbers = 0;
    std::map<int64_t, CallPtr> calls;  // by number, so that their order is the same in each run
    // One connection, on which calls do not overtake each other, nor answers.
    const std::shared_ptr<VirtualNetwork::Lane> calls_lane =
        std::make_shared<VirtualNetwork::Lane>();
    const std::shared_ptr<VirtualNetwork::Lane> answers = std::make_shared<VirtualNetwork::Lane>();
    absl::Status abandoned;
  };

  // One call: the caller waits for its result, the server may wait in the map.
  struct Call : std::enable_shared_from_this<Call> {
    explicit Call(std::shared_ptr<State> state) : state(std::move(state)) {}

    // At the caller's end. The first counts.
    void Resolve(absl::StatusOr<Values> found) {
      if (result.has_value()) return;
      result = std::move(found);
      state->world()->WakeQuietly(this);
    }

    // At the server's end.
    void Answer(absl::StatusOr<Values> found) {
      answered = true;
      state->stores->network_->Send(
          state->answers, state->service->process, state->process,
          [call = shared_from_this(), found = std::move(found)] { call->Resolve(found); });
    }
    void Answer(const absl::Status& status) {
      Answer(status.ok() ? absl::StatusOr<Values>(Values()) : status);
    }
    void Answer(const absl::StatusOr<StoreMap::Value>& value) {
      Answer(value.ok() ? absl::StatusOr<Values>(Values{**value}) : value.status());
    }
    void WaitAt(Service& service, StoreMap::Ticket number, absl::Duration patience) {
      ticket = number;
      if (answered || service.clock == nullptr) return;
      service.clock->Set(Deadline::In(patience),
                         [map = service.map, number] { map->Expire(number); });
    }
    void CancelAt(Service& service) {
      service.map->Cancel(ticket);
      if (attended.has_value()) service.map->Set(*attended, "").IgnoreError();
    }

    const std::shared_ptr<State> state;
    absl::optional<absl::StatusOr<Values>> result;
    int64_t number = 0;
    bool answered = false;
    StoreMap::Ticket ticket = 0;
    absl::optional<std::string> attended;  // the key that is set when the caller is gone
  };

  using Handler = std::function<void(Service&, const CallPtr&)>;

  static Handler Getting(absl::string_view key, absl::Duration patience) {
    return [key = std::string(key), patience](Service& service, const CallPtr& call) {
      call->WaitAt(service,
                   service.map->Get(
                       key, [call](absl::StatusOr<StoreMap::Value> value) { call->Answer(value); }),
                   patience);
    };
  }

  static CallPtr Start(const std::shared_ptr<State>& state, Handler handler) {
    auto call = std::make_shared<Call>(state);
    VirtualNetwork* const network = state->stores->network_;
    if (!state->abandoned.ok()) {
      call->Resolve(state->abandoned);
    } else if (network->dead(state->process) || !state->service->open) {
      call->Resolve(absl::UnavailableError("failed to connect to all addresses"));
    } else {
      call->number = ++state->numbers;
      state->calls.emplace(call->number, call);
      network->Send(state->calls_lane, state->process, state->service->process,
                    [call, handler = std::move(handler), service = state->service] {
                      if (service->open) return handler(*service, call);
                      call->Answer(absl::UnavailableError("Socket closed"));
                    });
      if (network->dead(state->service->process)) {
        // Nothing answers there; the host resets the connection.
        state->world()->Outside(absl::Milliseconds(1), [call] {
          call->Resolve(absl::UnavailableError("Connection refused"));
        });
      }
    }
    return call;
  }

  // Waits for the result; null ends with the deadline.
  static absl::StatusOr<Values> Await(const CallPtr& call, absl::string_view key) {
    State& state = *call->state;
    while (!call->result.has_value()) {
      state.world()->Wait(call.get(), absl::InfiniteDuration());
    }
    state.calls.erase(call->number);
    if (call->result->ok()) return **call->result;
    if (!state.abandoned.ok()) return state.abandoned;
    const absl::Status& status = call->result->status();
    if (absl::IsAborted(status)) return status;
    const absl::StatusCode code =
        absl::IsCancelled(status) ? absl::StatusCode::kUnavailable : status.code();
    const std::string what =
        absl::StrContains(status.message(), key) ? "" : absl::StrCat("\"", key, "\": no answer: ");
    return absl::Status(code,
                        absl::StrCat("store at ", state.address, ": ", what, status.message()));
  }

  absl::StatusOr<Values> Ask(absl::string_view key, Deadline deadline, Handler handler) {
    const CallPtr call = Start(state_, std::move(handler));
    const AlarmClock::Ticket alarm = clock_.Set(deadline, [call] {
      call->Resolve(absl::DeadlineExceededError("none in time"));
      Cancel(call);
    });
    absl::StatusOr<Values> result = Await(call, key);
    clock_.Cancel(alarm);
    return result;
  }

  // The server gives the wait up.
  static void Cancel(const CallPtr& call) {
    State& state = *call->state;
    state.stores->network_->Send(state.calls_lane, state.process, state.service->process,
                                 [call, service = state.service] { call->CancelAt(*service); });
  }

  static absl::StatusOr<std::string> First(absl::StatusOr<Values> values) {
    if (!values.ok()) return values.status();
    return std::move((*values)[0]);
  }

  class WatcherImpl : public Watcher {
   public:
    WatcherImpl(const std::shared_ptr<State>& state, std::string key, Handler handler,
                std::function<void(absl::StatusOr<std::string>)> callback)
        : call_(Start(state, std::move(handler))),
          thread_([this, key = std::move(key), callback = std::move(callback)] {
            absl::StatusOr<Values> values = Await(call_, key);
            if (values.ok() || !cancelled_) callback(First(std::move(values)));
          }) {}

    ~WatcherImpl() override {
      cancelled_ = true;
      call_->Resolve(absl::CancelledError("the watch has ended"));
      Cancel(call_);
      thread_.join();
    }

   private:
    bool cancelled_ = false;
    const CallPtr call_;
    Thread thread_;  // last: uses all of the above
  };

  const std::shared_ptr<State> state_;
  AlarmClock clock_;
};

VirtualStores::~VirtualStores() {
  for (const auto& weak : lanes_) {
    const std::shared_ptr<VirtualNetwork::Lane> lane = weak.lock();
    if (lane != nullptr) lane->arrived.clear();
  }
}

std::unique_ptr<VirtualStoreServer> VirtualStores::Serve(const std::string& address) {
  return std::make_unique<VirtualStoreServerImpl>(this, address);
}

absl::StatusOr<std::shared_ptr<ConnectedStore>> VirtualStores::Connect(const std::string& address,
                                                                       Deadline deadline) {
  const int process = world_->this_process();
  while (services_.count(address) == 0 || network_->cut(process, services_[address]->process) ||
         network_->dead(process)) {
    if (deadline.passed()) {
      return absl::DeadlineExceededError(absl::StrCat(
          "store at ", address, ": expected a store there, found none by the deadline"));
    }
    world_->Wait(this, std::min(deadline, Deadline::In(absl::Seconds(1))).time().since_origin());
  }
  world_->Sleep(absl::Microseconds(300));
  const auto found = services_.find(address);
  if (found == services_.end()) {
    return absl::UnavailableError(absl::StrCat("store at ", address, ": it has just ended"));
  }
  return std::make_shared<VirtualStoreClient>(this, address, found->second);
}

}  // namespace gradsync
