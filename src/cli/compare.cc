// jackscrew compare: measures how far models are from the first of them on a text.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <csignal>
#include <exception>
#include <limits>
#include <optional>
#include <utility>

#include "base/directory.h"
#include "base/error.h"
#include "base/list_text.h"
#include "base/shell_word.h"
#include "base/text.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "conversion/compare.h"
#include "formats/peft.h"
#include "report/comparison_page.h"
#include "session/adapter.h"
#include "session/loading.h"
#include "session/plan.h"

namespace jackscrew {

namespace {

JsonObject to_json(const ComparedModel& model) {
  JsonObject json;
  json.add("model", model.name).add("bytes", model.bytes).add("loss", model.loss);
  json.add("kl", model.divergence).add("agreement", model.agreement);
  return json.add("tokens_per_second", model.rate);
}

bool is_page(const Recipe& recipe) {
  return fs::path(recipe.output).extension() == ".html";
}

// Whether the output is that of another command, with which this one shares a recipe.
bool is_of_another(const Recipe& recipe) {
  return recipe.options.origin("output") != kCommandLine && !is_page(recipe);
}

// Throws Error(usage) where no page can be written there.
void check_page(const Recipe& recipe) {
  if (!is_page(recipe)) {
    throw Error(ErrorKind::usage, fmt::format("output={} is not the name of a page", recipe.output),
                "output=NAME.html");
  }
  check_output_file(recipe);
}

// Throws Error(model) where an id that both tokenizers have is of different tokens.
void require_common_tokens(const ModelFiles& first, const ModelFiles& other) {
  if (!first.tokenizer || !other.tokenizer) return;
  if (same_common_tokens(*first.tokenizer, *other.tokenizer)) return;
  throw Error(ErrorKind::model,
              fmt::format("{} and {} have different tokens", first.origin, other.origin),
              "models are compared token by token; jackscrew eval gives bits/byte, which are "
              "comparable");
}

// Both models must give ids the same meaning; a file may have padding after the common ids.
// `tokenizer` is that of the text.
void require_same_tokens(const ModelFiles& first, const ModelFiles& other,
                         const Tokenizer& tokenizer) {
  require_common_tokens(first, other);  // where they differ, no order of the models helps
  if (tokenizer.vocab_size() > other.config.vocab_size) {
    throw Error(
        ErrorKind::model,
        fmt::format("{}: the tokenizer of {} has {} tokens, this model only {}", other.origin,
                    first.origin, tokenizer.vocab_size(), other.config.vocab_size),
        "name the model with fewer tokens first: its tokenizer reads the text");
  }
}

ModelFiles open_compared(const std::string& name, const std::string& tokenizer) {
  if (is_there(fs::path(name) / kAdapterConfig)) {
    const std::string base = peft_base_model(name);
    throw Error(
        ErrorKind::usage, fmt::format("{} is an adapter, and models are compared", name),
        fmt::format(
            "jackscrew merge model={} adapter={} output_dir=DIR makes a model of it, unless "
            "it is a soft prompt; jackscrew eval takes adapter=",
            base.empty() ? "MODEL" : shell_word(base), shell_word(list_item(name))));
  }
  ModelFiles files = open_model(name, {}, tokenizer);
  if (files.source == nullptr) {
    throw Error(ErrorKind::usage, fmt::format("{} is a shape without weights", name),
                "give model directories or GGUF files");
  }
  return files;
}

// Prints each model when it is found: a comparison that ends early has shown the others. Where that
// fails and a page has them all, only end() says so, once the page is written.
class Rows {
 public:
  Rows(const ModelFiles& first, const std::vector<ModelFiles>& others, int64_t tokens,
       const Recipe& recipe)
      : tokens_(tokens),
        json_(recipe.json),
        has_page_(!recipe.output.empty()),
        width_(std::max<size_t>(5, one_line(first.origin).size())) {
    for (const ModelFiles& files : others) width_ = std::max(width_, one_line(files.origin).size());
  }
  void print(const ComparedModel& model) {
    if (lost_) return;
    try {
      show(model);
    } catch (const std::exception&) {
      if (!has_page_) throw;
      lost_ = std::current_exception();
    }
  }
  void end() const {
    if (lost_) std::rethrow_exception(lost_);
    if (json_) return;
    fmt::print("({}; KL of the first to each, nats a token)\n", counted(tokens_, "token"));
  }

 private:
  void show(const ComparedModel& model) {
    if (json_) {
      fmt::print("{}\n", to_json(model).add("tokens", tokens_).text());
    } else {
      if (!std::exchange(has_head_, true)) {
        fmt::print("{:<{}}  {:>9}  {:>8}  {:>10}  {:>10}  {:>8}\n", "model", width_, "bytes",
                   "loss", "KL", "same token", "tok/s");
      }
      fmt::print("{:<{}}  {:>9}  {:>8.4f}  {:>10.2e}  {:>8.2f} %  {:>8.1f}\n", one_line(model.name),
                 width_, human_bytes(model.bytes), model.loss, model.divergence,
                 100.0 * model.agreement, model.rate);
    }
    flush_output();
  }

  int64_t tokens_;
  bool json_;
  bool has_page_;
  size_t width_;  // of the names
  bool has_head_ = false;
  std::exception_ptr lost_;  // what stdout did not take
};

int compare(const Recipe& given) {
  Recipe recipe = without_training(given);
  if (recipe.operands.size() < 2) {
    throw Error(ErrorKind::usage, "compare needs two models or more",
                "jackscrew compare MODEL MODEL eval_data=FILE");
  }
  recipe.options.require("eval_data", "compare");
  if (is_of_another(recipe)) recipe.output.clear();
  if (recipe.output.empty()) {
    warn_of_unused(recipe, "compare", {"overwrite"}, " without output");
  } else {
    check_page(recipe);
  }
  recipe.storage = "keep";  // models are compared as they are, whatever the method's storage
  const ProgressStyle style = stderr_style(recipe.quiet);
  const ModelFiles first = open_compared(recipe.operands[0], recipe.tokenizer);
  const Tokenizer tokenizer = make_tokenizer(recipe.tokenizer, first);
  settle_lengths(recipe, first);
  std::vector<ModelFiles> others;
  for (size_t i = 1; i < recipe.operands.size(); ++i) {
    const ModelFiles& files =
        others.emplace_back(open_compared(recipe.operands[i], recipe.tokenizer));
    require_same_tokens(first, files, tokenizer);
    settle_lengths(recipe, files);  // all must have positions for the same text
  }
  const Dataset dataset = load_texts(recipe, recipe.eval_data, tokenizer, DataPart::evaluation,
                                     TargetUse::scored, style);
  const SessionUse use = comparison_use(dataset, recipe.sequence_len);
  for (const ModelFiles& files : others) {
    require_room_for_both({recipe, first}, {recipe, files}, use);
  }
  const int64_t tokens = dataset.stats().trained_tokens;
  const auto reference = open_scored({recipe, first}, use, style);
  warn_of_product_parameters(*reference);
  // A closed pipe, such as `| head`, does not end what a page is written of.
  if (!recipe.output.empty()) std::signal(SIGPIPE, SIG_IGN);
  Rows rows(first, others, tokens, recipe);
  std::vector<ComparedModel> models = {{first.origin, stored_bytes(first)}};
  std::optional<Error> non_finite;  // of the first such model; the others are compared all the same
  for (const ModelFiles& files : others) {
    const auto session = open_scored({recipe, files}, use, style);
    const Comparison found = compare_sessions({*reference, first.origin}, {*session, files.origin},
                                              dataset, recipe.threads, style);
    if (models.size() == 1) {  // it is scored beside every other, each time with the same result
      models[0].loss = found.reference_loss;
      models[0].rate = found.reference_rate;
      rows.print(models[0]);
    }
    ComparedModel& model =
        models.emplace_back(ComparedModel{files.origin, stored_bytes(files), found.loss,
                                          found.divergence, found.agreement, found.rate});
    try {
      require_finite_loss(found.loss, files.origin);
    } catch (const Error& error) {
      if (!non_finite) non_finite = error;
      model.loss = model.divergence = model.agreement = std::numeric_limits<double>::quiet_NaN();
    }
    rows.print(model);
  }
  if (!recipe.output.empty()) {
    const std::string text = fmt::format("{}", fmt::join(recipe.eval_data, ", "));
    AtomicFile page(recipe.output);
    FileWriter writer(page.path());
    writer.write(render_comparison(models, text, tokens));
    writer.close();
    check_output_file(recipe);  // another process may just have finished there
    page.commit();
  }
  rows.end();
  if (!recipe.output.empty() && !recipe.json) fmt::print("wrote {}\n", one_line(recipe.output));
  if (non_finite) throw Error(*non_finite);
  return 0;
}

}  // namespace

int run_compare(Arguments arguments) {
  return with_unbudgeted_recipe(arguments, std::numeric_limits<size_t>::max(), "compare", compare);
}

}  // namespace jackscrew
