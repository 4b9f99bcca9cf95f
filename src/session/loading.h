// Reads data sets and models before the work begins, with a progress bar on stderr if that takes
// long.
#pragma once

#include <memory>

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

// Dataset::read() of one data set. If its files are large, the tokens are kept in a file:
// `token_file` or, if that is empty, a temporary file that has no name.
Dataset load_dataset(const DataPlace& place, const Tokenizer& tokenizer, DatasetOptions options,
                     const ProgressStyle& style, DataPart part = DataPart::train,
                     const fs::path& token_file = {});
// Several data sets, each read so, joined; the names of their token files begin with
// `token_prefix`.
Dataset load_datasets(std::span<const DataPlace> places, const Tokenizer& tokenizer,
                      const DatasetOptions& options, const ProgressStyle& style,
                      DataPart part = DataPart::train, const fs::path& token_prefix = {});

// Warns of the files in `places` that are not read and, by `stats`, of what is in those that are.
void warn_of_data(std::span<const DataPlace> places, DataPart part, const DatasetStats& stats,
                  TargetUse use);

// The data at a recipe's paths `data`, with those warnings: what commands read that do not train.
Dataset load_texts(const Recipe& recipe, const std::vector<std::string>& data,
                   const Tokenizer& tokenizer, DataPart part, TargetUse use,
                   const ProgressStyle& style);

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
