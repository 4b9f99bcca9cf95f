#include "train/loading.h"

#include <iostream>

#include "train/export.h"

namespace jackscrew {

Dataset load_dataset(const fs::path& path, const Tokenizer& tokenizer,
                     const DatasetOptions& options, const ProgressStyle& style, DataPart part) {
  int64_t bytes = 0;
  for (const fs::path& file : data_files(path, part)) {
    std::error_code error;  // what cannot be read is refused when it is
    const auto size = fs::file_size(file, error);
    if (!error) bytes += static_cast<int64_t>(size);
  }
  ProgressBar bar(std::cerr, style, "reading data", bytes, "B");
  Dataset dataset = Dataset::read(path, tokenizer, options, part, bar.callback());
  bar.finish();
  return dataset;
}

std::unique_ptr<Session> load_session(const Recipe& recipe, const ModelFiles& files,
                                      const SessionUse& use, const SessionPlan& plan,
                                      const ProgressStyle& style) {
  ProgressBar bar(std::cerr, style, "loading weights", plan.weight_bytes, "B");
  SessionHooks hooks;
  hooks.loaded = bar.callback();
  auto session = std::make_unique<Session>(recipe, files, use, plan, hooks);
  bar.finish();
  if (!recipe.adapter.empty()) {
    load_adapter(session->stage(), session->ops(), recipe.adapter);
    session->restored();
  }
  return session;
}

}  // namespace jackscrew
