// What is said of loading and evaluating where it takes long, and where it does not.
#include "session/loading.h"

#include <unistd.h>

#include <cmath>
#include <iostream>
#include <numbers>
#include <sstream>

#include "session/evaluate.h"
#include "tests/support/environment.h"
#include "tests/support/errors.h"
#include "tests/support/golden.h"

namespace jackscrew {
namespace {

// What goes to std::cerr while the object lives.
class Stderr {
 public:
  Stderr() : kept_(std::cerr.rdbuf(text_.rdbuf())) {}
  ~Stderr() { std::cerr.rdbuf(kept_); }
  Stderr(const Stderr&) = delete;
  Stderr& operator=(const Stderr&) = delete;
  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
  std::streambuf* kept_;
};

// Reads a text, loads a model and evaluates it; what that says.
std::string said(const ProgressStyle& style) {
  const fs::path text =
      fs::temp_directory_path() / fmt::format("jackscrew_loading_{}.txt", ::getpid());
  write_text_atomic(text, std::string(100, 'x'));
  ModelFiles files = open_model("llama-9m");
  const Recipe recipe = make_recipe({"init=random", "tokenizer=bytes"});
  const Tokenizer tokenizer = make_tokenizer("bytes", files);
  const SessionUse use = training_use(128);
  const SessionPlan plan = Session::rehearse(recipe, files, use);
  const Stderr captured;
  const Dataset data = load_dataset(text, tokenizer, dataset_options(recipe, tokenizer), style);
  const auto session = load_session(recipe, files, use, plan, style);
  evaluate(*session, data, 128, style);
  fs::remove(text);
  return captured.text();
}

TEST(Loading, SpeaksOfWhatTakesLong) {
  const std::string text = said({.patience = 0});
  for (const char* line : {"reading data: 100 B\n", "reading data: 100 B in ", "loading weights: ",
                           "evaluating: 101 tokens\n", "evaluating: 101 tokens in "}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "not in\n" << text;
  }
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 6) << text;
}

TEST(Loading, IsSilentAboutTheRestAndOnRequest) {
  EXPECT_EQ(said({.patience = 1e9}), "");
  EXPECT_EQ(said({.quiet = true, .patience = 0}), "");
}

// Nothing is what no bytes take: 0 would be the best that can be reached.
TEST(Evaluation, OfNoBytesHasNoBitsForEach) {
  const Tokenizer tokenizer = make_tokenizer("bytes", open_model("llama-9m"));
  const auto of = [&](const std::vector<int32_t>& ids) {
    std::vector<uint8_t> train(ids.size(), 1);
    const Dataset data({{ids, std::move(train)}}, 16, &tokenizer);
    const ScoreBatch score = [](const StepBatch&, const ProgressCallback&) { return 2.0; };
    return evaluate(score, data, 16, 0, {.quiet = true});
  };
  EvalResult result = of({'a', tokenizer.eos()});
  EXPECT_EQ(result.bytes, 0);
  EXPECT_TRUE(std::isnan(result.bits_per_byte));
  EXPECT_NE(result.to_json().text().find("\"bits_per_byte\": null"), std::string::npos);
  const EvalResult one = of({'a', 'b'});
  EXPECT_DOUBLE_EQ(one.bits_per_byte, 2.0 / std::numbers::ln2);
  result += one;
  EXPECT_DOUBLE_EQ(result.bits_per_byte, 4.0 / std::numbers::ln2);
}

// Of text that is large its tokens go to a file, and nobody may make one in /proc.
TEST(Loading, NamesWhatChoosesThePlaceOfTokens) {
  const fs::path text =
      fs::temp_directory_path() / fmt::format("jackscrew_large_{}.txt", ::getpid());
  write_text_atomic(text, "x");
  fs::resize_file(text, 64 << 20);
  const EnvironmentVariable place("TMPDIR", "/proc");
  const Recipe recipe = make_recipe({"tokenizer=bytes"});
  const Tokenizer tokenizer = make_tokenizer("bytes", open_model("llama-9m"));
  const std::string error = error_of(ErrorKind::generic, [&] {
    load_dataset(text, tokenizer, dataset_options(recipe, tokenizer), {.quiet = true});
  });
  EXPECT_NE(error.find("cannot create /proc/jackscrew.tokens: "), std::string::npos) << error;
  EXPECT_EQ(hint_of(error), "check the path, or set TMPDIR to another directory");
  fs::remove(text);
}

// A file's weights, with a head beside an embedding to which it is tied.
class WithHead : public WeightSource {
 public:
  WithHead(std::shared_ptr<WeightSource> file, bool same) : file_(std::move(file)) {
    head_ = *file_->find("model.embed_tokens.weight");
    head_.name = "lm_head.weight";
    bytes_.assign(head_.bytes.begin(), head_.bytes.end());
    if (!same) bytes_.back() ^= 1;
    head_.bytes = bytes_;
  }
  const StoredTensor* find(std::string_view name) const override {
    return name == head_.name ? &head_ : file_->find(name);
  }
  std::vector<std::string> names() const override { return file_->names(); }
  void release(const StoredTensor& tensor) const override {
    if (tensor.name != head_.name) file_->release(tensor);
  }

 private:
  std::shared_ptr<WeightSource> file_;
  StoredTensor head_;
  std::vector<uint8_t> bytes_;
};

TEST(Loading, RefusesATiedHeadOfItsOwn) {
  const Recipe recipe = make_recipe({"tokenizer=bytes"});
  const SessionUse use = training_use(16);
  const auto load = [&](bool same) {
    ModelFiles files = open_model(golden_path("gqa_tied").string());
    files.source = std::make_unique<WithHead>(std::move(files.source), same);
    const SessionPlan plan = Session::rehearse(recipe, files, use);
    load_session(recipe, files, use, plan, {.quiet = true});
  };
  EXPECT_NO_THROW(load(true));
  expect_message(ErrorKind::model,
                 golden_path("gqa_tied").string() +
                     ": tie_word_embeddings is true, but lm_head.weight is not "
                     "model.embed_tokens.weight",
                 [&] { load(false); });
}

}  // namespace
}  // namespace jackscrew
