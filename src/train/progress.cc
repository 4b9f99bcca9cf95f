#include "train/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

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

std::string short_perplexity(double loss) {
  const double perplexity = std::exp(loss);
  return perplexity < 1e5 ? fmt::format("{:.2f}", perplexity) : short_scientific(perplexity);
}

std::string amount_text(int64_t amount, const std::string& unit) {
  return unit == "B" ? human_bytes(amount) : fmt::format("{} {}", amount, unit);
}

}  // namespace

void warn(std::string_view line) {
  std::fputs(fmt::format("jackscrew: warning: {}\n", one_line(line)).c_str(), stderr);
}

std::string format_step_line(const StepLine& line, bool colour) {
  const double percent = line.total_steps > 0 ? 100.0 * static_cast<double>(line.step) /
                                                    static_cast<double>(line.total_steps)
                                              : 0.0;
  std::string out = fmt::format("step {}/{}  {:.1f}%", line.step, line.total_steps, percent);
  out += fmt::format(" | {}loss {:.4f}{}", colour ? kBold : "", line.loss, colour ? kPlain : "");
  out += fmt::format(" | ppl {}", short_perplexity(line.loss));
  out += fmt::format(" | lr {}", short_scientific(line.learning_rate));
  if (line.grad_norm) out += fmt::format(" | gnorm {:.2f}", *line.grad_norm);
  out += fmt::format(" | {:.0f} tok/s", line.tokens_per_second);
  if (line.speed_of_light) out += fmt::format(" | {:.0f}% sol", 100.0 * *line.speed_of_light);
  if (line.memory_used) {
    const bool small = static_cast<double>(*line.memory_used) < 0.1 * kGiB;
    const double unit = small ? kMiB : kGiB;
    out += fmt::format(" | mem {:.1f}", static_cast<double>(*line.memory_used) / unit);
    if (line.memory_budget) {
      out += fmt::format("/{:.1f}", static_cast<double>(*line.memory_budget) / unit);
    }
    out += small ? " M" : " G";
  }
  if (line.seconds_left) out += fmt::format(" | eta {}", human_duration(*line.seconds_left));
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
  // The escape clears what the bar leaves to the right of the shorter summary.
  stream_ << (style_.is_terminal ? "\r\x1b[K" : "") << summary << '\n' << std::flush;
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
