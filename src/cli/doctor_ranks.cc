#include "cli/doctor_ranks.h"

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace jackscrew {

namespace {

constexpr int kRounds = 25;
constexpr int kWarmUp = 3;  // connections are made with the first message
constexpr size_t kSmall = 8;
constexpr size_t kLarge = size_t{16} << 20;

// Half of the median round-trip time between rank 0 and `other`, in seconds; both call it.
double one_way(Transport& ranks, int other, size_t bytes, int rounds) {
  std::vector<uint8_t> message(bytes);
  std::vector<double> times;
  for (int i = 0; i < kWarmUp + rounds; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    if (ranks.rank() == 0) {
      send_now(ranks, other, Tag::stream, message);
      receive_now(ranks, other, Tag::stream, message);
    } else {
      receive_now(ranks, 0, Tag::stream, message);
      send_now(ranks, 0, Tag::stream, message);
    }
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
    if (i >= kWarmUp) times.push_back(time.count() / 2);
  }
  std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
  return times[static_cast<size_t>(rounds / 2)];
}

}  // namespace

std::vector<RankProbe> try_ranks(Transport& ranks) {
  std::vector<RankProbe> out;
  for (int other = 0; other < ranks.size(); ++other) {
    RankProbe report{.host = ranks.host(other)};
    if (other > 0 && (ranks.rank() == 0 || ranks.rank() == other)) {
      report.latency = one_way(ranks, other, kSmall, kRounds);
      report.bytes_per_second = static_cast<double>(kLarge) / one_way(ranks, other, kLarge, 3);
    }
    if (ranks.rank() == 0) out.push_back(report);
  }
  return out;
}

}  // namespace jackscrew
