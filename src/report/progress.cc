#include "report/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/console.h"
#include "base/text.h"

namespace jackscrew {

namespace {

constexpr double kMiB = 1048576.0;
constexpr double kGiB = 1073741824.0;
constexpr const char* kBold = "\x1b[1m";
constexpr const char* kGreen = "\x1b[32m";
constexpr const char* kPlain = "\x1b[0m";

// Two significant digits, the exponent without padding: "1.9e-4".
std::string short_scientific(double value) {
  if (value == 0 || !std::isfinite(value)) return fmt::format("{}", value);
  std::string text = fmt::format("{:.1e}", value);
  const size_t digits = text.find('e') + 2;
  while (text.size() > digits + 1 && text[digits] == '0') text.erase(digits, 1);
  if (text[digits - 1] == '+') text.erase(digits - 1, 1);
  return text;
}

// "9.8/15.9 G"; in M below a GiB, where a tenth of one would be too coarse.
std::string memory_text(int64_t used, const std::optional<int64_t>& budget) {
  // What would round up to "1024.0 M" is a G.
  const bool small = static_cast<double>(used) < 1023.95 * kMiB;
  const double unit = small ? kMiB : kGiB;
  std::string text = fmt::format("{:.1f}", static_cast<double>(used) / unit);
  if (budget) text += fmt::format("/{:.1f}", static_cast<double>(*budget) / unit);
  return text + (small ? " M" : " G");
}

std::string amount_text(int64_t amount, const std::string& unit) {
  return unit == "B" ? human_bytes(amount) : fmt::format("{} {}", amount, unit);
}

}  // namespace

std::string perplexity_text(double perplexity) {
  return perplexity < 1e5 ? fmt::format("{:.2f}", perplexity) : short_scientific(perplexity);
}

std::string rate_text(double tokens_per_second) {
  return tokens_per_second < 10 ? fmt::format("{:.2g}", tokens_per_second)
                                : fmt::format("{:.0f}", tokens_per_second);
}

std::string format_step_line(const StepLine& line, bool colour, int width) {
  // The higher the rank, the sooner a part is omitted; rank 0 never is.
  struct Part {
    int rank;
    std::string text;
  };
  const double percent = line.total_steps > 0 ? 100.0 * static_cast<double>(line.step) /
                                                    static_cast<double>(line.total_steps)
                                              : 0.0;
  std::vector<Part> parts;
  parts.push_back({0, fmt::format("step {}/{}  {:.1f}%", line.step, line.total_steps, percent)});
  parts.push_back({0, fmt::format("loss {:.4f}", line.loss)});
  parts.push_back({5, fmt::format("ppl {}", perplexity_text(std::exp(line.loss)))});
  parts.push_back({4, fmt::format("lr {}", short_scientific(line.learning_rate))});
  if (const double norm = line.grad_norm.value_or(0.0); line.grad_norm) {
    // A run that diverges has norms of dozens of digits.
    parts.push_back({6, norm < 1e6 ? fmt::format("gnorm {:.2f}", norm)
                                   : fmt::format("gnorm {}", short_scientific(norm))});
  }
  parts.push_back({2, rate_text(line.tokens_per_second) + " tok/s"});
  if (line.speed_of_light) {
    parts.push_back({7, fmt::format("{:.0f}% sol", 100.0 * *line.speed_of_light)});
  }
  if (line.memory_used) {
    parts.push_back({3, "mem " + memory_text(*line.memory_used, line.memory_budget)});
  }
  if (line.host_used) {
    parts.push_back({3, "host " + memory_text(*line.host_used, line.host_budget)});
  }
  if (line.seconds_left) parts.push_back({1, "eta " + human_duration(*line.seconds_left)});

  constexpr std::string_view kBetween = " | ";
  size_t length = 0;
  for (const Part& part : parts) length += part.text.size() + kBetween.size();
  length -= kBetween.size();
  while (width > 0 && length >= static_cast<size_t>(width) && parts.size() > 2) {
    const auto least = std::ranges::max_element(parts, {}, &Part::rank);
    if (least->rank == 0) break;
    length -= least->text.size() + kBetween.size();
    parts.erase(least);
  }
  std::string out;
  for (const Part& part : parts) {
    const bool stressed = colour && &part == &parts[1];
    if (!out.empty()) out += kBetween;
    out += (stressed ? kBold : "") + part.text + (stressed ? kPlain : "");
  }
  return out;
}

ProgressStyle step_style(const ProgressStyle& style) {
  // Bars that come and go with every step of a second or two would be a flicker.
  constexpr double kPatience = 3.0;
  ProgressStyle out = style;
  out.quiet = style.quiet || !style.is_terminal;
  out.patience = kPatience;
  out.check = {};
  return out;
}

ProgressBar::ProgressBar(std::ostream& stream, ProgressStyle style, std::string title,
                         int64_t total, std::string unit)
    : stream_(stream),
      style_(style),
      title_(std::move(title)),
      total_(std::max<int64_t>(total, 1)),
      unit_(std::move(unit)) {
  update();
}

ProgressBar::~ProgressBar() {
  if (shown_ && !finished_ && style_.is_terminal) stream_ << '\n' << std::flush;
}

void ProgressBar::advance(int64_t amount) {
  if (style_.check) style_.check();
  done_ = std::min(total_, done_ + amount);
  update();
}

ProgressCallback ProgressBar::callback() {
  return [this](int64_t amount) { advance(amount); };
}

void ProgressBar::finish() {
  if (std::exchange(finished_, true) || !shown_) return;
  const std::string summary = fmt::format("{}: {} in {}", title_, amount_text(total_, unit_),
                                          human_duration(watch_.seconds()));
  // The escape clears the rest of the longer bar.
  stream_ << (style_.is_terminal ? "\r\x1b[K" : "") << summary << '\n' << std::flush;
}

void ProgressBar::clear() {
  if (std::exchange(finished_, true) || !shown_ || !style_.is_terminal) return;
  stream_ << "\r\x1b[K" << std::flush;
}

void ProgressBar::update() {
  if (finished_ || style_.quiet) return;
  const bool first = !shown_;
  if (first && watch_.seconds() < style_.patience) return;
  shown_ = true;
  const auto percent =
      static_cast<int64_t>(100.0 * static_cast<double>(done_) / static_cast<double>(total_));
  if (std::exchange(percent_, percent) == percent) return;
  if (style_.is_terminal) {
    draw();
  } else if (first) {
    stream_ << fmt::format("{}: {}\n", title_, amount_text(total_, unit_)) << std::flush;
  }
}

void ProgressBar::draw() {
  const std::string tail = fmt::format(" {:3}%", percent_);
  // One column stays free: writing into the last one would wrap on some terminals.
  const int64_t room = style_.width - 1 - static_cast<int64_t>(title_.size() + tail.size()) - 3;
  std::string text = title_;
  if (room >= 10) {
    const int64_t cells = std::min<int64_t>(room, 40);
    const int64_t filled = cells * percent_ / 100;
    text += fmt::format(" [{}{}{}{}]", style_.colour ? kGreen : "",
                        std::string(static_cast<size_t>(filled), '#'), style_.colour ? kPlain : "",
                        std::string(static_cast<size_t>(cells - filled), '.'));
  }
  text += tail;
  if (room < 10)
    text.resize(std::min(text.size(), static_cast<size_t>(std::max(style_.width - 1, 0))));
  stream_ << "\r\x1b[K" << text << std::flush;
}

}  // namespace jackscrew
