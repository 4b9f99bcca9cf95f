// compare as users call it, and the rates that it measures.
#include "conversion/compare.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "conversion/planned_source.h"
#include "data/batch.h"
#include "formats/safetensors.h"
#include "session/adapter.h"
#include "session/evaluate.h"
#include "tests/conversion/conversion.h"
#include "tests/support/counting_ops.h"
#include "tests/support/golden.h"
#include "tests/support/small_disk.h"

namespace jackscrew {
namespace {

using nlohmann::json;

// Ops whose first product waits, as for a mapped file that is not in memory yet.
class ColdOps : public CountingOps {
 public:
  ColdOps(std::unique_ptr<Ops> inner, std::chrono::milliseconds wait)
      : CountingOps(std::move(inner)), wait_(wait) {}
  void gemm(const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b,
            const Tensor& c, Accumulate accumulate) override {
    std::this_thread::sleep_for(std::exchange(wait_, {}));
    CountingOps::gemm(a, transpose_a, b, transpose_b, c, accumulate);
  }

 private:
  std::chrono::milliseconds wait_;
};

// The reference is scored first; it would be slower than itself.
TEST(Compare, RatesLeaveOutWhatIsDoneOnce) {
  const ModelFiles files = open_model("llama-9m");
  const Recipe recipe = make_recipe({"init=random", "tokenizer=bytes", "threads=1"});
  const Dataset data({{{'a', 'b', 'c', 'd'}, {1, 1, 1, 1}}}, 16);
  const SessionUse use = comparison_use(data, 16);
  const SessionPlan plan = Session::rehearse(recipe, files, use);
  constexpr std::chrono::milliseconds kWait(1000);
  SessionHooks hooks;
  hooks.wrap = [&](std::unique_ptr<Ops> inner) {
    return std::make_unique<ColdOps>(std::move(inner), kWait);
  };
  Session cold(recipe, files, use, plan, hooks), other(recipe, files, use, plan);
  const Comparison found =
      compare_sessions({cold, "cold"}, {other, "other"}, data, 1, {.quiet = true});
  EXPECT_GT(found.reference_rate, 4 / std::chrono::duration<double>(kWait).count());
  EXPECT_EQ(found.divergence, 0.0);
}

// Rows behind the tokens are padding, and tensors beside the model's are nothing of it.
TEST_F(SlowConversion, CompareTakesPaddingAndUnusedTensors) {
  fs::copy(path("base"), path("padded"));
  constexpr int64_t kRows = 264;
  json config = json::parse(tiny_.text("padded/config.json"));
  config["vocab_size"] = kRows;
  tiny_.file("padded/config.json", config.dump());
  struct Part {
    SafetensorsSpec spec;
    std::vector<uint8_t> bytes;
  };
  std::vector<Part> parts = {{{"unused", "I8", {3}}, std::vector<uint8_t>(3, 1)}};
  const SafetensorsFile file(path("base") + "/model.safetensors");
  for (const SafetensorsEntry& entry : file.entries()) {
    Part part{{entry.name, entry.dtype, entry.shape}, {entry.bytes.begin(), entry.bytes.end()}};
    if (part.spec.shape[0] == 260) {
      part.bytes.resize(part.bytes.size() / 260 * kRows);
      part.spec.shape[0] = kRows;
    }
    parts.push_back(std::move(part));
  }
  std::vector<SafetensorsSpec> specs;
  for (const Part& part : parts) specs.push_back(part.spec);
  SafetensorsWriter writer(path("padded") + "/model.safetensors", specs);
  for (const Part& part : parts) writer.write(part.spec.name, part.bytes);
  writer.close();
  for (const std::string& models :
       {path("base") + " " + path("padded"), path("padded") + " " + path("base")}) {
    const Outcome outcome =
        run(fmt::format("compare {} {} threads=1 --quiet --json", models, eval()));
    ASSERT_EQ(outcome.exit_code, 0) << outcome.out;
    std::istringstream text(outcome.out);
    std::vector<json> lines;
    for (std::string line; std::getline(text, line);) lines.push_back(json::parse(line));
    ASSERT_EQ(lines.size(), 2u);
    EXPECT_EQ(lines[1]["kl"], 0.0);
    EXPECT_NEAR(lines[1]["loss"], loss("model=" + path("base")), 1e-5);
    EXPECT_NE(lines[0]["bytes"], lines[1]["bytes"]);
  }
}

// Models are compared as they are, whatever is said of other commands; a tokenizer may be given.
TEST_F(SlowConversion, CompareTakesWhatItSays) {
  train_adapter("adapter");
  answer(fmt::format("export model={} output={} storage=q4_0", path("base"), path("q.gguf")));
  const auto compared = [&](const std::string& models, const std::string& more) {
    const Outcome outcome =
        run(fmt::format("compare {} {} {} threads=1 --quiet --json", models, eval(), more));
    EXPECT_EQ(outcome.exit_code, 0) << more;
    std::istringstream text(outcome.out);
    std::vector<double> divergences;
    for (std::string line; std::getline(text, line);) {
      divergences.push_back(json::parse(line)["kl"]);
    }
    return divergences;
  };
  const std::string both = path("base") + " " + path("q.gguf");
  const std::vector<double> plain = compared(both, "");
  for (const std::string& more : {std::string("storage=nf4"), "adapter=" + path("adapter"),
                                  "adapter_weight=1 adapter=" + path("adapter")}) {
    EXPECT_EQ(compared(both, more), plain) << more;
  }
  fs::copy(path("base"), path("bare"));
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    fs::remove(path("bare") + "/" + name);
  }
  EXPECT_EQ(compared(path("bare") + " " + path("q.gguf"), "tokenizer=" + path("base")), plain);
}

TEST_F(SlowConversion, CompareShowsEveryModelAgainstTheFirst) {
  answer(fmt::format("export model={} output={} storage=q4_0", path("base"), path("q.gguf")));
  const std::string command = fmt::format("compare {0} {1} {0} {2} threads=1 output={3} ",
                                          path("base"), path("q.gguf"), eval(), path("page.html"));
  const Outcome outcome = run(command + "--quiet --json");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.out;
  std::vector<json> lines;
  std::istringstream text(outcome.out);
  for (std::string line; std::getline(text, line);) lines.push_back(json::parse(line));
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_NEAR(lines[0]["loss"], loss("model=" + path("base")), 1e-5);
  EXPECT_NEAR(lines[1]["loss"], loss("model=" + path("q.gguf")), 1e-5);
  EXPECT_EQ(lines[0]["kl"], 0.0);
  EXPECT_GT(lines[1]["kl"], 1e-6);
  EXPECT_EQ(lines[2]["kl"], 0.0);
  EXPECT_LT(lines[1]["bytes"], lines[0]["bytes"]);
  const std::string page = tiny_.text("page.html");
  EXPECT_NE(page.find(fmt::format("{:.2e}", lines[1]["kl"].get<double>())), std::string::npos);
  expect_refusal(command, 2, {"page.html exists", "overwrite=true"});
  expect_refusal(command + "output=" + path("page"), 2, {"output=NAME.html"});
  // A recipe may name the file of another command, as it may a page.
  const std::string plain = fmt::format("compare {0} {1} {0} {2} threads=1 --quiet --json ",
                                        path("base"), path("q.gguf"), eval());
  const std::string mine = tiny_.file("mine.yaml", "output: " + path("mine.gguf") + "\n");
  const Outcome shared = run(plain + mine);
  EXPECT_EQ(shared.exit_code, 0);
  EXPECT_EQ(std::ranges::count(shared.out, '\n'), 3);
  EXPECT_FALSE(fs::exists(path("mine.gguf")));
  expect_refusal(plain + tiny_.file("page.yaml", "output: " + path("page.html") + "\n"), 2,
                 {"page.html exists"});
  expect_refusal(command + "output=" + path("nowhere/page.html"), 2, {"no directory"});
  fs::create_directory(path("place.html"));
  expect_refusal(command + "overwrite=true output=" + path("place.html"), 2, {"is not a file"});
  EXPECT_NE(run(command + "overwrite=true").out.find("wrote "), std::string::npos);
  expect_refusal(command + "output=" + path(std::string(250, 'n') + ".html"), 2,
                 {".html has 255 bytes, and may have ", "hint: give a shorter name"});
  // The name that the page has until it is whole.
  const std::string read = path("other.html.jackscrew-part");
  fs::copy(path("q.gguf"), read);
  expect_refusal(
      fmt::format("compare {} {} {} output={}", path("base"), read, eval(), path("other.html")), 2,
      {read + " is what is read, and would be removed"});
  EXPECT_TRUE(fs::exists(read));
  expect_refusal("compare " + path("base") + " " + eval(), 2, {"two models or more"});
}

TEST_F(SlowConversion, APageIsWrittenWhateverBecomesOfTheOutput) {
  for (const std::string& more : {std::string("--json "), std::string()}) {
    const std::string command = fmt::format(
        "compare {0} {0} {1} threads=1 overwrite=true --quiet {2}", path("base"), eval(), more);
    const Outcome lost = run(command + "output=" + path("page.html") + " 2>&1 >/dev/full");
    EXPECT_EQ(lost.exit_code, 1) << lost.out;
    EXPECT_TRUE(fs::exists(path("page.html"))) << more;
    fs::remove(path("page.html"));
    run(command + "output=" + path("page.html") + " 2>/dev/null | true");
    EXPECT_TRUE(fs::exists(path("page.html"))) << more;
    fs::remove(path("page.html"));
    EXPECT_EQ(run(command + " >/dev/full 2>/dev/null").exit_code, 1);
  }
}

// As that of another compare which has finished first.
TEST_F(SlowConversion, APageThatAppearsMeanwhileIsNotReplaced) {
  std::string models;
  for (int i = 0; i < 40; ++i) models += path("base") + " ";
  const fs::path said = path("said");
  Child child(fmt::format("compare {} {} threads=1 --quiet --json output={}", models, eval(),
                          path("page.html")),
              said);
  // It has shown the first of them, and many are left.
  ASSERT_TRUE(child.until([&] { return fs::exists(said) && fs::file_size(said) > 0; }));
  ASSERT_TRUE(child.halt());
  ASSERT_FALSE(fs::exists(path("page.html")));
  tiny_.file("page.html", "mine");
  child.signal(SIGCONT);
  EXPECT_EQ(child.wait(), 2);
  EXPECT_EQ(tiny_.text("page.html"), "mine");
  EXPECT_FALSE(fs::exists(path("page.html.jackscrew-part")));
  EXPECT_NE(read_text(said).find("page.html exists already"), std::string::npos);
}

TEST_F(SlowConversion, APageThatCannotBeWrittenIsRefusedFirst) {
  const SmallDisk disk(path("disk"), "1m");
  SKIP_UNLESS_MOUNTED(disk);
  ASSERT_EQ(::mount("none", path("disk").c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, "size=1m"), 0);
  const std::vector<std::string> says = {"cannot write to " + path("disk"), "another output"};
  expect_refusal(
      fmt::format("compare {0} {0} {1} output={2}", path("base"), eval(), path("disk/page.html")),
      2, says);
  expect_refusal(fmt::format("logits model={} data={} output={}", path("base"), tiny_.data(),
                             path("disk/logits.safetensors")),
                 2, says);
}

// Two models are in memory at a time: device_memory holds for both, and is asked before any work.
TEST_F(SlowConversion, CompareAndExportNeedRoomForTheirModels) {
  // The message says what would be needed.
  const auto needed = [&](const std::string& command) {
    const std::string said = run(command + " threads=1 device_memory=1KiB" + kErrorsOnly).out;
    const std::string before = "needs ";
    const size_t at = said.find(before);
    EXPECT_NE(at, std::string::npos) << said;
    return at == std::string::npos ? 0.0 : std::stod(said.substr(at + before.size()));
  };
  const std::string base = path("base");
  const double alone = needed(
      fmt::format("export model={} output={} storage=q4_0 {}", base, path("late.gguf"), eval()));
  EXPECT_FALSE(fs::exists(path("late.gguf")));
  EXPECT_GT(alone, 0);
  EXPECT_NEAR(needed(fmt::format("compare {0} {0} {0} {1}", base, eval())), 2 * alone, 0.2);
  // A model that is missing is told before the first two are scored.
  expect_refusal(fmt::format("compare {0} {0} {1} {2}", base, path("missing"), eval()), 5,
                 {"missing does not exist"});
}

// Nothing is written where both models together would not fit: a weight that cannot be written says
// which came first.
TEST_F(SlowConversion, ExportNeedsRoomForBothModelsBeforeItWrites) {
  fs::copy(path("base"), path("broken"));
  std::string weights = tiny_.text("broken/model.safetensors");
  std::fill(weights.end() - 4, weights.end(), '\xff');  // NaN
  tiny_.file("broken/model.safetensors", weights);
  const Recipe recipe = without_training(make_recipe({"threads=1", "sequence_len=64"}));
  const Dataset data({{{'a', 'b'}, {1, 1}}}, 64);
  const int64_t alone =
      Session::rehearse(recipe, open_model(path("base")), comparison_use(data, 64)).ledger.peak;
  const auto with_budget = [&](int64_t bytes) {
    return fmt::format("export model={} output_dir={} storage=f32 {} threads=1 device_memory={}B",
                       path("broken"), path("out"), eval(), bytes);
  };
  expect_refusal(with_budget(alone * 3 / 2), 3, {"budget", "device_memory"});
  expect_refusal(with_budget(alone * 5 / 2), 6, {});
}

// Errors over what will be written do not blame what is read.
TEST(PlannedFiles, HaveANameOfTheirOwn) {
  const ModelFiles model = open_model(golden_model("gqa_tied"));
  EXPECT_EQ(planned_files(model, ModelFormat::hf, {}).origin, kWrittenModel);
}

// As the micro-batches of a run are counted.
TEST(Compare, CountsTheBatchesThatAreMadeAtOnce) {
  const ModelFiles files = open_model("llama-9m");
  const Recipe recipe = without_training(
      make_recipe({"init=random", "tokenizer=bytes", "threads=1", "sequence_len=16"}));
  const std::vector<Example> examples(200, {{'a', 'b', 'c', 'd'}, {1, 1, 1, 1}});
  const Dataset data(examples, 16);
  EXPECT_EQ(comparison_use(data, 16).data_bytes, EvaluationBatches(data, 1).step_bytes());
  const SessionUse use = evaluation_use(recipe, files, {&data, 1});
  EXPECT_EQ(use.data_bytes, EvaluationBatches(data, use.tokens).step_bytes());
  EXPECT_GT(use.data_bytes, 200 * 4 * 3 * 4);  // ids, positions and targets
}

// A text is cut to what all of the models have positions for.
TEST_F(SlowConversion, CompareKeepsToThePositionsOfEveryModel) {
  fs::copy(path("base"), path("short"));
  json config = json::parse(tiny_.text("short/config.json"));
  config["max_position_embeddings"] = 32;
  tiny_.file("short/config.json", config.dump());
  const std::string models = fmt::format("compare {} {} eval_data={}", path("base"), path("short"),
                                         tiny_.file("long.txt", std::string(100, 'a')));
  const auto tokens = [&](const std::string& more) {
    const Outcome outcome = run(fmt::format("{} {} threads=1 --quiet --json", models, more));
    EXPECT_EQ(outcome.exit_code, 0) << more;
    return json::parse(outcome.out.substr(0, outcome.out.find('\n')))["tokens"].get<int64_t>();
  };
  EXPECT_EQ(tokens(""), tokens("sequence_len=32"));
  EXPECT_LT(tokens("sequence_len=16"), tokens("sequence_len=32"));
  expect_refusal(models + " sequence_len=33", 2,
                 {path("short") + " has only 32 positions", "use sequence_len=32"});
}

TEST_F(SlowConversion, CompareNamesTheModelThatIsNotFinite) {
  fs::copy(path("base"), path("broken"));
  std::string weights = tiny_.text("broken/model.safetensors");
  std::fill(weights.end() - 4, weights.end(), '\xff');  // NaN
  tiny_.file("broken/model.safetensors", weights);
  const auto refused = [&](const std::string& models) {
    expect_refusal(fmt::format("compare {} {} --quiet", models, eval()), 6,
                   {"the loss of " + path("broken") + " is not finite"});
  };
  refused(fmt::format("{0} {0} {1}", path("base"), path("broken")));
  refused(path("broken") + " " + path("base"));
  // What the others are is measured and shown all the same.
  const Outcome outcome =
      run(fmt::format("compare {0} {1} {0} {2} threads=1 --quiet --json output={3} 2>/dev/null",
                      path("base"), path("broken"), eval(), path("page.html")));
  EXPECT_EQ(outcome.exit_code, 6);
  std::vector<json> lines;
  std::istringstream text(outcome.out);
  for (std::string line; std::getline(text, line);) lines.push_back(json::parse(line));
  ASSERT_EQ(lines.size(), 3u);
  for (const char* value : {"loss", "kl", "agreement"}) {
    EXPECT_TRUE(lines[1][value].is_null()) << lines[1];
  }
  EXPECT_EQ(lines[2]["kl"], 0.0);
  EXPECT_NE(tiny_.text("page.html").find("<td>nan</td>"), std::string::npos);
}

TEST_F(SlowConversion, CompareShowsWhatItFoundBeforeItIsStopped) {
  constexpr int kModels = 40;
  std::string command = "compare";
  for (int i = 0; i < kModels; ++i) command += " " + path("base");
  command += fmt::format(" eval_data={} sequence_len=64 threads=1 --quiet --json", tiny_.data());
  Child child(command, path("said"));
  const auto shown = [&] {
    const bool any = fs::exists(path("said")) && fs::file_size(path("said")) > 0;
    return any ? std::ranges::count(tiny_.text("said"), '\n') : 0;
  };
  EXPECT_TRUE(child.until([&] { return shown() >= 2; }));
  child.stop(SIGINT);
  EXPECT_GE(shown(), 2);
  EXPECT_LT(shown(), kModels);
}

// Naming the one with fewer tokens first would not help.
TEST_F(SlowConversion, CompareSaysThatTokensDifferBeforeTheirNumber) {
  fs::copy(path("base"), path("small"));
  fs::copy(golden_model("gqa_tied"), path("other"));
  expect_refusal(fmt::format("compare {} {} {}", path("base"), path("other"), eval()), 5, {});
}

// Every command says what it leaves out of data.
TEST_F(SlowConversion, WhatIsNotReadIsTold) {
  std::string records = TinyRun::record("Say", "it");
  for (int i = 0; i < 9; ++i) records += "{\"id\": 1}\n";
  const std::string bad = tiny_.file("bad.jsonl", records);
  fs::create_directories(path("set/deeper"));
  const std::string book = tiny_.file("set/book.txt", std::string(600, 'a'));
  tiny_.file("set/more.parquet", "PAR1");
  tiny_.file("set/deeper/book.txt", "a");
  const std::string skipped =
      "warning: " + bad + ": skipped 9 of 10 records that cannot be read; the first: " + bad + ":2";
  const std::vector<std::string> left_out = {
      "warning: " + path("set") + ": more.parquet is not read",
      "warning: " + path("set") + ": subdirectories are not read: "};
  const auto warns = [&](const std::string& command, const std::vector<std::string>& warnings) {
    const Outcome outcome =
        run(command + " sequence_len=64 threads=1 on_bad_record=skip" + kErrorsOnly);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out;
    for (const std::string& warning : warnings) {
      EXPECT_NE(outcome.out.find(warning), std::string::npos) << command << "\n" << outcome.out;
    }
  };
  const std::string base = path("base");
  const std::string eval_model = fmt::format("eval model={} data=", base);
  warns(eval_model + bad, {skipped});
  warns(eval_model + path("set"), left_out);
  EXPECT_EQ(answer(eval_model + bad + " on_bad_record=skip sequence_len=64")["records"], 1);
  const std::string compare = fmt::format("compare {0} {0} eval_data=", base);
  warns(compare + bad, {skipped});
  warns(compare + path("set"), left_out);
  const std::string to_gguf =
      fmt::format("export model={} output={} overwrite=true eval_data=", base, path("x.gguf"));
  warns(to_gguf + bad, {skipped});
  warns(to_gguf + path("set"), left_out);
  const std::string quantize =
      fmt::format("quantize model={} group_size=32 output_dir={} --dry-run ", base, path("q"));
  warns(fmt::format("{} data={} eval_data={}", quantize, path("set"), bad),
        {left_out[0], left_out[1], skipped});
  warns(fmt::format("{} data={},{}", quantize, book, bad),
        {"warning: " + book + ", " + bad + ": skipped 9 of 11 records"});
}

}  // namespace
}  // namespace jackscrew
