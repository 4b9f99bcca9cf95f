#include "conversion/rate_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/checked.h"

namespace jackscrew {

namespace {

using Items = std::vector<std::vector<RateOption>>;

constexpr double kNever = std::numeric_limits<double>::infinity();

// The options of an item that are worth choosing: by rising size and falling cost.
std::vector<size_t> useful_options(const std::vector<RateOption>& options) {
  std::vector<size_t> order(options.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return options[a].size != options[b].size ? options[a].size < options[b].size
                                              : options[a].cost < options[b].cost;
  });
  std::vector<size_t> useful;
  for (const size_t option : order) {
    if (useful.empty() || options[option].cost < options[useful.back()].cost) {
      useful.push_back(option);
    }
  }
  return useful;
}

class CheapestChoice {
 public:
  CheapestChoice(const Items& items, int64_t limit) : items_(items), limit_(limit) {
    for (const std::vector<RateOption>& options : items) useful_.push_back(useful_options(options));
    least_remaining_size_.assign(items.size() + 1, 0);
    for (size_t i = items.size(); i-- > 0;) {
      least_remaining_size_[i] = checked_add(least_remaining_size_[i + 1], option(i, 0).size);
    }
  }

  std::optional<RateChoice> find(const std::function<void()>& check) {
    if (least_remaining_size_[0] > limit_) return std::nullopt;
    bound();
    return search(check);
  }

 private:
  // A change of an item's option to `to`, and the cost it saves per unit of size.
  struct Step {
    size_t item, to;
    double gain;
  };

  const RateOption& option(size_t item, size_t useful) const {
    return items_[item][useful_[item][useful]];
  }

  // Adds the steps of an item along the convex hull of its options.
  void add_steps(size_t item, std::vector<Step>& steps) const {
    size_t from = 0;
    while (from + 1 < useful_[item].size()) {
      Step best{item, 0, -kNever};
      for (size_t to = from + 1; to < useful_[item].size(); ++to) {
        const RateOption &a = option(item, from), &b = option(item, to);
        const double gain = (a.cost - b.cost) / static_cast<double>(b.size - a.size);
        if (gain >= best.gain) best = {item, to, gain};
      }
      steps.push_back(best);
      from = best.to;
    }
  }

  // Finds the price per unit of size at which the limit is reached, and a greedy choice within it:
  // steps by falling gain, as many as fit, then each later one that still fits.
  void bound() {
    std::vector<Step> steps;
    for (size_t i = 0; i < items_.size(); ++i) add_steps(i, steps);
    std::stable_sort(steps.begin(), steps.end(),
                     [](const Step& a, const Step& b) { return a.gain > b.gain; });
    std::vector<size_t> chosen(items_.size(), 0);
    int64_t size = least_remaining_size_[0];
    for (const Step& step : steps) {
      const int64_t more =
          option(step.item, step.to).size - option(step.item, chosen[step.item]).size;
      if (size + more > limit_) {
        price_ = std::max(price_, step.gain);
        continue;
      }
      chosen[step.item] = step.to;
      size += more;
    }
    double cost = 0.0, reduced = -price_ * static_cast<double>(limit_);
    for (size_t i = 0; i < items_.size(); ++i) {
      cost += option(i, chosen[i]).cost;
      double least = kNever;
      for (size_t k = 0; k < useful_[i].size(); ++k) least = std::min(least, priced(i, k));
      least_priced_.push_back(least);
      reduced += least;
    }
    // Sums in another order may differ in the last bits.
    gap_ = std::max(0.0, cost - reduced) + 1e-9 * (std::abs(cost) + std::abs(reduced));
  }

  double priced(size_t item, size_t useful) const {
    const RateOption& of = option(item, useful);
    return of.cost + price_ * static_cast<double>(of.size);
  }

  // A choice for the first few items.
  struct Partial {
    int64_t size;
    double cost;
    double above;  // its priced cost minus the least priced cost
    int32_t before, useful;
  };

  RateChoice search(const std::function<void()>& check) const {
    std::vector<std::vector<Partial>> levels = {{{0, 0.0, 0.0, -1, 0}}};
    for (size_t i = 0; i < items_.size(); ++i) {
      if (check) check();
      std::vector<Partial> next;
      for (size_t from = 0; from < levels[i].size(); ++from) {
        const Partial& partial = levels[i][from];
        for (size_t k = 0; k < useful_[i].size(); ++k) {
          const RateOption& of = option(i, k);
          const double above = partial.above + (priced(i, k) - least_priced_[i]);
          if (partial.size + of.size + least_remaining_size_[i + 1] > limit_ || above > gap_) {
            continue;
          }
          next.push_back({partial.size + of.size, partial.cost + of.cost, above,
                          narrow<int32_t>(from), narrow<int32_t>(k)});
        }
      }
      levels.push_back(undominated(std::move(next)));
    }
    return trace(levels);
  }

  static std::vector<Partial> undominated(std::vector<Partial> partials) {
    std::stable_sort(partials.begin(), partials.end(), [](const Partial& a, const Partial& b) {
      return a.size != b.size ? a.size < b.size : a.cost < b.cost;
    });
    std::vector<Partial> out;
    for (const Partial& partial : partials) {
      if (out.empty() || partial.cost < out.back().cost) out.push_back(partial);
    }
    return out;
  }

  // The last entry of the last level has the least cost.
  RateChoice trace(const std::vector<std::vector<Partial>>& levels) const {
    RateChoice choice;
    choice.options.resize(items_.size());
    size_t at = levels.back().size() - 1;
    choice.size = levels.back()[at].size;
    choice.cost = levels.back()[at].cost;
    for (size_t i = items_.size(); i-- > 0;) {
      const Partial& partial = levels[i + 1][at];
      choice.options[i] = useful_[i][static_cast<size_t>(partial.useful)];
      at = static_cast<size_t>(partial.before);
    }
    return choice;
  }

  const Items& items_;
  int64_t limit_;
  std::vector<std::vector<size_t>> useful_;    // of each item
  std::vector<int64_t> least_remaining_size_;  // [i]: the least size of items [i, n)
  double price_ = 0.0, gap_ = 0.0;
  std::vector<double> least_priced_;  // of each item
};

}  // namespace

std::optional<RateChoice> cheapest_choice(const Items& items, int64_t limit,
                                          const std::function<void()>& check) {
  return CheapestChoice(items, limit).find(check);
}

}  // namespace jackscrew
