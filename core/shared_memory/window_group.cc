#include "core/shared_memory/window_group.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace gradsync {
namespace {

constexpr int64_t kSmallBytes = 1 << 20;

// -1: not one chunk, but none or several.
int SoleSlot(const StripeLayout& layout) {
  int sole = -1;
  for (int slot = 0; slot < layout.slots(); ++slot) {
    if (layout.range(slot).empty()) continue;
    if (sole >= 0) return -1;
    sole = slot;
  }
  return sole;
}

std::vector<WindowControl*> ControlsOf(const std::vector<std::shared_ptr<Window>>& windows) {
  std::vector<WindowControl*> controls;
  for (const auto& window : windows) {
    controls.push_back(reinterpret_cast<WindowControl*>(window->data()));
  }
  return controls;
}

}  // namespace

WindowGroup::WindowGroup(const Plan& plan, absl::optional<ShardMap> shards,
                         std::vector<std::string> names, UpdateSite update_site)
    : plan_(plan), shards_(std::move(shards)), names_(std::move(names)) {
  const bool posts =
      update_site == UpdateSite::kWorker && workers() > 1 && workers() <= kMostPosting;
  for (const BucketPlan& bucket : plan_.buckets()) {
    const int sole = SoleSlot(bucket.layout);
    sole_slots_.push_back(sole);
    tiny_.push_back(posts && sole >= 0 && bucket.numel <= kTinyFloats);
  }
}

WindowSignals::Holders WindowGroup::owners() const {
  if (!shards_.has_value()) return {0, workers()};
  return {workers(), workers() + shards_->servers()};
}

int WindowGroup::owner(ChunkId id) const {
  if (shards_.has_value()) return workers() + shards_->server(id);
  return plan_.buckets()[id.bucket].layout.chunk_of(id.slot);
}

std::vector<ChunkId> WindowGroup::OwnedChunks(int member) const {
  std::vector<ChunkId> owned;
  for (int bucket = 0; bucket < static_cast<int>(plan_.buckets().size()); ++bucket) {
    const StripeLayout& layout = plan_.buckets()[bucket].layout;
    for (int slot = 0; slot < layout.slots(); ++slot) {
      if (owner({bucket, slot}) == member && !layout.range(slot).empty()) {
        owned.push_back({bucket, slot});
      }
    }
  }
  return owned;
}

bool WindowGroup::IsSmall(int bucket) const {
  const int64_t bytes = plan_.buckets()[bucket].bytes();
  return bytes > 0 && bytes <= kSmallBytes;
}

int64_t WindowGroup::LaunchesOf(int bucket, int64_t launches) const {
  const int64_t buckets = static_cast<int64_t>(plan_.buckets().size());
  return (launches + buckets - 1 - bucket) / buckets;
}

WindowGroup::Stored WindowGroup::StoredBy(int member, int bucket) const {
  const StripeLayout& layout = plan_.buckets()[bucket].layout;
  const int others = workers() - (member < workers() ? 1 : 0);
  Stored stored;
  if (plan_.slots().parameters > 0) return stored;  // parameters stay their owners'
  for (int slot = 0; slot < layout.slots(); ++slot) {
    const int64_t bytes = layout.range(slot).size() * 4;
    if (bytes == 0 || owner({bucket, slot}) != member) continue;
    stored.bytes += others * bytes;
    stored.messages += others;
  }
  return stored;
}

WindowLayout WindowGroup::Layout(int member) const {
  const std::vector<ChunkId> owned = OwnedChunks(member);
  int64_t shard = 0;
  for (ChunkId id : owned) shard += plan_.buckets()[id.bucket].layout.range(id.slot).size();
  if (plan_.slots().parameters == 0) shard = 0;
  if (member < workers()) {
    std::vector<int64_t> posts;
    for (int bucket = 0; bucket < static_cast<int>(plan_.buckets().size()); ++bucket) {
      posts.push_back(IsTiny(bucket) ? WindowPosts::BytesOf(plan_.buckets()[bucket].numel) : 0);
    }
    return WindowLayout(plan_, sizeof(WindowControl), shard, posts);
  }
  return WindowLayout::OfServer(plan_, static_cast<int64_t>(owned.size()), sizeof(WindowControl),
                                shard);
}

std::string WindowGroup::Name(int member) const {
  if (!names_.empty()) return names_[member];
  return member < workers() ? absl::StrCat("rank ", member)
                            : absl::StrCat("server ", member - workers());
}

std::string WindowGroup::PsGreeting(absl::string_view run_id, int attempt, const Plan& plan) {
  return absl::StrCat(run_id, "/", attempt, "/ps plan ", plan.fingerprint());
}

std::vector<WindowMeshOptions::Member> WindowGroup::MeshMembers() const {
  std::vector<WindowMeshOptions::Member> all;
  for (int member = 0; member < members(); ++member) {
    all.push_back({Name(member), true, static_cast<size_t>(Layout(member).bytes())});
  }
  return all;
}

GroupWindows::GroupWindows(std::shared_ptr<const WindowGroup> group, int self,
                           std::vector<std::shared_ptr<Window>> windows)
    : group_(std::move(group)),
      self_(self),
      windows_(std::move(windows)),
      signals_(ControlsOf(windows_), self, {0, group_->workers()}, group_->owners()) {
  std::vector<std::vector<char*>> post_begins(plan().buckets().size());  // by bucket, by worker
  for (int member = 0; member < group_->members(); ++member) {
    const WindowLayout layout = group_->Layout(member);
    char* const data = windows_[member]->data();
    squares_.push_back(absl::MakeSpan(reinterpret_cast<double*>(data + layout.squares_offset()),
                                      static_cast<size_t>(layout.squares())));
    std::vector<BucketProgress*>& progress = progress_.emplace_back();
    for (int bucket = 0; bucket < static_cast<int>(plan().buckets().size()); ++bucket) {
      progress.push_back(reinterpret_cast<BucketProgress*>(data + layout.progress_offset(bucket)));
    }
    if (member >= group_->workers()) continue;
    std::vector<Bucket>& buckets = buckets_.emplace_back();
    for (int bucket = 0; bucket < static_cast<int>(plan().buckets().size()); ++bucket) {
      buckets.push_back({reinterpret_cast<float*>(data + layout.grad_offset(bucket)),
                         reinterpret_cast<float*>(data + layout.param_offset(bucket))});
      post_begins[bucket].push_back(data + layout.posts_offset(bucket));
    }
  }
  for (int bucket = 0; bucket < static_cast<int>(plan().buckets().size()); ++bucket) {
    sole_.push_back(SoleProgress(bucket));
    absl::optional<WindowPosts>& posts = posts_.emplace_back();
    if (!group_->IsTiny(bucket)) continue;
    posts.emplace(std::move(post_begins[bucket]), plan().buckets()[bucket].numel, self);
  }
  if (sharded()) PlaceShards();
}

BucketProgress* GroupWindows::SoleProgress(int bucket) const {
  const int slot = group_->sole_slot(bucket);
  if (!group_->IsSmall(bucket) || slot < 0) return nullptr;
  return progress_[group_->owner({bucket, slot})][bucket];
}

void GroupWindows::PlaceShards() {
  for (const BucketPlan& bucket : plan().buckets()) {
    shards_.emplace_back(bucket.layout.slots(), nullptr);
  }
  for (int member = group_->owners().first; member < group_->owners().last; ++member) {
    float* shard =
        reinterpret_cast<float*>(windows_[member]->data() + group_->Layout(member).shard_offset());
    for (ChunkId id : group_->OwnedChunks(member)) {
      shards_[id.bucket][id.slot] = shard;
      shard += plan().buckets()[id.bucket].layout.range(id.slot).size();
    }
  }
}

bool GroupWindows::Done(int bucket, int64_t launch) const {
  const int where = group_->IsPosted(bucket, launch) ? self_ : 0;
  const uint32_t done = progress(where, bucket).done.load(std::memory_order_seq_cst);
  return static_cast<int32_t>(done - static_cast<uint32_t>(launch)) >= 0;
}

}  // namespace gradsync
