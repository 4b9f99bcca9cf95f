// A tied model as an untied one, whose head has the same values.
#pragma once

#include <memory>
#include <utility>

#include "session/model_files.h"

namespace jackscrew {

class UntiedSource : public WeightSource {
 public:
  explicit UntiedSource(std::shared_ptr<WeightSource> tied) : tied_(std::move(tied)) {}

  const StoredTensor* find(std::string_view name) const override {
    return tied_->find(name == "lm_head.weight" ? "model.embed_tokens.weight" : name);
  }
  std::vector<std::string> names() const override {
    std::vector<std::string> names = tied_->names();
    names.emplace_back("lm_head.weight");
    return names;
  }
  void release(const StoredTensor& tensor) const override { tied_->release(tensor); }

 private:
  std::shared_ptr<WeightSource> tied_;
};

inline ModelFiles untied(ModelFiles files) {
  files.config.tie_word_embeddings = false;
  files.source = std::make_shared<UntiedSource>(std::move(files.source));
  return files;
}

}  // namespace jackscrew
