#include "learners/rotation.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/philox.h"
#include "base/text.h"

namespace jackscrew {

namespace {

// What the state begins with. Behind it: the active groups and those in the queue, each list padded
// with -1 to all groups; turns; scores. All in native byte order.
struct RotationHeader {
  int64_t window, draws;
  int64_t active, queued;  // how many groups
};

}  // namespace

Rotation::Rotation(std::vector<int64_t> sizes, const RotationOptions& options)
    : sizes_(std::move(sizes)),
      options_(options),
      turns_(sizes_.size(), 0),
      scores_(sizes_.size(), 1.0) {
  const int64_t largest = *std::max_element(sizes_.begin(), sizes_.end());
  if (largest > options_.active_elements) {
    throw Error(ErrorKind::usage,
                fmt::format("active_params is {}, but the largest group has {} parameters",
                            human_count(options_.active_elements), human_count(largest)),
                fmt::format("set active_params to {} at least; {}", largest, kSmallestGroups));
  }
}

bool Rotation::is_active(int32_t group) const {
  return std::find(active_.begin(), active_.end(), group) != active_.end();
}

uint32_t Rotation::draw(uint32_t below) {
  const RandomStream stream =
      RandomStream::make(options_.seed, RandomPurpose::rotation, 0, options_.part);
  const uint64_t bits = stream.bits(static_cast<uint64_t>(draws_++));
  return static_cast<uint32_t>(bits * below >> 32);
}

double Rotation::draw_uniform() {
  return (static_cast<double>(draw(uint32_t{1} << 30)) + 0.5) / static_cast<double>(1 << 30);
}

// Fills the queue with all groups, in the order of their next turns.
void Rotation::refill() {
  queue_.resize(sizes_.size());
  std::iota(queue_.begin(), queue_.end(), 0);
  if (options_.order == RotationOrder::descending) std::reverse(queue_.begin(), queue_.end());
  if (options_.order == RotationOrder::ascending || options_.order == RotationOrder::descending) {
    return;
  }
  if (options_.order == RotationOrder::importance && seen_all_) {
    // Drawing without replacement in proportion to the scores: order by u^(1/score), the largest
    // first (Efraimidis and Spirakis 2006).
    std::vector<double> keys(sizes_.size());
    for (size_t g = 0; g < keys.size(); ++g) keys[g] = std::log(draw_uniform()) / scores_[g];
    std::stable_sort(queue_.begin(), queue_.end(), [&](int32_t a, int32_t b) {
      return keys[static_cast<size_t>(a)] > keys[static_cast<size_t>(b)];
    });
    return;
  }
  for (size_t i = queue_.size(); i > 1; --i) {
    std::swap(queue_[i - 1], queue_[draw(static_cast<uint32_t>(i))]);
  }
}

void Rotation::advance() {
  active_.erase(active_.begin(), active_.begin() + leaving());
  int64_t room = options_.active_elements;
  for (const int32_t group : active_) room -= sizes_[static_cast<size_t>(group)];
  const bool strict =
      options_.order == RotationOrder::ascending || options_.order == RotationOrder::descending;
  const bool drawn_anew = options_.order == RotationOrder::random ||
                          (options_.order == RotationOrder::importance && seen_all_);
  if (drawn_anew) queue_.clear();
  // One round may end and the next begin within a window.
  for (int rounds = queue_.empty() ? 1 : 0; rounds < 2; ++rounds) {
    if (queue_.empty()) refill();
    for (auto next = queue_.begin(); next != queue_.end();) {
      const int64_t size = sizes_[static_cast<size_t>(*next)];
      if (is_active(*next) || size > room) {
        if (strict && !is_active(*next)) break;
        ++next;
        continue;
      }
      active_.push_back(*next);
      room -= size;
      next = queue_.erase(next);
    }
    if (!queue_.empty()) break;
  }
  for (const int32_t group : active_) ++turns_[static_cast<size_t>(group)];
  seen_all_ = std::all_of(turns_.begin(), turns_.end(), [](int64_t turns) { return turns > 0; });
  ++window_;
}

// The 1e-9 keeps a rounding error of the product, as a churn of 0.1 may have, from adding a group.
int64_t Rotation::leaving() const {
  return static_cast<int64_t>(
      std::ceil(static_cast<double>(active_.size()) * options_.churn - 1e-9));
}

double Rotation::windows_of_a_turn() const {
  Rotation ahead = *this;
  ahead.advance();
  return static_cast<double>(ahead.active_.size()) / static_cast<double>(ahead.leaving());
}

int64_t Rotation::windows_of_a_round(int64_t limit) const {
  Rotation ahead = *this;
  const std::vector<int64_t> before = turns_;
  for (int64_t windows = 0; windows < limit; ++windows) {
    bool all = true;
    for (size_t g = 0; g < before.size(); ++g) all = all && ahead.turns_[g] > before[g];
    if (all) return windows;
    ahead.advance();
  }
  return limit;
}

int64_t Rotation::state_bytes() const {
  const auto groups = static_cast<int64_t>(sizes_.size());
  return static_cast<int64_t>(sizeof(RotationHeader)) + groups * (4 + 4 + 8 + 8);
}

void Rotation::save(std::span<uint8_t> state) const {
  const RotationHeader header{window_, draws_, std::ssize(active_), std::ssize(queue_)};
  std::vector<int32_t> lists(2 * sizes_.size(), -1);
  std::ranges::copy(active_, lists.begin());
  std::ranges::copy(queue_, lists.begin() + std::ssize(sizes_));
  uint8_t* to = state.data();
  for (const auto part : {std::as_bytes(std::span(&header, 1)), std::as_bytes(std::span(lists)),
                          std::as_bytes(std::span(turns_)), std::as_bytes(std::span(scores_))}) {
    std::memcpy(to, part.data(), part.size());
    to += part.size();
  }
}

void Rotation::restore(std::span<const uint8_t> state) {
  const auto refuse = [] {
    fail(ErrorKind::model, "the rotation state is damaged, or of a run with other groups");
  };
  if (static_cast<int64_t>(state.size()) != state_bytes()) refuse();
  const size_t groups = sizes_.size();
  RotationHeader header{};
  std::vector<int32_t> numbers(2 * groups);
  std::vector<int64_t> turns(groups);
  std::vector<double> scores(groups);
  const uint8_t* from = state.data();
  for (const auto part :
       {std::as_writable_bytes(std::span(&header, 1)), std::as_writable_bytes(std::span(numbers)),
        std::as_writable_bytes(std::span(turns)), std::as_writable_bytes(std::span(scores))}) {
    std::memcpy(part.data(), from, part.size());
    from += part.size();
  }
  const std::array counts = {header.active, header.queued};
  std::array<std::vector<int32_t>, 2> lists;
  for (size_t l = 0; l < 2; ++l) {
    if (counts[l] < 0 || counts[l] > std::ssize(sizes_)) refuse();
    std::vector<bool> seen(groups, false);
    for (const int32_t group :
         std::span(numbers).subspan(l * groups, static_cast<size_t>(counts[l]))) {
      if (group < 0 || group >= std::ssize(sizes_) || seen[static_cast<size_t>(group)]) refuse();
      seen[static_cast<size_t>(group)] = true;
      lists[l].push_back(group);
    }
  }
  int64_t elements = 0;
  for (const int32_t group : lists[0]) elements += sizes_[static_cast<size_t>(group)];
  if (header.window < 0 || header.draws < 0) refuse();
  if (elements > options_.active_elements) {
    fail(ErrorKind::model, "{} parameters are active there, active_params allows {}", elements,
         options_.active_elements);
  }
  window_ = header.window;
  draws_ = header.draws;
  active_ = lists[0];
  queue_ = lists[1];
  turns_ = std::move(turns);
  scores_ = std::move(scores);
  seen_all_ = std::ranges::all_of(turns_, [](int64_t count) { return count > 0; });
}

}  // namespace jackscrew
