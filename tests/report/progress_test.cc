#include "report/progress.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <string>
#include <utility>

namespace jackscrew {
namespace {

StepLine sample() {
  StepLine line;
  line.step = 120;
  line.total_steps = 2000;
  line.loss = 1.8342;
  line.learning_rate = 1.9e-4;
  line.grad_norm = 0.81;
  line.tokens_per_second = 4312.4;
  line.speed_of_light = 0.78;
  line.memory_used = int64_t{98} * (int64_t{1} << 30) / 10;
  line.memory_budget = int64_t{159} * (int64_t{1} << 30) / 10;
  line.seconds_left = 4320;
  return line;
}

TEST(StepLine, SaysEverything) {
  EXPECT_EQ(format_step_line(sample()),
            "step 120/2000  6.0% | loss 1.8342 | ppl 6.26 | lr 1.9e-4 | gnorm 0.81 | 4312 tok/s | "
            "78% sol | mem 9.8/15.9 G | eta 1h12m");
}

TEST(StepLine, SmallMemoryHasItsOwnUnit) {
  StepLine line = sample();
  line.memory_used = int64_t{3} << 19;
  line.memory_budget = int64_t{2} << 20;
  EXPECT_NE(format_step_line(line).find("| mem 1.5/2.0 M |"), std::string::npos);
  line.memory_used = int64_t{1507} * (int64_t{1} << 20) / 10;
  line.memory_budget = int64_t{8} << 30;
  EXPECT_NE(format_step_line(line).find("| mem 150.7/8192.0 M |"), std::string::npos);
  line.memory_used = int64_t{1} << 30;
  EXPECT_NE(format_step_line(line).find("| mem 1.0/8.0 G |"), std::string::npos);
}

TEST(StepLine, LeavesOutWhatIsNotKnown) {
  StepLine line;
  line.loss = std::nan("");
  EXPECT_EQ(format_step_line(line), "step 0/0  0.0% | loss nan | ppl nan | lr 0 | 0 tok/s");
  line = sample();
  line.grad_norm.reset();
  line.speed_of_light.reset();
  line.memory_budget.reset();
  line.seconds_left.reset();
  line.loss = 20;
  line.learning_rate = 12;
  EXPECT_EQ(format_step_line(line),
            "step 120/2000  6.0% | loss 20.0000 | ppl 4.9e8 | lr 1.2e1 | 4312 tok/s | mem 9.8 G");
}

TEST(StepLine, SlowStepsHaveARate) {
  StepLine line = sample();
  for (const auto& [rate, text] : {std::pair(0.34, "| 0.34 tok/s |"),
                                   {0.0042, "| 0.0042 tok/s |"},
                                   {9.96, "| 10 tok/s |"},
                                   {10.4, "| 10 tok/s |"}}) {
    line.tokens_per_second = rate;
    EXPECT_NE(format_step_line(line).find(text), std::string::npos) << format_step_line(line);
  }
}

TEST(StepLine, ShowsTheHostBesideTheDevice) {
  StepLine line = sample();
  line.host_used = int64_t{3} << 29;
  EXPECT_NE(format_step_line(line).find("| mem 9.8/15.9 G | host 1.5 G | eta"), std::string::npos);
  line.host_budget = int64_t{2} << 30;
  EXPECT_NE(format_step_line(line).find("| host 1.5/2.0 G | eta"), std::string::npos);
}

TEST(StepLine, LeavesOutWhatMattersLeastOnANarrowTerminal) {
  const std::string whole = format_step_line(sample());
  EXPECT_EQ(format_step_line(sample(), false, static_cast<int>(whole.size()) + 1), whole);
  EXPECT_EQ(format_step_line(sample(), false, 80),
            "step 120/2000  6.0% | loss 1.8342 | 4312 tok/s | mem 9.8/15.9 G | eta 1h12m");
  EXPECT_EQ(format_step_line(sample(), true, 60),
            "step 120/2000  6.0% | \x1b[1mloss 1.8342\x1b[0m | 4312 tok/s | eta 1h12m");
  EXPECT_EQ(format_step_line(sample(), false, 10), "step 120/2000  6.0% | loss 1.8342");
}

TEST(StepLine, ColourOnlyAddsEscapes) {
  EXPECT_NE(format_step_line(sample(), true).find("\x1b[1mloss 1.8342\x1b[0m"), std::string::npos);
  EXPECT_EQ(format_step_line(sample(), false).find('\x1b'), std::string::npos);
}

std::string drawn(const ProgressStyle& style, int64_t total, int64_t step) {
  std::ostringstream out;
  ProgressBar bar(out, style, "loading", total, "records");
  for (int64_t done = 0; done < total; done += step) bar.advance(step);
  bar.finish();
  bar.finish();
  return out.str();
}

TEST(ProgressBar, PlainOutputIsTwoLines) {
  EXPECT_EQ(drawn({.patience = 0}, 1000, 1),
            "loading: 1000 records\nloading: 1000 records in 0s\n");
  EXPECT_EQ(drawn({.quiet = true, .patience = 0}, 1000, 1), "");
}

TEST(ProgressBar, WorkThatEndsSoonIsNotMentioned) {
  for (const bool is_terminal : {false, true}) {
    const ProgressStyle style{.is_terminal = is_terminal, .patience = 1e9};
    EXPECT_EQ(drawn(style, 1000, 1), "");
    std::ostringstream out;
    { ProgressBar(out, style, "loading", 10, "B").advance(5); }
    EXPECT_EQ(out.str(), "");
  }
}

TEST(ProgressBar, HandsOutACallback) {
  std::ostringstream out;
  ProgressBar bar(out, {.is_terminal = true, .width = 8, .patience = 0}, "at", 4, "B");
  bar.callback()(3);
  EXPECT_EQ(out.str(), "\r\x1b[Kat   0%\r\x1b[Kat  75%");
}

TEST(ProgressBar, TerminalIsRedrawnInPlace) {
  EXPECT_EQ(drawn({.is_terminal = true, .width = 30, .patience = 0}, 4, 2),
            "\r\x1b[Kloading [..............]   0%"
            "\r\x1b[Kloading [#######.......]  50%"
            "\r\x1b[Kloading [##############] 100%"
            "\r\x1b[Kloading: 4 records in 0s\n");
  const std::string many = drawn({.is_terminal = true, .patience = 0}, 100000, 1);
  EXPECT_LE(std::count(many.begin(), many.end(), '\r'), 102);  // not once per record
  EXPECT_EQ(many.find("\x1b[32m"), std::string::npos);
  const std::string coloured = drawn({.is_terminal = true, .colour = true, .patience = 0}, 4, 2);
  EXPECT_NE(coloured.find("\x1b[32m"), std::string::npos);
}

TEST(ProgressBar, NarrowTerminalsNeverWrap) {
  for (const int width : {0, 1, 8, 12, 25, 26}) {
    std::istringstream lines(drawn({.is_terminal = true, .width = width, .patience = 0}, 10, 1));
    std::string part;
    while (std::getline(lines, part, '\r')) {
      if (part.empty() || part.find('\n') != std::string::npos) continue;
      EXPECT_LE(static_cast<int>(part.size()) - 3, std::max(width - 1, 0));
    }
  }
}

TEST(ProgressBar, ABarOfAStepLeavesNothing) {
  std::ostringstream out;
  ProgressBar bar(out, {.is_terminal = true, .width = 8, .patience = 0}, "at", 4, "B");
  bar.clear();
  bar.advance(4);
  bar.finish();
  EXPECT_EQ(out.str(), "\r\x1b[Kat   0%\r\x1b[K");
}

TEST(ProgressBar, AStepHasOneOnATerminalAlone) {
  const auto check = [] { FAIL(); };
  const ProgressStyle step = step_style({.is_terminal = true, .width = 70, .check = check});
  EXPECT_FALSE(step.quiet);
  EXPECT_EQ(step.width, 70);
  EXPECT_GT(step.patience, ProgressStyle().patience);
  EXPECT_FALSE(step.check);
  EXPECT_TRUE(step_style({.is_terminal = false}).quiet);
  EXPECT_TRUE(step_style({.is_terminal = true, .quiet = true}).quiet);
}

TEST(ProgressBar, AnAbandonedBarLeavesAFreshLine) {
  std::ostringstream out;
  { const ProgressBar bar(out, {.is_terminal = true, .patience = 0}, "loading", 10, "B"); }
  EXPECT_EQ(out.str().back(), '\n');
}

}  // namespace
}  // namespace jackscrew
