#include "session/loading.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iostream>

#include "base/temporary_place.h"
#include "session/adapter.h"
#include "session/fit.h"
#include "text/tokenizer/tokenizer_files.h"

namespace jackscrew {

namespace {

// The least bytes of text whose tokens are kept in a file. Less is read again sooner than a file is
// worth; in memory its tokens take 4 bytes each, as much as the text or, where each byte is a
// token, four times that.
constexpr int64_t kLargeData = int64_t{64} << 20;

}  // namespace

ChatFormat recipe_chat_format(const Recipe& recipe, const Tokenizer& tokenizer) {
  const jinja::DateTime clock = chat_clock(recipe.chat_date);
  if (recipe.chat_template != "auto" || recipe.adapter.empty()) {
    return chat_format(recipe.chat_template, tokenizer.data(), clock);
  }
  TokenizerData data = tokenizer.data();
  apply_templates(data, recipe.adapter);  // with which the adapter has learned
  return chat_format(recipe.chat_template, data, clock);
}

DatasetOptions dataset_options(const Recipe& recipe, const Tokenizer& tokenizer) {
  DatasetOptions options;
  const int64_t before = virtual_tokens(recipe);
  options.sequence_len = recipe.sequence_len - before;
  options.after_virtual = before > 0;
  options.examples = {recipe.train_on_inputs, recipe_chat_format(recipe, tokenizer), recipe.fields};
  options.long_record = recipe.long_record;
  options.skip_bad_records = recipe.skip_bad_records;
  options.max_samples = recipe.max_samples;
  options.threads = recipe.threads;
  return options;
}

bool is_read(std::span<const double> weights, size_t data_set) {
  return weights.empty() || weights[data_set] != 0.0;
}

Dataset load_dataset(const DataPlace& place, const Tokenizer& tokenizer, DatasetOptions options,
                     const ProgressStyle& style, DataPart part, const TokenFilePath& token_file) {
  int64_t bytes = 0;
  for (const fs::path& file : place.files(part)) {
    std::error_code error;  // Dataset::read() reports files that cannot be read
    const auto size = fs::file_size(file, error);
    if (!error) bytes += static_cast<int64_t>(size);
  }
  const bool is_large = bytes >= kLargeData;
  if (is_large) {
    options.keep_token_file = token_file != nullptr;
    options.token_file =
        token_file ? token_file() : large_temporary_directory() / "jackscrew.tokens";
    make_directories(options.token_file.parent_path());
  }
  ProgressBar bar(std::cerr, style, "reading data", bytes, "B");
  const auto read = [&] {
    try {
      return Dataset::read(place, tokenizer, options, part, bar.callback());
    } catch (const Error& error) {
      // Of the file of tokens: nothing else is written.
      if (!is_large || token_file || error.kind() != ErrorKind::generic) throw;
      throw Error(error.kind(), error.what(),
                  fmt::format("{}{}set TMPDIR to another directory", error.hint(),
                              error.hint().empty() ? "" : ", or "));
    }
  };
  Dataset dataset = read();
  bar.finish();
  return dataset;
}

Dataset load_datasets(std::span<const DataPlace> places, const Tokenizer& tokenizer,
                      const DatasetOptions& options, const ProgressStyle& style, DataPart part,
                      const LoadOptions& more) {
  std::vector<Dataset> parts;
  for (size_t i = 0; i < places.size(); ++i) {
    if (!is_read(more.weights, i)) {
      // Weights and token files go by the number of a data set.
      parts.emplace_back(std::vector<Example>(), options.sequence_len);
      continue;
    }
    TokenFilePath token_file;
    if (more.token_file) token_file = [&more, i] { return more.token_file(i + 1); };
    parts.push_back(load_dataset(places[i], tokenizer, options, style, part, token_file));
  }
  return Dataset::join(parts);
}

void warn_of_data(std::span<const DataPlace> places, DataPart part, const DatasetStats& stats,
                  TargetUse use) {
  std::vector<std::string> paths;
  for (const DataPlace& place : places) {
    paths.push_back(place.path().string());
    for (const std::string& line : place.left_out_warnings(part)) warn(line);
  }
  // Commands may read data of two kinds.
  for (const std::string& line : data_warnings(stats, use)) {
    warn(fmt::format("{}: {}", fmt::join(paths, ", "), line));
  }
}

Dataset load_texts(const Recipe& recipe, const std::vector<std::string>& data,
                   const Tokenizer& tokenizer, DataPart part, TargetUse use,
                   const ProgressStyle& style, std::span<const double> weights) {
  const std::vector<DataPlace> places = data_places(data);
  Dataset dataset = load_datasets(places, tokenizer, dataset_options(recipe, tokenizer), style,
                                  part, {.weights = weights});
  warn_of_data(places, part, dataset.stats(), use);
  return dataset;
}

std::unique_ptr<Session> load_session(const Recipe& recipe, const ModelFiles& files,
                                      const SessionUse& use, const SessionPlan& plan,
                                      const ProgressStyle& style, Transport* transport) {
  ProgressBar bar(std::cerr, style, "loading weights", plan.weight_bytes, "B");
  SessionHooks hooks;
  hooks.loaded = bar.callback();
  hooks.transport = transport;
  auto session = std::make_unique<Session>(recipe, files, use, plan, hooks);
  bar.finish();
  if (!recipe.adapter.empty()) {
    load_adapter(session->stage(), session->ops(), recipe.adapter);
    if (transport == nullptr || transport->rank() == 0) {
      warn_of_adapter(session->stage(), recipe.adapter);
    }
    session->restored();
  }
  return session;
}

std::unique_ptr<Session> open_session(const Recipe& recipe, const ModelFiles& files,
                                      const SessionUse& use, const ProgressStyle& style) {
  const SessionPlan plan = Session::rehearse(recipe, files, use);
  require_fit(recipe, files, use, plan);
  return load_session(recipe, files, use, plan, style);
}

void warn_of_product_parameters(Session& session) {
  const Product& product = session.product();
  const bool keeps_any =
      std::ranges::any_of(session.stage().parameters(), [&](const auto& parameter) {
        const WeightSpec& weight = parameter->weight->spec();
        return weight.is_block_matrix() && !product.parameters(weight).empty();
      });
  if (!keeps_any) return;
  warn(fmt::format("what product={} learns is in no model: it computes as with {}", product.name(),
                   product.settings_without_parameters()));
}

}  // namespace jackscrew
