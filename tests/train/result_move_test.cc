// A result that a killed run has begun to move to the top of its output_dir is moved by the next.
#include "train/result_move.h"

#include <fmt/format.h>

#include <functional>
#include <set>
#include <utility>
#include <vector>

#include "base/directory.h"
#include "conversion/model_output.h"
#include "formats/checkpoint.h"
#include "formats/peft.h"
#include "report/event_log.h"
#include "session/model_files.h"
#include "tests/support/errors.h"
#include "tests/support/tiny_run.h"
#include "train/output_dir.h"

namespace jackscrew {
namespace {

void put(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  write_text_atomic(path, text);
}

std::set<std::string> names_in(const fs::path& directory) {
  std::set<std::string> names;
  for (const fs::directory_entry& entry : entries_of(directory)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

// Of a model in shards, an adapter, and one of its exports.
void put_earlier_result(const fs::path& output) {
  for (const char* name :
       {"config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
        "model.safetensors.index.json", "adapter_config.json", "adapter_model.safetensors",
        "tokenizer.json", "chat_template.jinja", "exports/model-q8_0.gguf"}) {
    put(output / name, "old");
  }
  put(output / "notes.txt", "mine");
}

constexpr const char* kNewFiles[] = {"adapter_config.json", "adapter_model.safetensors",
                                     "tokenizer.json", "additional_chat_templates/tool_use.jinja"};

void expect_new_result(const fs::path& output) {
  EXPECT_EQ(names_in(output),
            (std::set<std::string>{"adapter_config.json", "adapter_model.safetensors",
                                   "additional_chat_templates", "notes.txt", "tokenizer.json"}));
  for (const char* name : kNewFiles) EXPECT_EQ(read_text(output / name), "new") << name;
}

// With the first `moved` of the new files in place, by the order in which they move.
TEST(ResultMove, IsCompletedFromWhereverItWasStopped) {
  for (const bool by_claim : {false, true}) {
    const TinyRun tiny("move_whole");
    const fs::path output = tiny.path("out");
    put_earlier_result(output);
    for (const char* name : kNewFiles) put(whole_result(output) / name, "new");
    if (by_claim) {
      const OutputClaim claim(output);
    } else {
      complete_move(output);
    }
    expect_new_result(output);
  }
  const std::vector<std::string> order = {"additional_chat_templates/tool_use.jinja",
                                          "tokenizer.json", "adapter_model.safetensors",
                                          "adapter_config.json"};
  for (size_t moved = 0; moved <= order.size(); ++moved) {
    const TinyRun tiny("move_rest");
    const fs::path output = tiny.path("out");
    put(output / "notes.txt", "mine");
    fs::create_directories(moving_result(output));
    for (size_t i = 0; i < order.size(); ++i) {
      put((i < moved ? output : moving_result(output)) / order[i], "new");
    }
    complete_move(output);
    expect_new_result(output);
  }
}

// It could not be removed, or the log may lack the run's end: nothing is left to move.
TEST(ResultMove, AnEmptyPlaceIsRemovedWithoutAWord) {
  const TinyRun tiny("move_empty");
  const fs::path output = tiny.path("out");
  put(output / "notes.txt", "mine");
  fs::create_directories(moving_result(output));
  testing::internal::CaptureStderr();
  complete_move(output);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(names_in(output), std::set<std::string>{"notes.txt"});
}

// What is refused leaves neither a model nor an adapter that loads.
TEST(ResultMove, TheDescriptionComesLast) {
  const TinyRun tiny("move_order");
  const fs::path output = tiny.path("out");
  put_earlier_result(output);
  for (const char* name : {"config.json", "model.safetensors"}) {
    put(whole_result(output) / name, "new");
  }
  fs::create_directories(output / "model.safetensors/mine");  // in the way
  const auto move = [&] { move_result(output, false); };
  expect_message(ErrorKind::generic, "cannot move model.safetensors to ", move);
  EXPECT_FALSE(fs::exists(output / "config.json") || fs::exists(output / "adapter_config.json"));
  const std::string way_out = "run the same command again, which moves the rest";
  const std::vector<std::function<void()>> readings = {[&] { open_model(output.string()); },
                                                       [&] { read_peft_adapter(output); }};
  for (const auto& read : readings) {
    const std::string hint = hint_of(error_of(ErrorKind::model, read));
    EXPECT_NE(hint.find(way_out), std::string::npos) << hint;
  }
  // A result that was made since takes the place of the one that was not moved.
  put(whole_result(output) / "model.safetensors", "newer");
  put(whole_result(output) / "config.json", "newer");
  fs::remove_all(output / "model.safetensors");
  complete_move(output);
  EXPECT_EQ(names_in(output),
            (std::set<std::string>{"config.json", "model.safetensors", "notes.txt"}));
  EXPECT_EQ(tiny.text("out/model.safetensors"), "newer");
  EXPECT_EQ(tiny.text("out/config.json"), "newer");
}

TEST(ResultMove, ExportsOfTheSameResultStay) {
  for (const bool keeps : {true, false}) {
    const TinyRun tiny("move_exports");
    const fs::path output = tiny.path("out");
    put_earlier_result(output);
    put(whole_result(output) / "config.json", "new");
    move_result(output, keeps);
    EXPECT_EQ(fs::exists(output / "exports/model-q8_0.gguf"), keeps);
  }
}

// The end of its log and, of its result, all but `moved` files are not where they belong.
void interrupt_move(const TinyRun& tiny, const std::string& output, size_t moved) {
  const std::string log = tiny.text(output + "/train_log.jsonl");
  const size_t end = log.find("\"event\": \"memory\"");
  ASSERT_NE(end, std::string::npos);
  tiny.file(output + "/train_log.jsonl", log.substr(0, log.rfind('\n', end) + 1));
  const fs::path top = tiny.path(output);
  for (const std::string& name : names_in(top)) {
    if (!is_result_file(name)) continue;
    if (moved > 0 && !name.ends_with("config.json") && moved-- > 0) continue;
    fs::create_directories(moving_result(top));
    fs::rename(top / name, moving_result(top) / name);
  }
}

// Both in a first run and in one that replaces the result of another.
TEST(SlowResultMove, TheNextStartFindsTheRunFinished) {
  for (const char* method : {"full", "lora"}) {
    for (const size_t moved : {size_t{0}, size_t{2}}) {
      const TinyRun tiny("move_killed");
      const std::string settings = fmt::format("max_steps=3 report_samples=2 method={} ", method);
      tiny.must_train("out", settings);
      const auto whole = contents(tiny.path("out"));
      interrupt_move(tiny, "out", moved);
      const Outcome again = run(tiny.train("out", settings) + " 2>&1");
      EXPECT_EQ(again.exit_code, 0) << again.out;
      for (const char* words :
           {"was stopped while it moved its result there", "has the result of this recipe, 3 steps",
            "the report lacks 2 answers, only given from "}) {
        EXPECT_NE(again.out.find(words), std::string::npos) << again.out;
      }
      const auto now = contents(tiny.path("out"));
      for (const auto& [name, bytes] : whole) {
        const bool is_text_of_run = name.ends_with("log.jsonl") || name.ends_with("report.html");
        EXPECT_TRUE(is_text_of_run || (now.contains(name) && now.at(name) == bytes)) << name;
      }
      EXPECT_EQ(now.size(), whole.size());
      EXPECT_EQ(tiny.events("out", "end").size(), 1u);
      tiny.must_train("out", settings);
      EXPECT_EQ(tiny.events("out", "end").size(), 1u);
      EXPECT_TRUE(contents(tiny.path("out")) == now);
    }
  }
}

// Whoever begins there next, with whatever settings.
TEST(SlowResultMove, AnotherRunFindsTheResultThatWasMoved) {
  const TinyRun tiny("move_another");
  tiny.must_train("out", "max_steps=2 method=lora");
  interrupt_move(tiny, "out", 1);
  const Outcome refused = run(tiny.train("out", "max_steps=2 method=lora seed=3") + " 2>&1");
  EXPECT_EQ(refused.exit_code, 2) << refused.out;
  EXPECT_NE(refused.out.find("holds the result of a finished run of 2 steps: seed was "),
            std::string::npos)
      << refused.out;
  EXPECT_TRUE(fs::exists(tiny.path("out/adapter_config.json")));
  tiny.must_train("out", "max_steps=2 method=lora seed=3 overwrite=true");
}

// Its log says which evaluation was the best, as its end would have.
TEST(SlowResultMove, TheBestStepIsTold) {
  const TinyRun tiny("move_best");
  const std::string settings =
      "method=full learning_rate=0.05 lr_scheduler_type=constant eval_steps=2 max_steps=60 "
      "load_best_model_at_end=True early_stopping_patience=3 save_total_limit=1 report_samples=1 "
      "eval_data=" +
      tiny.eval_data();
  tiny.must_train("out", settings);
  const auto end = tiny.events("out", "end");
  ASSERT_EQ(end.size(), 1u);
  ASSERT_TRUE(end.front().contains("result_step"));
  interrupt_move(tiny, "out", 0);
  tiny.must_train("out", settings);
  const auto completed = tiny.events("out", "end");
  ASSERT_EQ(completed.size(), 1u);
  for (const char* member : {"step", "result_step", "samples", "output_dir"}) {
    EXPECT_EQ(completed.front().at(member), end.front().at(member)) << member;
  }
}

// The disk had refused the checkpoint of the best, so that the run took the next.
TEST(ResultMove, ABestThatWasNotSavedIsNotToldOf) {
  const TinyRun tiny("move_kept");
  const fs::path output = tiny.path("out");
  std::string log = R"({"event": "start", "step": 0, "total_steps": 6})";
  const std::vector<std::pair<int, double>> evaluations = {
      {1, 3.5}, {3, 3.34}, {5, 3.36}, {6, 3.5}};
  for (const auto& [step, loss] : evaluations) {
    log += fmt::format(
        "\n{{\"event\": \"step\", \"step\": {0}, \"loss\": 3.5}}\n"
        "{{\"event\": \"eval\", \"step\": {0}, \"eval_loss\": {1}}}",
        step, loss);
  }
  put(output / kLogName, log + "\n");
  put(output / kRecipeName, "load_best_model_at_end: true\n");
  for (const int64_t step : {1, 5, 6}) {
    put(checkpoint_path(output, step) / "checkpoint.json", "{}");
  }
  put(moving_result(output) / "config.json", "new");
  complete_move(output);
  const auto end = tiny.events("out", "end");
  ASSERT_EQ(end.size(), 1u);
  EXPECT_EQ(end.front()["step"], 6);
  EXPECT_EQ(end.front().value("result_step", 0), 5);
}

// Files that are there by then have left the place where the result was made.
TEST(SlowResultMove, AResultThatCannotBeMovedSaysWhereItIs) {
  const TinyRun tiny("half_moved");
  const std::string settings = "method=full gradient_accumulation_steps=10 max_steps=60";
  Child child(tiny.train("out", settings), tiny.path("said"));
  ASSERT_TRUE(child.until([&] { return fs::exists(tiny.path("out/train_log.jsonl")); }));
  fs::create_directories(tiny.path("out/model.safetensors/mine"));
  EXPECT_EQ(child.wait(), 1);
  const std::string said = tiny.text("said");
  const fs::path staging = tiny.path("out/.jackscrew-result");
  EXPECT_NE(said.find("of the result, what is not there yet is in " + staging.string()),
            std::string::npos)
      << said;
  EXPECT_TRUE(fs::exists(tiny.path("out/tokenizer.json")));
  EXPECT_FALSE(fs::exists(staging / "tokenizer.json"));
  EXPECT_TRUE(fs::exists(staging / "model.safetensors"));
  // Without it nothing takes what is there for a model.
  EXPECT_FALSE(fs::exists(tiny.path("out/config.json")));
  EXPECT_TRUE(fs::exists(staging / "config.json"));
  fs::remove_all(tiny.path("out/model.safetensors"));
  const Outcome again = run(tiny.train("out", settings) + " 2>&1");
  EXPECT_EQ(again.exit_code, 0) << again.out;
  EXPECT_TRUE(again.out.find("has the result of this recipe, 60 steps") != std::string::npos)
      << again.out;
  tiny.must_train("whole", settings);
  EXPECT_TRUE(tiny.text("whole/model.safetensors") == tiny.text("out/model.safetensors"));
}

}  // namespace
}  // namespace jackscrew
