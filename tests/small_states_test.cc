// What rings and servers decide by, in every order in which things can happen: the real classes,
// among as few ranks and chunks as have all the cases. A state is visited once, whatever led to it.

#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "allreduce/ring_tokens.h"
#include "core/base/deadline.h"
#include "core/links/frame_stream.h"
#include "core/plan/kinds.h"
#include "core/plan/plan.h"
#include "core/plan/ring_schedule.h"
#include "core/plan/shard_map.h"
#include "core/plan/stripes.h"
#include "gtest/gtest.h"
#include "ps_server/chunk_clocks.h"
#include "ps_server/client/server_connection.h"
#include "ps_server/parameter_shard.h"
#include "ps_server/step_progress.h"
#include "tests/explore.h"

namespace gradsync {
namespace {

Plan PlanOf(int ranks, int64_t elements) {
  OptimizerSpec optimizer;
  optimizer.groups.resize(1);
  return *Plan::FromBuckets({{"a", {elements}, {1}, 0}}, {{0}}, optimizer, ranks,
                            /*chunk_bytes=*/64);
}

StepOptions StepNumber(int64_t number) {
  StepOptions step;
  step.step = number;
  step.lr = 0.1;
  return step;
}

// Numbers in the name of an action: "offer 2 1" has 2 and 1.
std::vector<int> NumbersIn(const std::string& action) {
  std::vector<int> numbers;
  for (const auto word : absl::StrSplit(action, ' ')) {
    int number = 0;
    if (absl::SimpleAtoi(word, &number)) numbers.push_back(number);
  }
  return numbers;
}

bool Begins(const std::string& action, const char* word) { return action.rfind(word, 0) == 0; }

// The fold of one chunk: each rank leaves its part of each step once the last step is out; whoever
// owns the chunk takes turns, and others may come between any two of its calls.
class Turns : public SmallSystem {
 public:
  Turns(int chunk, int ranks, int steps)
      : chunk_(chunk), ranks_(ranks), steps_(steps), turns_(chunk, ranks), offered_(ranks) {}

  std::vector<std::string> Actions() const override {
    std::vector<std::string> actions;
    for (int rank = 0; rank < ranks_; ++rank) {
      if (offered_[rank] == out_ && out_ < steps_) actions.push_back(absl::StrCat("offer ", rank));
    }
    for (int i = 0; i < owners_; ++i) actions.push_back(finishing_ ? "restart" : "next");
    return actions;
  }

  void Act(const std::string& action) override {
    if (Begins(action, "offer")) {
      const int rank = NumbersIn(action)[0];
      ++offered_[rank];
      const absl::StatusOr<bool> owner = turns_.Offer(rank, Payload());
      if (!owner.ok()) wrong_ = owner.status().ToString();
      if (owner.ok() && *owner && ++owners_ > 1) wrong_ = "two fold one chunk";
    } else if (action == "next") {
      const absl::optional<ChunkTurns::Turn> turn = turns_.Next();
      if (!turn.has_value()) {
        --owners_;
        return;
      }
      if (turn->rank != FoldRank(chunk_, folded_, ranks_)) wrong_ = "folded out of order";
      ++folded_;
      finishing_ = turn->last;
      if (turn->last != (folded_ == ranks_)) wrong_ = "the last turn comes too early or late";
    } else {
      turns_.Restart();
      --owners_;
      finishing_ = false;
      folded_ = 0;
      ++out_;
    }
  }

  std::string State() const override {
    return absl::StrCat(absl::StrJoin(offered_, ","), "/", out_, "/", folded_, "/", owners_,
                        finishing_);
  }

  std::string Wrong(bool ended) const override {
    if (!wrong_.empty()) return wrong_;
    return ended && out_ < steps_ ? "a fold never ends" : "";
  }

 private:
  const int chunk_, ranks_, steps_;
  ChunkTurns turns_;
  std::vector<int> offered_;
  int owners_ = 0, folded_ = 0, out_ = 0;
  bool finishing_ = false;
  std::string wrong_;
};

TEST(SmallStatesTest, AChunkIsFoldedInOrderByOneAtATimeWhateverComesWhen) {
  int64_t states = 0;
  for (int ranks = 1; ranks <= 4; ++ranks) {
    for (int chunk = 0; chunk < ranks; ++chunk) {
      const Exploration found =
          Explore([&] { return std::make_unique<Turns>(chunk, ranks, /*steps=*/3); });
      EXPECT_EQ(found.wrong, "") << ranks << " ranks, chunk " << chunk;
      EXPECT_EQ(found.ends, 1);
      states += found.states;
    }
  }
  RecordProperty("states", states);
}

// The clocks of one chunk under ssp or asp: each rank pushes so many gradients, each when the last
// was answered, and settles.
class Clocks : public SmallSystem {
 public:
  Clocks(Consistency consistency, int ranks, int steps)
      : consistency_(consistency),
        ranks_(ranks),
        steps_(steps),
        clocks_({0, 0}, ranks, consistency, {}),
        rank_(ranks) {}

  std::vector<std::string> Actions() const override {
    std::vector<std::string> actions;
    for (int r = 0; r < ranks_; ++r) {
      const Rank& rank = rank_[r];
      if (rank.settled || rank.pushed > rank.answered) continue;
      actions.push_back(absl::StrCat(rank.pushed < steps_ ? "push " : "settle ", r));
    }
    for (int i = 0; i < owners_; ++i) {
      actions.push_back(applying_ >= 0 ? absl::StrCat("applied ", applying_) : "next");
    }
    return actions;
  }

  void Act(const std::string& action) override {
    if (Begins(action, "push")) {
      const int r = NumbersIn(action)[0];
      ChunkClocks::Gradient gradient;
      gradient.rank = r;
      gradient.step = StepNumber(++rank_[r].pushed);
      held_.push_back(r);
      Own(clocks_.Offer(std::move(gradient)));
    } else if (Begins(action, "settle")) {
      const int r = NumbersIn(action)[0];
      rank_[r].settled = true;
      Own(clocks_.Settle(r));
    } else if (Begins(action, "applied")) {
      ++rank_[applying_].applied;
      clocks_.Applied(std::exchange(applying_, -1));
    } else {
      Next();
    }
  }

  std::string State() const override {
    std::string state = absl::StrCat(absl::StrJoin(held_, ","), "/", owners_, "/", applying_);
    for (const Rank& rank : rank_) {
      absl::StrAppend(&state, "/", rank.pushed, rank.applied, rank.answered, rank.told,
                      rank.settled, rank.finals);
    }
    return state;
  }

  std::string Wrong(bool ended) const override {
    if (!wrong_.empty()) return wrong_;
    for (const Rank& rank : rank_) {
      if (ended && (rank.applied != steps_ || rank.answered != steps_ || rank.finals != 1)) {
        return "a rank waits for ever";
      }
    }
    return "";
  }

 private:
  struct Rank {
    int pushed = 0, applied = 0, answered = 0, told = 0, finals = 0;
    bool settled = false;
  };

  void Own(const absl::StatusOr<bool>& owner) {
    if (!owner.ok()) wrong_ = owner.status().ToString();
    if (owner.ok() && *owner && ++owners_ > 1) wrong_ = "two work on one chunk";
  }

  void Next() {
    absl::optional<ChunkClocks::Work> work = clocks_.Next();
    if (!work.has_value()) {
      --owners_;
      return;
    }
    if (work->apply.has_value()) {
      applying_ = work->apply->rank;
      if (held_.empty() || held_.front() != applying_) wrong_ = "applied out of order, or twice";
      if (!held_.empty()) held_.pop_front();
    }
    int slowest = steps_;
    for (const Rank& rank : rank_) {
      if (!rank.settled) slowest = std::min(slowest, rank.applied);
    }
    for (const ChunkClocks::Answer& answer : work->answers) {
      Rank& rank = rank_[answer.rank];
      if (work->final) {
        ++rank.finals;
        continue;
      }
      ++rank.answered;
      if (rank.answered != rank.applied) wrong_ = "answered what was not applied";
      const bool alone =
          std::all_of(rank_.begin(), rank_.end(), [](const Rank& other) { return other.settled; });
      if (!alone && !consistency_.Allows(rank.applied - slowest)) wrong_ = "too far ahead";
    }
    for (const ChunkClocks::Answer& answer : work->deferred) {
      if (consistency_.Allows(answer.staleness)) wrong_ = "deferred without need";
      if (rank_[answer.rank].told == rank_[answer.rank].applied) wrong_ = "deferred twice";
      rank_[answer.rank].told = rank_[answer.rank].applied;
    }
  }

  const Consistency consistency_;
  const int ranks_, steps_;
  ChunkClocks clocks_;
  std::vector<Rank> rank_;
  std::deque<int> held_;
  int owners_ = 0, applying_ = -1;
  std::string wrong_;
};

TEST(SmallStatesTest, ClocksLetNobodyTooFarAheadAndEverybodyEnd) {
  int64_t states = 0;
  for (int ranks = 1; ranks <= 3; ++ranks) {
    for (const char* name : {"ssp:0", "ssp:1", "ssp:2", "asp"}) {
      const Exploration found = Explore([&] {
        return std::make_unique<Clocks>(*ParseConsistency(name), ranks, ranks == 3 ? 2 : 4);
      });
      EXPECT_EQ(found.wrong, "") << ranks << " ranks, " << name;
      states += found.states;
    }
  }
  RecordProperty("states", states);
}

// The tokens of a ring, each rank as allreduce/ring_engine.h acts on them: a rank launches, a
// thread of its begins its own tokens, frames arrive in the order of the stream but for urgent
// ones, and memory is given back some time after it was sent.
class Tokens : public SmallSystem {
 public:
  Tokens(int ranks, int64_t elements, int lead, int steps, bool at_worker)
      : plan_(PlanOf(ranks, elements)),
        n_(ranks),
        steps_(steps),
        lead_(lead),
        at_worker_(at_worker) {
    for (int r = 0; r < n_; ++r) {
      rank_.push_back(std::make_unique<Rank>(plan_, r, lead, at_worker));
    }
  }

  std::vector<std::string> Actions() const override {
    std::vector<std::string> actions;
    for (int r = 0; r < n_; ++r) {
      const Rank& rank = *rank_[r];
      if (!rank.open && rank.step < steps_) actions.push_back(absl::StrCat("launch ", r));
      if (rank.to_begin) actions.push_back(absl::StrCat("begin ", r));
      if (!rank.urgent.empty() || !rank.normal.empty()) {
        actions.push_back(absl::StrCat("hear ", RingNext(r, n_)));
      }
      if (!rank.lent.empty()) actions.push_back(absl::StrCat("return ", r));
    }
    return actions;
  }

  void Act(const std::string& action) override {
    const int r = NumbersIn(action)[0];
    Rank& rank = *rank_[r];
    if (Begins(action, "launch")) {
      const absl::StatusOr<SyncHandle> handle = rank.tokens.Launch(StepNumber(++rank.step), 0);
      if (!handle.ok()) return Note(handle.status());
      rank.open = rank.to_begin = true;
      rank.added.assign(plan_.buckets()[0].layout.slots(), 0);
      rank.finals = 0;
    } else if (Begins(action, "begin")) {
      rank.to_begin = false;
      Initiate(r);
      while (absl::optional<WaitingFrame> frame = rank.tokens.TakeDue(0)) {
        rank.held.pop_front();
        Fold(r, IdOf(frame->header));
      }
      Resolve(r);
    } else if (Begins(action, "hear")) {
      Rank& from = *rank_[RingPrevious(r, n_)];
      auto& queue = from.urgent.empty() ? from.normal : from.urgent;
      const proto::FrameHeader header = queue.front();
      queue.pop_front();
      Hear(r, header);
    } else {
      const auto [slot, final] = rank.lent.front();
      rank.lent.pop_front();
      Return(r, {0, slot}, final);
    }
  }

  std::string State() const override {
    std::string state;
    for (const auto& rank : rank_) {
      absl::StrAppend(&state, rank->step, rank->open, rank->to_begin, ":", rank->initiated, ":",
                      absl::StrJoin(rank->added, ""), ":", rank->finals, ":",
                      absl::StrJoin(rank->final_slots, ""), ":");
      for (const auto& [slot, final] : rank->lent) absl::StrAppend(&state, slot, final ? "f" : "s");
      absl::StrAppend(&state, ":", absl::StrJoin(rank->held, ","), ":",
                      absl::StrJoin(rank->waiting, ","), ":");
      for (const auto* queue : {&rank->urgent, &rank->normal}) {
        for (const auto& frame : *queue) {
          absl::StrAppend(&state, frame.kind(), ".", frame.step(), ".", frame.slot(), ",");
        }
        state += ";";
      }
      state += "|";
    }
    return state;
  }

  std::string Wrong(bool ended) const override {
    if (!wrong_.empty()) return wrong_;
    for (const auto& rank : rank_) {
      if (ended && (rank->open || rank->step < steps_)) return "the ring stands still";
    }
    return "";
  }

 private:
  struct Rank {
    Rank(const Plan& plan, int rank, int lead, bool at_worker)
        : tokens(plan, rank, lead, at_worker),
          added(plan.buckets()[0].layout.slots()),
          final_slots(plan.buckets()[0].layout.slots()) {}

    RingTokens tokens;
    int step = 0;
    bool open = false, to_begin = false;
    int initiated = 0;             // own tokens, ever
    std::vector<int> added;        // by slot: this rank's gradient is in the sum
    std::vector<int> final_slots;  // by slot: the step whose result is here
    int finals = 0;
    std::deque<std::pair<int, bool>> lent;  // slot, and whether it is a result
    std::deque<int> held;                   // slots of frames before the launch
    std::vector<int> waiting;               // slots of results that wait for memory
    std::deque<proto::FrameHeader> urgent, normal;
  };

  static ChunkId IdOf(const proto::FrameHeader& header) {
    return {static_cast<int>(header.bucket()), static_cast<int>(header.slot())};
  }
  int Chunk(ChunkId id) const { return plan_.buckets()[0].layout.chunk_of(id.slot); }
  void Note(const absl::Status& status) {
    if (!status.ok() && wrong_.empty()) wrong_ = status.ToString();
  }

  void Send(int r, proto::FrameHeader::Kind kind, ChunkId id, int hop, bool urgent) {
    Rank& rank = *rank_[r];
    (urgent ? rank.urgent : rank.normal).push_back(RingHeader(kind, rank.tokens.step(0), id, hop));
    rank.lent.emplace_back(id.slot, kind == proto::FrameHeader::GATHER);
  }

  void Add(int r, ChunkId id) {
    if (++rank_[r]->added[id.slot] > 1) wrong_ = "a gradient is added twice";
  }

  void Initiate(int r) {
    Rank& rank = *rank_[r];
    for (int i = 0; i < lead_; ++i) {
      const absl::optional<ChunkId> id = rank.tokens.NextOwn();
      if (!id) return;
      ++rank.initiated;
      Add(r, *id);
      rank.tokens.LendSum(*id);
      Send(r, proto::FrameHeader::REDUCE, *id, 1, /*urgent=*/false);
    }
  }

  void Fold(int r, ChunkId id) {
    Add(r, id);
    if (!SendsReduce(Chunk(id), r)) return PassOn(r, id);
    rank_[r]->tokens.LendSum(id);
    Send(r, proto::FrameHeader::REDUCE, id, ReduceHop(Chunk(id), r, n_) + 1, /*urgent=*/true);
  }

  void PassOn(int r, ChunkId id) {
    Rank& rank = *rank_[r];
    if (at_worker_) {
      for (const auto& [slot, final] : rank.lent) {
        if (slot == id.slot && !final) wrong_ = "lent memory is overwritten";
      }
    }
    rank.tokens.MarkFinal(id);
    ++rank.finals;
    rank.final_slots[id.slot] = rank.step;
    if (SendsGather(Chunk(id), r, n_)) {
      rank.tokens.LendFinal(id);
      Send(r, proto::FrameHeader::GATHER, id, GatherHop(Chunk(id), r, n_) + 1, /*urgent=*/true);
    }
    Resolve(r);
  }

  void Hear(int r, const proto::FrameHeader& header) {
    Rank& rank = *rank_[r];
    const ChunkId id = IdOf(header);
    Payload payload;
    if (header.kind() == proto::FrameHeader::REDUCE) {
      const absl::StatusOr<bool> now = rank.tokens.OnReduce(header, &payload);
      if (!now.ok()) return Note(now.status());
      if (*now) return Fold(r, id);
      rank.held.push_back(id.slot);
      return;
    }
    const absl::StatusOr<bool> now = rank.tokens.OnGather(header, &payload);
    if (!now.ok()) return Note(now.status());
    if (*now) {
      PassOn(r, id);
    } else {
      rank.waiting.push_back(id.slot);
    }
    Initiate(r);
  }

  void Return(int r, ChunkId id, bool final) {
    Rank& rank = *rank_[r];
    if (final) {
      rank.tokens.ReturnFinal(id);
    } else if (rank.tokens.ReturnSum(id)) {
      if (rank.tokens.TakeGather(id).has_value()) {
        rank.waiting.erase(std::find(rank.waiting.begin(), rank.waiting.end(), id.slot));
        PassOn(r, id);
      }
    }
    Resolve(r);
  }

  void Resolve(int r) {
    Rank& rank = *rank_[r];
    if (!rank.tokens.TakeResolved(0).has_value()) return;
    rank.open = false;
    if (!rank.lent.empty()) wrong_ = "a bucket is given back while its memory is lent";
    if (rank.finals != std::count(rank.added.begin(), rank.added.end(), 1)) {
      wrong_ = "a bucket is complete without all gradients";
    }
  }

  const Plan plan_;
  const int n_, steps_, lead_;
  const bool at_worker_;
  std::vector<std::unique_ptr<Rank>> rank_;
  std::string wrong_;
};

TEST(SmallStatesTest, TheTokensOfARingAlwaysComeRound) {
  struct Case {
    int ranks;
    int64_t elements;  // 16 to a chunk
    int lead, steps;
    bool at_worker;
  };
  int64_t states = 0;
  for (const Case& c : std::vector<Case>{{2, 40, 1, 2, true},
                                         {2, 64, 1, 1, true},
                                         {2, 64, 2, 1, false},
                                         {3, 33, 1, 1, true},
                                         {3, 20, 1, 1, false},
                                         {4, 17, 1, 1, true}}) {
    const Exploration found = Explore([&] {
      return std::make_unique<Tokens>(c.ranks, c.elements, c.lead, c.steps, c.at_worker);
    });
    EXPECT_EQ(found.wrong, "") << c.ranks << " ranks, " << c.elements << " elements";
    EXPECT_GE(found.ends, 1);
    states += found.states;
  }
  RecordProperty("states", states);
}

// Workers and one server: order of pushes on their streams, lead, credit, turns and the step that
// is under way, as ps_server/client/ps_engine.h and ps_server/service.h act on them.
class Credits : public SmallSystem {
 public:
  Credits(int ranks, int64_t elements, int connections, int steps)
      : plan_(PlanOf(ranks, elements)),
        shards_(*ShardMap::Create(plan_, {1})),
        n_(ranks),
        connections_(connections),
        steps_(steps),
        lead_(PushLeads(plan_, shards_, {connections}, /*per_stream=*/1)[0]),
        credit_(CreditFor(lead_)),
        batch_(CreditBatch(credit_)) {
    for (int r = 0; r < n_; ++r) orders_.push_back(PushOrder(plan_, shards_, 0, r));
    order_ = ServerPushOrder(orders_[0], n_);
    progress_ = std::make_unique<StepProgress>(static_cast<int>(orders_[0].size()), n_);
    for (int r = 0; r < n_; ++r) {
      auto& worker = workers_.emplace_back(std::make_unique<Worker>());
      worker->connection =
          std::make_unique<ServerConnection>(0, 0, "server 0", "server:1", connections, lead_);
      Wires wires(worker.get());
      for (int c = 0; c < connections; ++c) {
        worker->to_server.emplace_back();
        worker->to_worker.emplace_back();
        worker->sequences.emplace_back(&order_, r, c, connections);
        EXPECT_TRUE(worker->connection->Connect(wires, nullptr, Deadline::Never()).ok());
      }
    }
    const StripeLayout& layout = plan_.buckets()[0].layout;
    for (int slot = 0; slot < layout.slots(); ++slot) {
      turns_.push_back(std::make_unique<ChunkTurns>(layout.chunk_of(slot), n_));
    }
  }

  std::vector<std::string> Actions() const override {
    std::vector<std::string> actions;
    for (int r = 0; r < n_; ++r) {
      const Worker& worker = *workers_[r];
      if (worker.step < steps_ && worker.results == Chunks() * worker.step) {
        actions.push_back(absl::StrCat("launch ", r));
      }
      for (int c = 0; c < connections_; ++c) {
        if (!worker.to_server[c].empty()) actions.push_back(absl::StrCat("push ", r, " ", c));
        if (!worker.to_worker[c].empty()) actions.push_back(absl::StrCat("back ", r, " ", c));
      }
    }
    return actions;
  }

  void Act(const std::string& action) override {
    const std::vector<int> numbers = NumbersIn(action);
    Worker& worker = *workers_[numbers[0]];
    if (Begins(action, "launch")) {
      ++worker.step;
      const auto& order = orders_[numbers[0]];
      for (size_t number = 0; number < order.size(); ++number) {
        OutgoingFrame frame;
        frame.header.set_kind(proto::FrameHeader::PUSH);
        frame.header.set_step(static_cast<uint64_t>(worker.step));
        frame.header.set_slot(static_cast<uint32_t>(order[number].slot));
        worker.connection->Queue(std::move(frame), number);
      }
      return;
    }
    auto& wire = (Begins(action, "push") ? worker.to_server : worker.to_worker)[numbers[1]];
    const proto::FrameHeader header = wire.front();
    wire.pop_front();
    if (Begins(action, "push")) return Push(numbers[0], numbers[1], header);
    if (header.kind() == proto::FrameHeader::CREDIT) {
      ++worker.credits;
      return Note(worker.connection->AddCredit(header.count()));
    }
    ++worker.results;
    worker.connection->AddResult();
  }

  std::string State() const override {
    std::string state;
    for (const auto& worker : workers_) {
      absl::StrAppend(&state, worker->step, ".", worker->results, ".", worker->credits, ".",
                      worker->on_their_way, ".", worker->folded, ":");
      for (const auto* wires : {&worker->to_server, &worker->to_worker}) {
        for (const auto& wire : *wires) {
          for (const auto& frame : wire)
            absl::StrAppend(&state, frame.kind(), ".", frame.slot(), ",");
          state += ";";
        }
      }
      absl::StrAppend(&state, absl::StrJoin(worker->arrived, ""), "|");
    }
    return absl::StrCat(state, sent_, "/", absl::StrJoin(folds_, ""));
  }

  std::string Wrong(bool ended) const override {
    if (!wrong_.empty()) return wrong_;
    for (const auto& worker : workers_) {
      if (ended && worker->results < Chunks() * steps_) return "workers and server wait";
    }
    return "";
  }

 private:
  struct Worker {
    std::unique_ptr<ServerConnection> connection;
    std::vector<std::deque<proto::FrameHeader>> to_server, to_worker;
    std::vector<PushSequence> sequences;
    int step = 0, results = 0, credits = 0;
    int on_their_way = 0, folded = 0;
    std::vector<int> arrived;  // slots of this step, at the server, sorted
  };

  // Streams that put what is sent on the worker's wires.
  class Wire : public FrameStream {
   public:
    explicit Wire(std::deque<proto::FrameHeader>* wire) : wire_(wire) {}
    void Send(OutgoingFrame frame) override { wire_->push_back(frame.header); }
    void Finish() override {}
    void Cancel(absl::Status) override {}

   private:
    std::deque<proto::FrameHeader>* const wire_;
  };
  class Wires : public StreamLink {
   public:
    explicit Wires(Worker* worker) : worker_(worker) { worker_->to_server.reserve(8); }
    absl::StatusOr<std::unique_ptr<StreamListener>> Listen(const std::string&,
                                                           StreamAcceptor) override {
      return absl::UnavailableError("nobody listens here");
    }
    absl::StatusOr<std::shared_ptr<FrameStream>> Connect(const std::string&, int connection,
                                                         std::shared_ptr<FrameSink>,
                                                         Deadline) override {
      return std::make_shared<Wire>(&worker_->to_server[connection]);
    }

   private:
    Worker* const worker_;
  };

  int Chunks() const { return static_cast<int>(orders_[0].size()); }
  void Note(const absl::Status& status) {
    if (!status.ok() && wrong_.empty()) wrong_ = status.ToString();
  }

  void Push(int r, int connection, const proto::FrameHeader& header) {
    Worker& worker = *workers_[r];
    const ChunkId id{0, static_cast<int>(header.slot())};
    const StepOptions step = StepNumber(static_cast<int64_t>(header.step()));
    if (++worker.on_their_way > credit_) wrong_ = "more on their way than the credit";
    Note(worker.sequences[connection].Push(id, step.step));
    Note(progress_->Enter(r, step));
    worker.arrived.push_back(id.slot);
    std::sort(worker.arrived.begin(), worker.arrived.end());
    if (static_cast<int>(worker.arrived.size()) == Chunks()) worker.arrived.clear();
    ChunkTurns& turns = *turns_[id.slot];
    const absl::StatusOr<bool> owner = turns.Offer(r, Payload());
    if (!owner.ok()) return Note(owner.status());
    if (!*owner) return;
    while (const absl::optional<ChunkTurns::Turn> turn = turns.Next()) {
      ++folds_[id.slot];
      Folded(turn->rank);
      if (!turn->last) continue;
      folds_[id.slot] = 0;
      progress_->ChunkFolded();
      turns.Restart();
      progress_->ChunkFinished();
      Result(id);
      break;
    }
  }

  void Folded(int r) {
    Worker& worker = *workers_[r];
    --worker.on_their_way;
    if (++worker.folded < batch_) return;
    worker.folded = 0;
    proto::FrameHeader credit;
    credit.set_kind(proto::FrameHeader::CREDIT);
    credit.set_count(static_cast<uint32_t>(batch_));
    worker.to_worker[0].push_back(credit);
  }

  void Result(ChunkId id) {
    proto::FrameHeader pull;
    pull.set_kind(proto::FrameHeader::PULL);
    pull.set_slot(static_cast<uint32_t>(id.slot));
    const int connection = sent_++ % connections_;
    for (const auto& worker : workers_) worker->to_worker[connection].push_back(pull);
    sent_ %= connections_;
  }

  const Plan plan_;
  const ShardMap shards_;
  const int n_, connections_, steps_;
  const int lead_, credit_, batch_;
  std::vector<std::vector<ChunkId>> orders_;
  ServerPushOrder order_;
  std::unique_ptr<StepProgress> progress_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<std::unique_ptr<ChunkTurns>> turns_;
  std::vector<int> folds_ = std::vector<int>(64);
  int sent_ = 0;
  std::string wrong_;
};

TEST(SmallStatesTest, LeadAndCreditNeverLeaveWorkersAndServerWaiting) {
  int64_t states = 0;
  struct Case {
    int ranks;
    int64_t elements;
    int connections, steps;
  };
  for (const Case& c : std::vector<Case>{
           {1, 50, 1, 2}, {2, 40, 1, 2}, {2, 64, 2, 1}, {2, 100, 1, 1}, {3, 48, 1, 1}}) {
    const Exploration found = Explore(
        [&] { return std::make_unique<Credits>(c.ranks, c.elements, c.connections, c.steps); });
    EXPECT_EQ(found.wrong, "") << c.ranks << " ranks, " << c.elements << " elements, "
                               << c.connections << " connections";
    EXPECT_GE(found.ends, 1);
    states += found.states;
  }
  RecordProperty("states", states);
}

}  // namespace
}  // namespace gradsync
