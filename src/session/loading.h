// What is read before the work begins, with a bar on stderr where that takes long.
#pragma once

#include <memory>

#include "base/file.h"
#include "data/dataset.h"
#include "report/progress.h"
#include "session/session.h"

namespace jackscrew {

// Dataset::read() of one data set. Where its files are large, the tokens are kept in a file:
// `token_file`, or a temporary one without a name.
Dataset load_dataset(const DataPlace& place, const Tokenizer& tokenizer, DatasetOptions options,
                     const ProgressStyle& style, DataPart part = DataPart::train,
                     const fs::path& token_file = {});
// Of several, joined; the names of their files of tokens begin with `token_prefix`.
Dataset load_datasets(std::span<const DataPlace> places, const Tokenizer& tokenizer,
                      const DatasetOptions& options, const ProgressStyle& style,
                      DataPart part = DataPart::train, const fs::path& token_prefix = {});

// A session as planned, the recipe's adapter laid over the model where there is one.
std::unique_ptr<Session> load_session(const Recipe& recipe, const ModelFiles& files,
                                      const SessionUse& use, const SessionPlan& plan,
                                      const ProgressStyle& style, Transport* transport = nullptr);

// The same, planned here; throws Error(does_not_fit) where it does not fit.
std::unique_ptr<Session> open_session(const Recipe& recipe, const ModelFiles& files,
                                      const SessionUse& use, const ProgressStyle& style);

}  // namespace jackscrew
