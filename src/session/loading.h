// Reads data sets and models before the work begins, with a progress bar on stderr if that takes
// long.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "base/file.h"
#include "data/dataset.h"
#include "report/progress.h"
#include "session/session.h"

namespace jackscrew {

// The format of a recipe's conversations: the one that chat_template names or, with auto, the
// template beside the adapter, or else the model's own. Throws what chat_format() throws.
ChatFormat recipe_chat_format(const Recipe& recipe, const Tokenizer& tokenizer);

// How a recipe's text is read: masks, chat format, and its longest sequence, which is sequence_len
// less the virtual tokens.
DatasetOptions dataset_options(const Recipe& recipe, const Tokenizer& tokenizer);

// Whether data set number `data_set`, from 0 on, is read at all: not where its weight is 0.
bool is_read(std::span<const double> weights, size_t data_set);

// Where the tokens of a large data set are kept: asked just before that is read, since a directory
// may have been moved while another was.
using TokenFilePath = std::function<fs::path()>;

// Dataset::read() of one data set. If its files are large, the tokens are kept in a file: that of
// `token_file` or, without one, a temporary file that has no name.
Dataset load_dataset(const DataPlace& place, const Tokenizer& tokenizer, DatasetOptions options,
                     const ProgressStyle& style, DataPart part = DataPart::train,
                     const TokenFilePath& token_file = {});

// What load_datasets() may be given besides.
struct LoadOptions {
  std::span<const double> weights = {};  // see is_read()
  // TokenFilePath of the data set of that number, from 1 on.
  std::function<fs::path(size_t number)> token_file = {};
};
// Several data sets, each read so, joined. One that is not read is there without examples.
Dataset load_datasets(std::span<const DataPlace> places, const Tokenizer& tokenizer,
                      const DatasetOptions& options, const ProgressStyle& style,
                      DataPart part = DataPart::train, const LoadOptions& more = {});

// Warns of the files in `places` that are not read and, by `stats`, of what is in those that are.
void warn_of_data(std::span<const DataPlace> places, DataPart part, const DatasetStats& stats,
                  TargetUse use);

// The data at a recipe's paths `data`, with those warnings: what commands read that do not train.
Dataset load_texts(const Recipe& recipe, const std::vector<std::string>& data,
                   const Tokenizer& tokenizer, DataPart part, TargetUse use,
                   const ProgressStyle& style, std::span<const double> weights = {});

// A session as planned, with the recipe's adapter loaded if there is one.
std::unique_ptr<Session> load_session(const Recipe& recipe, const ModelFiles& files,
                                      const SessionUse& use, const SessionPlan& plan,
                                      const ProgressStyle& style, Transport* transport = nullptr);

// Plans a session and loads it. Throws Error(does_not_fit) where it does not fit.
std::unique_ptr<Session> open_session(const Recipe& recipe, const ModelFiles& files,
                                      const SessionUse& use, const ProgressStyle& style);

// For a session that does not train: warns where its product keeps parameters beside the weights,
// which are as they were before training, since no model contains them.
void warn_of_product_parameters(Session& session);

}  // namespace jackscrew
