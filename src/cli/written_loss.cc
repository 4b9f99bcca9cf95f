#include "cli/written_loss.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/checked.h"
#include "base/error.h"
#include "base/text.h"
#include "conversion/planned_source.h"
#include "formats/peft.h"
#include "session/adapter.h"
#include "session/evaluate.h"
#include "session/loading.h"
#include "session/session_device.h"

namespace jackscrew {

namespace {

// By this share of a loss sums in f32 may differ. An adapter that is merged without any rounding is
// added in another order than beside the model, for which some 1e-8 of the loss were seen; 8 bits
// or bf16 lose 1e-5 and more.
constexpr double kShareOfSums = 1e-6;

// What the written model is compared with.
struct Reference {
  Recipe recipe;
  const ModelFiles& files;
  int64_t merging_bytes = 0;  // that are still to be taken while its weights are read
};

// One adapter by itself beside the base; but what makes up for rounding would have to stand beside
// rounded weights.
Reference reference_of(const Recipe& recipe, const ConvertedModel& model) {
  const bool beside = recipe.adapters.size() == 1 && model.adapters[0].weight == 1.0 &&
                      read_peft_adapter(recipe.adapter).base_storage.empty();
  if (beside) return {with_adapter_options(recipe), model.base};
  return {without_adapters(recipe), model.result(), model.merging_bytes - model.held_bytes};
}

// Beside the data, what a merged model needs while its weights are read.
SessionUse written_use(const Recipe& scoring, const Reference& reference,
                       const Dataset& eval_data) {
  SessionUse use = comparison_use(eval_data, scoring.sequence_len);
  use.data_bytes = checked_add(use.data_bytes, reference.merging_bytes);
  return use;
}

// Whether weights that lie in a file as they are read may stay in its map.
bool may_stay_in_map(const Recipe& scoring) {
  return scoring.weights != WeightPlace::memory && open_device(scoring)->shares_host_memory();
}

}  // namespace

bool PlannedWriting::has_coded() const {
  return std::ranges::any_of(tensors,
                             [](const ModelTensor& tensor) { return tensor.format == nullptr; });
}

void check_loss_options(const Recipe& recipe) {
  if (!recipe.max_merge_loss || !recipe.eval_data.empty()) return;
  throw Error(ErrorKind::usage, "max_merge_loss is set, but there is nothing to evaluate on",
              "set eval_data");
}

Dataset read_eval_data(const Recipe& reading, const Recipe& scoring, const ConvertedModel& model,
                       const PlannedWriting& planned, const ProgressStyle& style) {
  const Tokenizer tokenizer = make_tokenizer(reading.tokenizer, model.result());
  Dataset eval_data = load_texts(reading, reading.eval_data, tokenizer, DataPart::evaluation,
                                 TargetUse::scored, style);
  const Reference reference = reference_of(scoring, model);
  SessionUse use = written_use(scoring, reference, eval_data);
  require_room_to_score({reference.recipe, reference.files}, use);
  const Recipe alone = without_adapters(scoring);
  if (!model.adapters.empty()) {
    require_room_to_score({alone, model.base}, evaluation_use(alone, model.base, {&eval_data, 1}));
  }
  // In memory what stands in for them would be counted as well, and several times too large.
  if (planned.has_coded() && !may_stay_in_map(alone)) return eval_data;
  const ModelFiles written = planned_files(model.result(), planned.files, planned.tensors);
  use.data_bytes = checked_add(use.data_bytes, planned.coded_bytes);
  require_room_for_both({reference.recipe, reference.files}, {alone, written}, use);
  return eval_data;
}

WrittenLoss measure_written(const Recipe& scoring, const ConvertedModel& model,
                            const PlannedWriting& planned, const Dataset& eval_data,
                            const ModelOutput& output, const ProgressStyle& style) {
  const Recipe alone = without_adapters(scoring);
  const Reference of = reference_of(scoring, model);
  const SessionUse use = written_use(scoring, of, eval_data);
  WrittenLoss loss;
  if (!model.adapters.empty()) {
    const SessionUse evaluation = evaluation_use(alone, model.base, {&eval_data, 1});
    const auto session = open_scored({alone, model.base}, evaluation, style);
    loss.base = evaluate(*session, eval_data, evaluation.tokens, style).loss;
  }
  output.require_in_place();
  const ModelFiles files = open_model(output.path().string());
  // Only what could not be told before: what the program takes of its own would count twice.
  if (planned.has_coded()) require_room_for_both({of.recipe, of.files}, {alone, files}, use);
  const auto reference = open_scored({of.recipe, of.files}, use, style);
  const auto session = open_scored({alone, files}, use, style);
  loss.written = compare_sessions({*reference, model.name()}, {*session, kWrittenModel}, eval_data,
                                  scoring.threads, style);
  require_finite_loss(loss.written.loss, kWrittenModel);
  return loss;
}

void refuse_loss(const Recipe& recipe, const WrittenLoss& loss) {
  const Comparison& written = loss.written;
  const double more = written.loss - written.reference_loss;
  const double noise = kShareOfSums * written.reference_loss;
  if (!recipe.max_merge_loss || more <= *recipe.max_merge_loss + noise) return;
  throw Error(ErrorKind::generic,
              fmt::format("the written model's loss is {:.4f}, {:.3g} above {:.4f} of what it is "
                          "made of: more than max_merge_loss, so nothing was kept",
                          written.loss, more, written.reference_loss),
              "more bits lose less; merge and export with storage=f32 lose nothing");
}

void print_loss(const ConvertedModel& model, const WrittenLoss& loss) {
  const auto line = [](const char* what, double value) {
    fmt::print("  {:<16}loss {:.4f}\n", what, value);
  };
  if (loss.base) line("base", *loss.base);
  line(model.adapters.empty()       ? "model"
       : model.adapters.size() == 1 ? "base + adapter"
                                    : "base + adapters",
       loss.written.reference_loss);
  fmt::print("  {:<16}loss {:.4f}  KL {:.2e}  same token {:.2f} %  ({})\n", "written",
             loss.written.loss, loss.written.divergence, 100.0 * loss.written.agreement,
             counted(loss.written.tokens, "token"));
}

void print_output_json(const ModelOutput& output, const JsonObject& report,
                       const std::optional<WrittenLoss>& loss) {
  JsonObject json;
  json.add("output", output.target().string()).merge(report);
  if (loss) json.merge(loss->to_json());
  fmt::print("{}\n", json.text());
}

void print_notes(const std::vector<std::string>& notes) {
  for (const std::string& note : notes) fmt::print("  {}\n", one_line(note));
}

JsonObject WrittenLoss::to_json() const {
  JsonObject json;
  if (base) json.add("base_loss", *base);
  return json.merge(written.to_json());
}

}  // namespace jackscrew
