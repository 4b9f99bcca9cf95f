#include "learners/rotation_parts.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "learners/heaviest_groups.h"

namespace jackscrew {

namespace {

constexpr auto index = [](int32_t number) { return static_cast<size_t>(number); };

void require_room(int32_t part, int64_t active, int64_t largest) {
  if (largest <= active) return;
  throw Error(ErrorKind::usage,
              fmt::format("part {} of rotation_parts trains {} parameters at once, but its largest "
                          "group has {}",
                          part + 1, human_count(active), human_count(largest)),
              fmt::format("raise active_params; {}", kSmallestGroups));
}

}  // namespace

RotationParts::RotationParts(const std::vector<int64_t>& sizes, const std::vector<int32_t>& parts,
                             const RotationOptions& options)
    : turns_(sizes.size(), 0) {
  const int32_t count = *std::max_element(parts.begin(), parts.end()) + 1;
  int64_t total = 0;
  for (const int64_t size : sizes) total += size;
  const double share = static_cast<double>(options.active_elements) / static_cast<double>(total);
  places_.resize(sizes.size());
  for (int32_t p = 0; p < count; ++p) {
    Part part;
    int64_t elements = 0;
    for (size_t g = 0; g < sizes.size(); ++g) {
      if (parts[g] != p) continue;
      places_[g] = {p, static_cast<int32_t>(part.groups.size())};
      part.groups.push_back(static_cast<int32_t>(g));
      part.sizes.push_back(sizes[g]);
      elements += sizes[g];
    }
    RotationOptions own = options;
    own.part = static_cast<uint32_t>(p);
    if (count > 1) {
      // A product that should be a whole number may come out a few units in the last place below
      // it, and would be rounded down.
      constexpr double kAtLeast = 1.0 + 1e-15;
      own.active_elements = static_cast<int64_t>(share * static_cast<double>(elements) * kAtLeast);
      require_room(p, own.active_elements, *std::ranges::max_element(part.sizes));
    }
    part.active_elements = own.active_elements;
    part.rotation.emplace(part.sizes, own);
    parts_.push_back(std::move(part));
  }
}

void RotationParts::collect() {
  active_.clear();
  for (const Part& part : parts_) {
    for (const int32_t group : part.rotation->active())
      active_.push_back(part.groups[index(group)]);
    for (size_t i = 0; i < part.groups.size(); ++i) {
      turns_[index(part.groups[i])] = part.rotation->turns()[i];
    }
  }
}

void RotationParts::advance() {
  for (Part& part : parts_) part.rotation->advance();
  collect();
}

void RotationParts::set_score(int32_t group, double score) {
  const auto [part, number] = places_[index(group)];
  parts_[index(part)].rotation->set_score(number, score);
}

int64_t RotationParts::windows_of_a_round(int64_t limit) const {
  int64_t most = 0;
  for (const Part& part : parts_) most = std::max(most, part.rotation->windows_of_a_round(limit));
  return most;
}

double RotationParts::windows_of_a_turn() const {
  double least = parts_.front().rotation->windows_of_a_turn();
  for (const Part& part : parts_) least = std::min(least, part.rotation->windows_of_a_turn());
  return least;
}

int64_t RotationParts::state_bytes() const {
  int64_t bytes = 0;
  for (const Part& part : parts_) bytes += part.rotation->state_bytes();
  return bytes;
}

void RotationParts::save(std::span<uint8_t> state) const {
  for (const Part& part : parts_) {
    const auto bytes = static_cast<size_t>(part.rotation->state_bytes());
    part.rotation->save(state.first(bytes));
    state = state.subspan(bytes);
  }
}

void RotationParts::restore(std::span<const uint8_t> state) {
  for (Part& part : parts_) {
    const auto bytes = std::min(state.size(), static_cast<size_t>(part.rotation->state_bytes()));
    part.rotation->restore(state.first(bytes));
    state = state.subspan(bytes);
  }
  collect();
}

std::vector<int32_t> RotationParts::heaviest(std::span<const int64_t> weights) const {
  std::vector<int32_t> all;
  for (const Part& part : parts_) {
    std::vector<int64_t> own;
    for (const int32_t group : part.groups) own.push_back(weights[index(group)]);
    for (const int32_t number : heaviest_groups(part.sizes, own, part.active_elements)) {
      all.push_back(part.groups[index(number)]);
    }
  }
  return all;
}

}  // namespace jackscrew
