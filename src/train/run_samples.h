// The answers in a run's report (generation/samples.h): how they are given and logged, and which of
// them a finished run still lacks.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "report/event_log.h"
#include "train/run_data.h"
#include "train/train_console.h"

namespace jackscrew {

// The indices of all samples of `data`.
std::vector<size_t> all_samples(const RunData& data);

// The indices of samples that the finished run in output_dir was to answer after its end and has
// not, since it was stopped or killed meanwhile. Also empty where it had another number of samples:
// report_samples was another, or their answers would have taken too long.
std::vector<size_t> unanswered_samples(const fs::path& output_dir, const RunData& data);

// Answers the samples of these indices, one after another, until a stop is requested, and logs the
// answers as given after `step` steps. Returns how many are left.
int64_t answer_samples(Session& session, const ModelFiles& files, const Tokenizer& tokenizer,
                       const RunData& data, const std::vector<size_t>& indices,
                       const TrainConsole& console, int64_t step, EventLog& log);

// What the user hears of so many answers that the report of a finished run lacks; `is_there`: the
// checkpoint that gives them.
std::string lacking_answers(int64_t count, const fs::path& checkpoint, bool is_there);

// The error of a run that is stopped when only answers are missing; `result_step` is the step whose
// states became the result.
Error stopped_before_the_answers(const Recipe& recipe, const fs::path& output_dir,
                                 int64_t result_step);

}  // namespace jackscrew
