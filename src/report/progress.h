// What a person sees of a run: one line per logged step, and a bar for long work without steps.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/console.h"
#include "base/progress_callback.h"

namespace jackscrew {

// The contents of a step's line. Unknown values are omitted from the line.
struct StepLine {
  int64_t step = 0;
  int64_t total_steps = 0;
  double loss = 0;  // mean negative log-likelihood of the target tokens, nats
  double learning_rate = 0;
  std::optional<double> grad_norm;
  double tokens_per_second = 0;
  std::optional<double> speed_of_light;  // share of the machine's measured peak, 0 to 1
  std::optional<int64_t> memory_used;    // of the device, bytes
  std::optional<int64_t> memory_budget;  // bytes
  std::optional<int64_t> host_used;      // of the host, beside the device's; bytes
  std::optional<int64_t> host_budget;    // bytes
  std::optional<double> seconds_left;
};

// "step 120/2000  6.0% | loss 1.8342 | ppl 6.26 | lr 1.9e-4 | gnorm 0.81 | 4312 tok/s | 78% sol |
// mem 9.8/15.9 G | host 6.1 G | eta 1h12m", memory in GiB; with `colour`, terminal escapes
// highlight the loss. With `width` > 0 columns, the least important parts are omitted until the
// line fits.
std::string format_step_line(const StepLine& line, bool colour = false, int width = 0);

// "12.34", or "5.7e228" where that would be long.
std::string perplexity_text(double perplexity);

// "4312"; two digits of a number below 10: "0.34".
std::string rate_text(double tokens_per_second);

// How and where to draw; the caller examines the terminal.
struct ProgressStyle {
  bool is_terminal = false;
  int width = 80;  // columns
  bool colour = false;
  bool quiet = false;     // nothing at all
  double patience = 1.0;  // seconds before anything is shown: shorter work needs no bar
  // Called after each piece of work; may throw to end it.
  std::function<void()> check = {};
};

// The style for a step of a run: on a terminal alone, if it takes long, and without the check,
// which would end it halfway.
ProgressStyle step_style(const ProgressStyle& style);

// Shows the progress of work whose amount is known. On a terminal, a bar is redrawn in place when
// its percentage changes, and replaced by a summary; elsewhere there is one plain line at the start
// and one at the end. Work that ends within the style's patience prints nothing. Not thread-safe.
// Destroyed without finish(), it leaves the cursor on a fresh line.
class ProgressBar {
 public:
  // `title` is such as "loading", `total` > 0 in `unit` ("records"); the unit "B" is shown as
  // sizes.
  ProgressBar(std::ostream& stream, ProgressStyle style, std::string title, int64_t total,
              std::string unit);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void advance(int64_t amount);
  // advance() as a callback, which must not outlive the bar.
  ProgressCallback callback();
  // Reports that the work is complete and how long it took.
  void finish();
  // Ends it without a summary, and leaves the cursor where the bar began.
  void clear();

 private:
  void update();
  void draw();

  std::ostream& stream_;
  ProgressStyle style_;
  std::string title_;
  int64_t total_;
  std::string unit_;
  int64_t done_ = 0;
  int64_t percent_ = -1;  // last shown
  Stopwatch watch_;
  bool shown_ = false;
  bool finished_ = false;
};

}  // namespace jackscrew
