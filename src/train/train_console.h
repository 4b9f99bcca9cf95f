// Where a run prints, and how it is asked to save or stop.
#pragma once

#include <atomic>
#include <cstdio>
#include <functional>

#include "base/error.h"
#include "report/progress.h"

namespace jackscrew {

// What a run is doing, which says when a stop takes effect.
enum class RunPhase {
  begins,          // until the first step: a stop ends it at once
  steps,           // after the current step
  writes_result,   // once the result is written: of the last step, unless an evaluation follows it
  waits_for_room,  // at once, without the result, which a full disk refuses; with a checkpoint
  answers,         // after the current answer for the report
  exports          // at once
};

struct TrainConsole {
  std::FILE* out = stdout;                  // step lines and summaries
  ProgressStyle style;                      // of progress bars on stderr
  bool colour = false;                      // in what goes to `out`
  int width = 0;                            // columns of `out`; 0: not a terminal
  const std::atomic<bool>* stop = nullptr;  // set: save a checkpoint after this step and stop
  std::atomic<bool>* save = nullptr;        // set: save one after this step; then cleared
  std::atomic<RunPhase>* phase = nullptr;   // the run says here what it is doing
  // Of several ranks: called with the error that ends the run, before the others are dismissed. A
  // launcher that was asked to end all leaves no time for that.
  std::function<void(const Error&)> report = {};

  bool stop_requested() const { return stop != nullptr && stop->load(); }
  bool take_save_request() const { return save != nullptr && save->exchange(false); }
  // Tells other threads what a stop waits for.
  void enter(RunPhase now) const {
    if (phase != nullptr) phase->store(now);
  }
};

}  // namespace jackscrew
