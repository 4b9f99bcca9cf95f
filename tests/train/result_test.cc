// The result of a run is not lost to another one, through the program.
#include <fmt/format.h>

#include "formats/checkpoint.h"
#include "tests/support/tiny_run.h"
#include "train/output_dir.h"

namespace jackscrew {
namespace {

bool says(const Outcome& outcome, const std::string& words) {
  return outcome.out.find(words) != std::string::npos;
}

// What a command left as it was: every file with its bytes.
#define EXPECT_UNCHANGED(tiny, before) EXPECT_TRUE(contents((tiny).path("out")) == (before))

TEST(SlowResult, AFinishedRunSaysSo) {
  const TinyRun tiny("finished");
  const std::string settings = "max_steps=4 method=full ";
  tiny.must_train("out", settings);
  const auto before = contents(tiny.path("out"));
  for (const char* more :
       {"", "threads=2 logging_steps=3", "resume=never", "save_steps=2", "product=f32"}) {
    const Outcome again = run(tiny.train("out", settings + more) + " 2>&1");
    EXPECT_EQ(again.exit_code, 0) << again.out;
    EXPECT_TRUE(says(again, "has the result of this recipe, 4 steps; nothing to do")) << again.out;
    EXPECT_TRUE(says(again, "to start over and replace it, overwrite=true")) << again.out;
    // It left no checkpoint.
    EXPECT_TRUE(says(again, "with model=" + tiny.path("out").string())) << again.out;
    EXPECT_UNCHANGED(tiny, before);
  }
  // Its own recipe is the same, too.
  const Outcome by_recipe = run("train " + tiny.path("out/recipe.yaml").string() + " 2>&1");
  EXPECT_EQ(by_recipe.exit_code, 0) << by_recipe.out;
  EXPECT_TRUE(says(by_recipe, "nothing to do")) << by_recipe.out;
  EXPECT_UNCHANGED(tiny, before);
}

// Samples are answered after the result is written, which may take minutes.
TEST(SlowResult, ARunKilledWhileItAnswersSamplesIsFinished) {
  const TinyRun tiny("answering");
  const std::string settings = "max_steps=2 method=full report_samples=2 ";
  tiny.must_train("out", settings);
  const std::string log = tiny.text("out/train_log.jsonl");
  const size_t end = log.find("\"event\": \"end\"");
  ASSERT_NE(end, std::string::npos);
  const std::string answered = log.substr(log.find('\n', end) + 1);
  EXPECT_NE(answered.find("\"event\": \"sample\""), std::string::npos);
  for (const bool with_some : {true, false}) {
    tiny.file("out/train_log.jsonl",
              log.substr(0, log.size() - answered.size()) +
                  (with_some ? answered.substr(0, answered.find('\n') + 1) : std::string()));
    fs::remove(tiny.path("out/report.html"));
    const Outcome again = run(tiny.train("out", settings) + " 2>&1");
    EXPECT_EQ(again.exit_code, 0) << again.out;
    EXPECT_TRUE(says(again, "has the result of this recipe, 2 steps; nothing to do")) << again.out;
    // Nothing was saved from which they could be given.
    EXPECT_TRUE(says(again, fmt::format("the report lacks {}, only given from {}, which is not "
                                        "there; a run with save_steps=N keeps it",
                                        with_some ? "1 answer" : "2 answers",
                                        tiny.path("out/checkpoint-2").string())))
        << again.out;
    EXPECT_TRUE(fs::exists(tiny.path("out/report.html")));
  }
}

TEST(SlowResult, AnotherRecipeReplacesNothing) {
  const TinyRun tiny("kept_result");
  tiny.must_train("out", "max_steps=4 method=full");
  const auto before = contents(tiny.path("out"));
  const Outcome other = run(tiny.train("out", "max_steps=4 method=lora") + " 2>&1");
  EXPECT_EQ(other.exit_code, 2) << other.out;
  EXPECT_TRUE(says(other, "learner was full then and is lora now")) << other.out;
  EXPECT_UNCHANGED(tiny, before);
  const Outcome product = run(tiny.train("out", "max_steps=4 method=full product=int4") + " 2>&1");
  EXPECT_EQ(product.exit_code, 2) << product.out;
  EXPECT_TRUE(says(product, "product was auto then and is int4 now")) << product.out;
  EXPECT_UNCHANGED(tiny, before);
  // Without a checkpoint of its end it would begin anew.
  const Outcome longer = run(tiny.train("out", "max_steps=6 method=full") + " 2>&1");
  EXPECT_EQ(longer.exit_code, 2) << longer.out;
  EXPECT_TRUE(says(longer, "no checkpoint-4 to continue from")) << longer.out;
  EXPECT_UNCHANGED(tiny, before);
  tiny.must_train("out", "max_steps=4 method=lora overwrite=true");
  EXPECT_TRUE(fs::exists(tiny.path("out/adapter_model.safetensors")));
  EXPECT_FALSE(fs::exists(tiny.path("out/model.safetensors")));
}

TEST(SlowResult, AFinishedRunGoesOnToMoreSteps) {
  const TinyRun tiny("more_steps");
  const std::string settings = "save_steps=2 lr_scheduler_type=constant warmup_steps=0 max_steps=";
  tiny.must_train("whole", settings + "8");
  tiny.must_train("out", settings + "4");
  const Outcome again = run(tiny.train("out", settings + "4") + " 2>&1");
  EXPECT_TRUE(says(again, "to continue, give a larger max_steps")) << again.out;
  tiny.must_train("out", settings + "8");
  EXPECT_TRUE(tiny.text("whole/adapter_model.safetensors") ==
              tiny.text("out/adapter_model.safetensors"));
  // From a checkpoint before its end some steps would be done anew: only where told.
  fs::remove_all(tiny.path("out/checkpoint-8"));
  EXPECT_EQ(run(tiny.train("out", settings + "10") + " 2>&1").exit_code, 2);
  tiny.must_train("out",
                  settings + "10 overwrite=true resume=" + tiny.path("out/checkpoint-6").string());
  EXPECT_EQ(tiny.losses("out").size(), 10u);
}

// Whoever allowed a run to replace a result need not do so again when it goes on.
TEST(SlowResult, ARunThatReplacesGoesOn) {
  const TinyRun tiny("replacing");
  const std::string settings = "method=full seed=3 gradient_accumulation_steps=10 max_steps=60 ";
  const auto child = halted_run(tiny.path("out"), "\"step\": 3,", [&] {
    fs::remove_all(tiny.path("out"));
    tiny.must_train("out", "max_steps=2 method=full");
    return std::make_unique<Child>(tiny.train("out", settings + "overwrite=true"));
  });
  ASSERT_EQ(child->stop(SIGINT), 130);
  EXPECT_EQ(tiny.events("out", "start").size(), 1u);
  // The result is still that of the first run, and the leave was given for this one alone.
  const auto before = contents(tiny.path("out"));
  const Outcome other = run(tiny.train("out", settings + "seed=4") + " 2>&1");
  EXPECT_EQ(other.exit_code, 2) << other.out;
  EXPECT_TRUE(says(other, "holds a result, which this run would replace, and ")) << other.out;
  EXPECT_TRUE(says(other, "seed was 3 then and is 4 now")) << other.out;
  EXPECT_TRUE(says(other, " continues from there; to continue the run, change nothing"))
      << other.out;
  EXPECT_UNCHANGED(tiny, before);
  const Outcome lora = run(tiny.train("out", settings + "method=lora") + " 2>&1");
  EXPECT_TRUE(says(lora, "replaces it; to continue the run, change nothing")) << lora.out;
  EXPECT_UNCHANGED(tiny, before);
  tiny.must_train("out", settings);
  tiny.must_train("whole", settings);
  EXPECT_TRUE(tiny.text("whole/model.safetensors") == tiny.text("out/model.safetensors"));
}

// What a stopped run leaves elsewhere where its disk is full goes on without further leave; what is
// of another run does not.
TEST(SlowResult, ARunGoesOnFromACheckpointOfElsewhere) {
  const TinyRun tiny("left_elsewhere");
  const std::string settings =
      "method=full lr_scheduler_type=constant warmup_steps=0 gradient_accumulation_steps=10 "
      "save_steps=2 report_samples=0 ";
  tiny.must_train("out", settings + "max_steps=2");
  const std::string longer = settings + "max_steps=150 ";
  const auto stopped = [&](const std::string& output, const std::string& more) {
    Child child(tiny.train(output, longer + more));
    const fs::path log = tiny.path(output + "/train_log.jsonl");
    EXPECT_TRUE(child.until([&] {
      return fs::exists(log) && read_text(log).find("\"step\": 5,") != std::string::npos;
    }));
    EXPECT_EQ(child.stop(SIGINT), 130);
    return list_checkpoints(tiny.path(output)).back();
  };
  const fs::path newest = stopped("out", "");
  const fs::path left = tiny.path("elsewhere") / newest.filename();
  fs::create_directories(left.parent_path());
  fs::rename(newest, left);
  const std::string other = stopped("other", "seed=4").string();
  const auto before = contents(tiny.path("out"));
  for (const std::string& refused : {longer + "resume=" + other, longer + "seed=4 resume=" + other,
                                     longer + "seed=4 resume=" + left.string()}) {
    const Outcome outcome = run(tiny.train("out", refused) + " 2>&1");
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
    EXPECT_TRUE(says(outcome, "holds a result, which this run would replace")) << outcome.out;
    EXPECT_TRUE(says(outcome, "give another output_dir; overwrite=true replaces it"))
        << outcome.out;
  }
  EXPECT_UNCHANGED(tiny, before);
  tiny.must_train("out", longer + "resume=" + left.string());
  tiny.must_train("whole", longer);
  EXPECT_TRUE(tiny.text("whole/model.safetensors") == tiny.text("out/model.safetensors"));
}

// What is said leads on: with overwrite=true such a run would begin at the same checkpoint.
TEST(SlowResult, ACheckpointThatDoesNotFitIsLeftOut) {
  const TinyRun tiny("does_not_fit");
  tiny.must_train("out", "method=lora max_steps=4 save_steps=2 report_samples=0");
  const std::string from = " resume=" + tiny.path("out/checkpoint-4").string();
  for (const auto& [change, hint] :
       {std::pair("max_steps=2", "hint: raise max_steps, or leave resume out"),
        std::pair("max_steps=2 lora_rank=3", "is 3 now), or leave resume out"),
        std::pair("lora_rank=3", "is 3 now; undo that, or leave resume out")}) {
    const Outcome outcome =
        run(tiny.train("other", std::string("method=lora report_samples=0 ") + change + from) +
            " 2>&1");
    EXPECT_NE(outcome.exit_code, 0) << outcome.out;
    EXPECT_TRUE(says(outcome, hint)) << outcome.out;
  }
}

// Evaluations decide what becomes the result where it is the best; epochs are not read beside
// max_steps.
TEST(SlowResult, ARecipeIsTheSameWhereItsResultIs) {
  const TinyRun tiny("same_recipe");
  const std::string settings =
      "method=full max_steps=4 load_best_model_at_end=true report_samples=0 eval_data=" +
      tiny.eval_data() + " ";
  tiny.must_train("out", settings + "eval_steps=2 num_train_epochs=2");
  const auto before = contents(tiny.path("out"));
  const Outcome again =
      run(tiny.train("out", settings + "eval_steps=2 num_train_epochs=5") + " 2>&1");
  EXPECT_EQ(again.exit_code, 0) << again.out;
  EXPECT_TRUE(says(again, "nothing to do")) << again.out;
  const Outcome other = run(tiny.train("out", settings + "eval_steps=1") + " 2>&1");
  EXPECT_EQ(other.exit_code, 2) << other.out;
  EXPECT_TRUE(says(other, "eval_steps was 2 then and is 1 now")) << other.out;
  EXPECT_UNCHANGED(tiny, before);
}

// What a stopped run says is what continues it: the settings that made it begin elsewhere are left
// out, as they would make the next one begin there again.
TEST(SlowResult, AStopSaysWhichSettingsToLeaveOut) {
  const TinyRun tiny("again");
  const std::string settings =
      "method=full lr_scheduler_type=constant warmup_steps=0 logging_steps=1 report_samples=0 ";
  const std::string endless = settings + "max_steps=1000000 ";  // a stop comes before their end
  const auto steps = [&] {
    const auto events = read_events(tiny.path("out/train_log.jsonl"));
    return std::ranges::count(events, "step", [](const auto& event) { return event["event"]; });
  };
  const auto stopped = [&](const std::string& more) {
    const auto before = steps();
    Child child(tiny.train("out", endless + more), tiny.path("said"));
    EXPECT_TRUE(child.until([&] { return steps() > before + 2; }));
    EXPECT_EQ(child.stop(SIGINT), 130);
    return tiny.text("said");
  };
  const auto says = [&](const std::string& said, const std::string& without) {
    const std::string hint = "hint: run the same command again" + without + " to continue from ";
    EXPECT_NE(said.find(hint), std::string::npos) << said;
    const std::vector<fs::path> left = list_checkpoints(tiny.path("out"));
    ASSERT_FALSE(left.empty());
    EXPECT_NE(said.find(hint + left.back().string()), std::string::npos) << said;
  };
  says(stopped("resume=never"), " without resume=never");
  says(stopped(""), "");
  const std::string from = list_checkpoints(tiny.path("out")).back().string();
  says(stopped("overwrite=true resume=" + from), " without resume=" + from + " overwrite=true");
  const std::string to_its_end = fmt::format("{}max_steps={}", settings, steps() + 5);
  tiny.must_train("out", to_its_end);
  tiny.must_train("whole", to_its_end);
  EXPECT_TRUE(tiny.text("whole/model.safetensors") == tiny.text("out/model.safetensors"));
}

// A run that starts over leaves no checkpoint of the one that it replaces, for the next would go on
// from it.
TEST(SlowResult, ARunThatStartsOverForgetsEarlierCheckpoints) {
  const TinyRun tiny("anew");
  const std::string settings = "method=full lr_scheduler_type=constant warmup_steps=0 max_steps=4 ";
  tiny.must_train("out", settings + "save_steps=2 save_total_limit=0");
  EXPECT_TRUE(fs::exists(tiny.path("out/checkpoint-2")));
  tiny.must_train("out", settings + "seed=3 overwrite=true");
  EXPECT_FALSE(fs::exists(tiny.path("out/checkpoint-2")));
  EXPECT_FALSE(fs::exists(tiny.path("out/checkpoint-4")));
  const auto before = contents(tiny.path("out"));
  const Outcome longer = run(tiny.train("out", settings + "seed=3 max_steps=6") + " 2>&1");
  EXPECT_EQ(longer.exit_code, 2) << longer.out;
  EXPECT_TRUE(says(longer, "no checkpoint-4 to continue from")) << longer.out;
  EXPECT_UNCHANGED(tiny, before);
}

TEST(SlowResult, ARunThatLostPatienceSaysHowToGoOn) {
  const TinyRun tiny("patience");
  const std::string settings =
      "method=full learning_rate=0.05 max_steps=40 eval_steps=1 early_stopping_patience=1 "
      "save_steps=1 eval_data=" +
      tiny.eval_data();
  tiny.must_train("out", settings);
  ASSERT_LT(tiny.events("out").back()["step"], 40);
  const Outcome again = run(tiny.train("out", settings) + " 2>&1");
  EXPECT_EQ(again.exit_code, 0) << again.out;
  EXPECT_TRUE(says(again, "to continue, give a larger early_stopping_patience")) << again.out;
  // Steps that are left are no leave to take another recipe for them.
  const auto before = contents(tiny.path("out"));
  const Outcome other = run(tiny.train("out", settings + " learning_rate=0.02") + " 2>&1");
  EXPECT_EQ(other.exit_code, 2) << other.out;
  EXPECT_TRUE(says(other, "learning_rate was 0.05 then and is 0.02 now")) << other.out;
  EXPECT_UNCHANGED(tiny, before);
  EXPECT_TRUE(says(other,
                   "; to continue the run, change nothing but give a larger max_steps or "
                   "num_train_epochs or, where it stopped early, early_stopping_patience"))
      << other.out;
  // More steps are of no use to it.
  const Outcome longer = run(tiny.train("out", settings + " max_steps=60") + " 2>&1");
  EXPECT_EQ(longer.exit_code, 2) << longer.out;
  EXPECT_TRUE(says(longer, "would stop again after")) << longer.out;
  EXPECT_TRUE(says(longer, "hint: give a larger early_stopping_patience")) << longer.out;
  EXPECT_UNCHANGED(tiny, before);
  const size_t steps = tiny.losses("out").size();
  tiny.must_train("out", settings + " early_stopping_patience=2");
  EXPECT_GT(tiny.losses("out").size(), steps);
}

// Neither the step nor anything else of checkpoint.json is believed that was not saved so.
TEST(SlowResult, CheckpointJsonIsUnderAChecksum) {
  const TinyRun tiny("manifest");
  const std::string settings =
      "max_steps=4 save_steps=2 master=mmap method=rotary active_params=50% ";
  tiny.must_train("out", settings);
  tiny.lose_result("out");
  const std::string info = "out/checkpoint-4/checkpoint.json";
  const std::string text = tiny.text(info);
  const auto before = contents(tiny.path("out"));
  const std::pair<const char*, const char*> kEdits[] = {
      {"\"step\": 4", "\"step\": 5"},     {"\"step\": 4", "\"step\": -5"},
      {"\"step\": 4", "\"step\":  4"},    {"\"isa\": \"", "\"isa\": \"x"},
      {"00000001.bin", "00000002.bin"},   {"\"state_bytes\": ", "\"state_bytes\": 1"},
      {"\"format\": 2", "\"format\": 1"}, {"}, \"crc32c\": ", "}, \"crc32c\": 1"},
  };
  for (const auto& [from, to] : kEdits) {
    std::string edited = text;
    ASSERT_NE(edited.find(from), std::string::npos) << text;
    edited.replace(edited.find(from), std::string(from).size(), to);
    tiny.file(info, edited);
    const Outcome outcome = run(tiny.train("out", settings) + " 2>&1");
    EXPECT_EQ(outcome.exit_code, 5) << to << outcome.out;
    EXPECT_TRUE(says(outcome, "checkpoint-4: checkpoint.json is corrupt: checksum mismatch"))
        << outcome.out;
    EXPECT_TRUE(says(outcome, "resume=" + tiny.path("out/checkpoint-2").string())) << outcome.out;
    tiny.file(info, text);
    EXPECT_UNCHANGED(tiny, before);
  }
  // Version 0.1.0 wrote none.
  std::string old = text.substr(0, text.rfind(", \"crc32c\"")) + "}\n";
  old.replace(old.find("\"format\": 2"), 11, "\"format\": 1");
  tiny.file(info, old);
  tiny.must_train("out", settings);
}

// A newest checkpoint that cannot be used does not make the run begin at 0, nor at an older one.
TEST(SlowResult, AnOlderCheckpointIsTakenWhereTold) {
  const TinyRun tiny("older");
  const std::string settings = "max_steps=6 save_steps=2 save_total_limit=0 ";
  tiny.must_train("whole", settings);
  tiny.must_train("out", settings);
  tiny.lose_result("out");
  fs::remove(tiny.path("out/checkpoint-6/checkpoint.json"));
  fs::remove(tiny.path("out/checkpoint-4/state.safetensors"));
  const auto before = contents(tiny.path("out"));
  const Outcome refused = run(tiny.train("out", settings) + " 2>&1");
  EXPECT_EQ(refused.exit_code, 5) << refused.out;
  EXPECT_TRUE(says(refused, tiny.path("out/checkpoint-6").string() + " is not a checkpoint"))
      << refused.out;
  const std::string older = "resume=" + tiny.path("out/checkpoint-2").string();
  EXPECT_TRUE(says(refused, older)) << refused.out;
  EXPECT_UNCHANGED(tiny, before);
  tiny.must_train("out", settings + older);
  EXPECT_TRUE(tiny.text("whole/adapter_model.safetensors") ==
              tiny.text("out/adapter_model.safetensors"));
  EXPECT_EQ(tiny.losses("out"), tiny.losses("whole"));
}

// By whatever path the model and the directory are named.
TEST(SlowResult, NothingIsWrittenBesideTheModelsOwnFiles) {
  const TinyRun tiny("beside");
  tiny.must_train("model", "method=full max_steps=1");
  fs::remove(tiny.path("model/train_log.jsonl"));
  fs::create_directories(tiny.path("elsewhere"));
  fs::copy(tiny.config(), tiny.path("elsewhere/config.json"));
  fs::create_directories(tiny.path("links"));
  fs::create_directory_symlink(tiny.path("model"), tiny.path("links/model"));
  fs::create_symlink(tiny.path("elsewhere/config.json"), tiny.path("links/config.json"));
  const std::string in_place = "cd " + tiny.path("elsewhere").string() + " && ";
  const auto refused = [&](const std::string& model, const std::string& output) {
    const Outcome outcome =
        run_shell(in_place + kProgram + " train " +
                  tiny.settings("max_steps=1 model=" + model + " output_dir=" + output) + " 2>&1");
    EXPECT_EQ(outcome.exit_code, 2) << model << " " << output << ": " << outcome.out;
    EXPECT_TRUE(says(outcome, "is the model itself") || says(outcome, "is read from"))
        << outcome.out;
  };
  const auto before = contents(tiny.path("model"));
  const auto place = [&](const std::string& name) { return tiny.path(name).string(); };
  for (const std::string& file : {std::string("config.json"), std::string("./config.json"),
                                  place("elsewhere/config.json"), place("links/config.json")}) {
    refused(file, ".");
    refused(file, place("elsewhere"));
    refused(file, "../links/../elsewhere/.");
  }
  refused(place("links/config.json"), place("links"));
  refused(place("model") + " init=pretrained", place("links/model"));
  refused(place("links/model") + " init=pretrained", "../model/");
  EXPECT_TRUE(contents(tiny.path("model")) == before);
  EXPECT_EQ(contents(tiny.path("elsewhere")).size(), 1u);
}

TEST(SlowResult, TheOriginalOfAModelIsNotReplaced) {
  const TinyRun tiny("original");
  tiny.must_train("model", "method=full max_steps=1");
  const auto before = contents(tiny.path("model"));
  fs::create_directories(tiny.path("quantised"));
  fs::copy(tiny.path("model"), tiny.path("quantised"), fs::copy_options::recursive);
  const std::string original = tiny.path("model").string();
  const Outcome outcome =
      run(tiny.train("model",
                     "init=pretrained method=lora max_steps=1 lora_init=loftq overwrite=true "
                     "tokenizer=auto model=" +
                         tiny.path("quantised").string() + " lora_original_model=" + original) +
          " 2>&1");
  EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
  EXPECT_TRUE(says(outcome, "is the original model itself")) << outcome.out;
  EXPECT_TRUE(contents(tiny.path("model")) == before);
}

// As a killed run leaves it, of this version or of an earlier one.
TEST(OutputClaim, RemovesAResultThatWasHalfWritten) {
  const TinyRun tiny("half_written");
  const fs::path output = tiny.path("out");
  const fs::path half = whole_result(output).string() + kTemporarySuffix;
  const fs::path earlier_half = moving_result(output).string() + kTemporarySuffix;
  for (const fs::path& directory : {half, earlier_half}) {
    fs::create_directories(directory);
    write_text_atomic(directory / "model.safetensors", "bytes");
  }
  tiny.file("out/report.html.jackscrew-part", "half");
  const OutputClaim claim(output);
  EXPECT_TRUE(fs::is_empty(output));
}

// Its evaluations and its best checkpoint are not those of a run that comes from elsewhere.
TEST(SlowResult, ALogOfAnotherRunIsNotGoneOnWith) {
  const TinyRun tiny("foreign_log");
  const std::string settings =
      "method=lora save_steps=2 save_total_limit=0 logging_steps=1 report_samples=0 eval_steps=2 "
      "load_best_model_at_end=true eval_data=" +
      tiny.eval_data();
  const std::string slow = settings + " max_steps=6 learning_rate=1e-5 ";
  tiny.must_train("from", slow + "max_steps=4");
  tiny.must_train("out", settings + " max_steps=4 learning_rate=3e-3");
  tiny.lose_result("out");
  const auto before = contents(tiny.path("out"));
  const std::string resume = "resume=" + tiny.path("from/checkpoint-4").string() + " ";
  const Outcome refused = run(tiny.train("out", slow + resume) + kErrorsOnly);
  EXPECT_EQ(refused.exit_code, 2) << refused.out;
  EXPECT_NE(refused.out.find("learning_rate was 3e-3 then and is 1e-5 now"), std::string::npos)
      << refused.out;
  EXPECT_TRUE(contents(tiny.path("out")) == before);
  tiny.must_train("out", slow + resume + "overwrite=true");
  EXPECT_EQ(tiny.losses("out").size(), 2u);
  EXPECT_EQ(tiny.events("out", "eval").front()["step"], 4);
  EXPECT_FALSE(fs::exists(tiny.path("out/checkpoint-2")));
  // What a run could only save elsewhere is its own.
  fs::create_directories(tiny.path("rescue"));
  fs::rename(tiny.path("out/checkpoint-4"), tiny.path("rescue/checkpoint-4"));
  fs::remove_all(tiny.path("out/checkpoint-6"));
  tiny.lose_result("out");
  tiny.must_train("out", slow + "resume=" + tiny.path("rescue/checkpoint-4").string());
  EXPECT_EQ(tiny.losses("out").size(), 2u);
}

// What a group has changed since it joined, its master knows only in the run that it joined in.
TEST(SlowResult, NoChangeOfAGroupIsMadeUp) {
  const TinyRun tiny("changes");
  const std::string settings =
      "method=rotary storage=int8 active_params=50% steps_per_rotation=1 max_steps=8 save_steps=4 "
      "save_total_limit=0 report_samples=0 logging_steps=1 learning_rate=1e-3";
  tiny.must_train("out", settings);
  const auto whole = tiny.events("out", "rotate");
  fs::remove_all(tiny.path("out/checkpoint-8"));
  tiny.lose_result("out");
  tiny.must_train("out", settings);
  const auto resumed = tiny.events("out", "rotate");
  ASSERT_EQ(whole.size(), resumed.size());
  size_t known = 0, unknown = 0;
  for (size_t i = 0; i < whole.size(); ++i) {
    const nlohmann::json& changes = whole[i]["squared_change"];
    for (const auto& [group, change] : resumed[i]["squared_change"].items()) {
      EXPECT_EQ(change, changes.at(group)) << i << " " << group;
      ++known;
    }
    unknown += changes.size() - resumed[i]["squared_change"].size();
  }
  EXPECT_GT(known, unknown);
  EXPECT_GT(unknown, 0u);
}

}  // namespace
}  // namespace jackscrew
