#include "train/run_samples.h"

#include <fmt/format.h>

#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/text.h"
#include "formats/checkpoint.h"
#include "train/run_start.h"

namespace jackscrew {

std::vector<size_t> all_samples(const RunData& data) {
  std::vector<size_t> indices(data.samples.size());
  std::iota(indices.begin(), indices.end(), size_t{0});
  return indices;
}

std::vector<size_t> unanswered_samples(const fs::path& output_dir, const RunData& data) {
  std::vector<size_t> left;
  for_events(output_dir / kLogName, [&](const nlohmann::json& event) {
    if (event["event"] == event_name(EventKind::end)) {
      const bool same = event.value("samples", nlohmann::json()) == data.samples.size();
      left = same ? all_samples(data) : std::vector<size_t>();
    } else if (event["event"] == event_name(EventKind::sample)) {
      // Answers before the end are those of the model before training.
      std::erase_if(left, [&](size_t i) { return event.value("index", nlohmann::json()) == i; });
    }
  });
  return left;
}

int64_t answer_samples(Session& session, const ModelFiles& files, const Tokenizer& tokenizer,
                       const RunData& data, const std::vector<size_t>& indices,
                       const TrainConsole& console, int64_t step, EventLog& log) {
  if (indices.empty()) return 0;
  int64_t left = std::ssize(indices);
  ProgressBar bar(std::cerr, console.style, "answering samples", left * kAnswerTokens, "tokens");
  for (const size_t index : indices) {
    if (console.stop_requested()) return left;
    const Sample& sample = data.samples[index];
    const std::string answer = answer_sample(session, files, tokenizer, sample, bar.callback());
    log.write(EventKind::sample, step,
              JsonObject()
                  .add("index", index)
                  .add("prompt", sample.prompt)
                  .add("expected", sample.expected)
                  .add("answer", answer));
    --left;
  }
  bar.finish();
  return left;
}

std::string lacking_answers(int64_t count, const fs::path& checkpoint, bool is_there) {
  const std::string lacks = "the report lacks " + counted(count, "answer");
  if (is_there) return fmt::format("{}, given from {}", lacks, checkpoint.string());
  return fmt::format("{}, only given from {}, which is not there; a run with save_steps=N keeps it",
                     lacks, checkpoint.string());
}

Error stopped_before_the_answers(const Recipe& recipe, const fs::path& output_dir,
                                 int64_t result_step) {
  std::error_code unreachable;
  const bool can_answer = fs::exists(checkpoint_path(output_dir, result_step), unreachable);
  return {
      ErrorKind::interrupted,
      fmt::format("stopped before the last answers for the report; the result is complete in {}",
                  output_dir.string()),
      can_answer ? same_command_again(recipe, output_dir) + " for the answers" : ""};
}

}  // namespace jackscrew
