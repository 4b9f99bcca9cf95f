// Runs that end early, go back to their best evaluation, and save when they are asked to.
#include "train/run_watch.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "formats/checkpoint.h"
#include "report/event_log.h"
#include "tests/support/errors.h"
#include "tests/support/test_ops.h"
#include "tests/support/tiny_run.h"
#include "train/saving.h"

namespace jackscrew {
namespace {

TEST(RunWatch, WaitsForABetterEvaluation) {
  RunWatch watch({.early_stopping_patience = 2});
  EXPECT_FALSE(watch.best());
  watch.evaluated(0, 1.0);  // before training: what is trained need not be better at once
  watch.evaluated(10, 3.0);
  watch.evaluated(20, 2.0);
  watch.evaluated(30, 2.0);
  EXPECT_FALSE(watch.out_of_patience());
  EXPECT_EQ(watch.best()->step, 20);
  watch.evaluated(40, 1.9);
  watch.evaluated(50, 2.5);
  EXPECT_FALSE(watch.out_of_patience());
  watch.evaluated(60, 2.4);
  EXPECT_TRUE(watch.out_of_patience());
  EXPECT_EQ(watch.why_stopped(),
            "2 evaluations without improvement: the best is 1.9000 at step 40");
  EXPECT_EQ(watch.why_stopped(false),
            watch.why_stopped() + "; a larger early_stopping_patience trains on");
  EXPECT_EQ(watch.best()->step, 40);
  EXPECT_EQ(watch.best()->loss, 1.9);
  EXPECT_EQ(
      watch.nothing_gained(),
      "no evaluation was better than the model before training (1.0000): the best is 1.9000 at "
      "step 40; lower learning_rate");
  watch.evaluated(70, 0.5);
  EXPECT_EQ(watch.best_text(), "0.5000 at step 70");
  EXPECT_EQ(watch.nothing_gained(), "");
}

// A checkpoint of step 70 with such a state.
fs::path watch_checkpoint(const TinyRun& tiny, const std::string& state) {
  CheckpointInfo info{70, "1.2.3", "x86-64-v3", "f32", "data"};
  info.watch = state;
  fs::create_directories(tiny.path("run"));
  float value = 0;
  const StateSource states = [&](const StateVisitor& visit) {
    visit({"w", StateRole::parameter, Tensor(&value, DType::f32, {1, 1}), true});
  };
  return write_checkpoint(tiny.path("run"), info, "", states, *make_test_ops());
}

// One that the disk has refused is none to go back to.
TEST(RunWatch, WhatIsKeptIsTheBestThatWasSaved) {
  const TinyRun tiny("watch_kept");
  RunWatch watch({.early_stopping_patience = 2});
  const auto evaluate = [&](int64_t step, double loss, bool is_saved) {
    watch.evaluated(step, loss);
    const bool beats = watch.beats_kept(step);
    EXPECT_FALSE(watch.beats_kept(step + 1));
    if (is_saved) watch.saved(step);
    return beats;
  };
  evaluate(0, 1.0, true);
  EXPECT_FALSE(watch.kept());
  EXPECT_TRUE(evaluate(1, 3.50, true));
  EXPECT_EQ(watch.best_not_kept(1), "");
  EXPECT_TRUE(evaluate(3, 3.34, false));
  EXPECT_EQ(watch.kept()->step, 1);
  EXPECT_EQ(watch.kept_text(), "the best evaluation that has a checkpoint, 3.5000 at step 1");
  EXPECT_EQ(watch.best_not_kept(3), "");  // its states are still there
  EXPECT_EQ(watch.result_step(3), 3);
  EXPECT_TRUE(evaluate(4, 3.39, false));
  EXPECT_TRUE(evaluate(5, 3.36, true));
  EXPECT_FALSE(evaluate(6, 3.48, true));
  EXPECT_EQ(watch.kept()->text(), "3.3600 at step 5");
  EXPECT_EQ(watch.best_text(), "3.3400 at step 3");
  EXPECT_EQ(watch.best_not_kept(6),
            "the best evaluation, 3.3400 at step 3, has no checkpoint: the result is that of "
            "another step");
  EXPECT_EQ(watch.result_step(6), 5);
  EXPECT_TRUE(watch.out_of_patience());  // what is saved does not change it
  // A run that goes on finds the best where it is.
  RunWatch next({});
  next.evaluated(20, 1.7);
  next.evaluated(70, 1.6);
  next.find_kept(tiny.path("run"));
  EXPECT_FALSE(next.kept());
  watch_checkpoint(tiny, "");
  next.find_kept(tiny.path("run"));
  EXPECT_EQ(next.kept()->step, 70);
  EXPECT_EQ(next.kept_text(), "the best evaluation, 1.6000 at step 70");
  // Or the next best, as its log says.
  tiny.file("run/train_log.jsonl", R"({"event": "eval", "step": 20, "eval_loss": 1.5}
{"event": "eval", "step": 70, "eval_loss": 1.7}
{"event": "eval", "step": 90, "eval_loss": 1.9}
)");
  RunWatch later({});
  later.evaluated(20, 1.5);
  later.evaluated(90, 1.9);
  later.find_kept(tiny.path("run"));
  ASSERT_TRUE(later.kept());
  EXPECT_EQ(later.kept()->step, 70);
  later.evaluated(100, 1.8);
  EXPECT_FALSE(later.beats_kept(100));
  EXPECT_EQ(later.result_step(100), 70);
}

TEST(RunWatch, ARepeatedEvaluationCountsOnce) {
  const TinyRun tiny("watch_repeated");
  std::string log;
  const std::vector<std::pair<int, double>> evaluations = {{2, 3.0}, {4, 2.0}, {4, 2.0}, {6, 2.5}};
  for (const auto& [step, loss] : evaluations) {
    log += nlohmann::json{{"event", "eval"}, {"step", step}, {"eval_loss", loss}}.dump() + "\n";
  }
  RunWatch watch({.early_stopping_patience = 2});
  fs::create_directories(tiny.path("out"));
  tiny.file("out/train_log.jsonl", log);
  watch.replay(tiny.path("out"));
  EXPECT_FALSE(watch.out_of_patience());
  EXPECT_EQ(watch.last_evaluated(), 6);
  EXPECT_EQ(watch.best()->step, 4);
}

TEST(RunWatch, BarksWhenTheLossStaysHigh) {
  RunWatch watch({.loss_watchdog_threshold = 5.0, .loss_watchdog_patience = 2});
  for (const double loss : {6.0, 4.0, 7.0}) watch.logged(loss);
  EXPECT_FALSE(watch.losses_too_high());
  watch.logged(5.5);
  EXPECT_TRUE(watch.losses_too_high());
  RunWatch off({});
  for (int i = 0; i < 10; ++i) off.logged(1e9);
  EXPECT_FALSE(off.losses_too_high());
}

TEST(RunWatch, GoesOnFromACheckpoint) {
  const TinyRun tiny("watch_state");
  const WatchSettings settings{2, 5.0, 2};
  RunWatch watch(settings);
  watch.evaluated(0, 1.0);
  watch.evaluated(20, 1.7);
  watch.evaluated(70, 2.0 / 3.0 + 1.2);
  watch.logged(6.0);
  const std::string state = watch.state("text");
  EXPECT_LE(std::ssize(state), RunWatch::longest_state());
  const fs::path checkpoint = watch_checkpoint(tiny, state);
  RunWatch same(settings);
  same.evaluated(10, 0.1);  // of which the checkpoint knows nothing
  EXPECT_TRUE(same.restore(checkpoint, "text"));
  EXPECT_EQ(same.state("text"), state);
  EXPECT_EQ(same.best()->step, 20);
  same.logged(6.0);
  EXPECT_TRUE(same.losses_too_high());
  EXPECT_FALSE(same.out_of_patience());
  same.evaluated(80, 1.7);
  EXPECT_TRUE(same.out_of_patience());
  EXPECT_EQ(same.nothing_gained(),
            "no evaluation was better than the model before training "
            "(1.0000): the best is 1.7000 at step 20; lower learning_rate");
  // Other data are held out: the losses of the steps still count.
  RunWatch other(settings);
  EXPECT_TRUE(other.restore(checkpoint, "another"));
  EXPECT_FALSE(other.best());
  EXPECT_EQ(other.last_evaluated(), -1);
  other.logged(6.0);
  EXPECT_TRUE(other.losses_too_high());
  RunWatch lower({2, 4.0, 2});
  EXPECT_TRUE(lower.restore(checkpoint, "text"));
  lower.logged(6.0);
  EXPECT_FALSE(lower.losses_too_high());
  // What an earlier version wrote.
  EXPECT_FALSE(same.restore(watch_checkpoint(tiny, ""), "text"));
  EXPECT_EQ(same.best()->step, 20);
}

TEST(RunWatch, RefusesAStateThatCannotBeTrue) {
  const TinyRun tiny("watch_refusals");
  RunWatch watch({});
  watch.evaluated(20, 1.7);
  const auto refused = [&](const char* key, const nlohmann::json& value, const char* why) {
    auto state = nlohmann::json::parse(watch.state("text"));
    state[key] = value;
    const fs::path checkpoint = watch_checkpoint(tiny, state.dump());
    expect_message(ErrorKind::model, checkpoint.string() + ": watch: " + why,
                   [&] { RunWatch(WatchSettings()).restore(checkpoint, "text"); });
  };
  refused("last_evaluated", 71, "last_evaluated is 71, which is out of range");
  refused("last_evaluated", -2, "last_evaluated is -2, which is out of range");
  refused("best_step", 0, "best_step is 0, which is out of range");
  refused("best_loss", "low", "\"best_loss\" is not a number");
  refused("best_loss", nullptr, "\"best_loss\" is missing");
  refused("worse_evaluations", -1, "worse_evaluations is -1, which is out of range");
  refused("high_losses", 0.5, "\"high_losses\" is not an integer");
  refused("held_out", nullptr, "\"held_out\" is missing");
}

// A rate at which the model becomes worse after a few steps.
constexpr const char* kWorsens =
    " learning_rate=0.05 lr_scheduler_type=constant eval_steps=2 max_steps=60 ";

class RunWatchMethods : public ::testing::TestWithParam<const char*> {
 protected:
  static std::string settings(const TinyRun& tiny) {
    return std::string(GetParam()) + kWorsens + "eval_data=" + tiny.eval_data() + " ";
  }
  // {step, loss} of every evaluation after a step.
  static std::vector<std::pair<int64_t, double>> evaluations(const TinyRun& tiny) {
    std::vector<std::pair<int64_t, double>> out;
    for (const auto& event : tiny.events("out", "eval")) {
      if (event["step"] > 0) out.emplace_back(event["step"], event["eval_loss"]);
    }
    return out;
  }
};

TEST_P(RunWatchMethods, TheResultIsThatOfTheBestEvaluation) {
  const TinyRun tiny("best");
  const std::string run_settings =
      settings(tiny) + "early_stopping_patience=3 load_best_model_at_end=true save_total_limit=1";
  tiny.must_train("out", run_settings);
  const auto losses = evaluations(tiny);
  const auto best =
      std::min_element(losses.begin(), losses.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  // It stopped three evaluations after the best one.
  ASSERT_LT(losses.back().first, 60);
  EXPECT_EQ(losses.end() - best, 4);
  EXPECT_TRUE(fs::exists(tiny.path("out") / fmt::format("checkpoint-{}", best->first)));
  EXPECT_EQ(tiny.events("out", "end").at(0)["result_step"], best->first);
  EXPECT_NE(tiny.text("out/report.html")
                .find(fmt::format("<b>{:.4f}</b><span>held-out loss of the result, of step {}<",
                                  best->second, best->first)),
            std::string::npos);
  const bool is_adapter = fs::exists(tiny.path("out/adapter_model.safetensors"));
  if (!is_adapter) {
    const Outcome outcome =
        run("eval model=" + tiny.path("out").string() +
            " threads=1 sequence_len=64 data=" + tiny.eval_data() + " --json --quiet");
    ASSERT_EQ(outcome.exit_code, 0) << outcome.out;
    // While a rotation goes on, what waits is rounded to int8; the result is not.
    const bool rounded = std::string(GetParam()).find("rotary") != std::string::npos;
    EXPECT_NEAR(nlohmann::json::parse(outcome.out)["loss"].get<double>(), best->second,
                (rounded ? 1e-3 : 1e-6) * best->second);
  }
  // Run again it has nothing left to do, and gives the same result.
  const std::string file = is_adapter ? "/adapter_model.safetensors" : "/model.safetensors";
  const std::string first = tiny.text("out" + file);
  tiny.must_train("out", run_settings);
  EXPECT_EQ(evaluations(tiny).size(), losses.size());
  EXPECT_TRUE(first == tiny.text("out" + file));
}

INSTANTIATE_TEST_SUITE_P(Methods, RunWatchMethods,
                         ::testing::Values("method=full", "method=lora",
                                           "method=rotary active_params=50% steps_per_rotation=3",
                                           "method=rotary active_params=50% steps_per_rotation=3 "
                                           "master=mmap moments=keep"),
                         [](const auto& test) { return fmt::format("case_{}", test.index); });

// The checkpoints have what decides; the log may be lost, on a full disk or by hand.
TEST(RunWatchProgram, TheBestIsKnownWithoutTheLog) {
  const TinyRun tiny("lost_log");
  const std::string settings = std::string(
                                   "method=full save_steps=2 load_best_model_at_end=true "
                                   "early_stopping_patience=3 report_samples=0 ") +
                               kWorsens + "eval_data=" + tiny.eval_data() + " save_total_limit=";
  tiny.must_train("whole", settings + "0");
  const auto end = tiny.events("whole", "end").at(0);
  const int64_t last = end["step"], best = end["result_step"];
  ASSERT_EQ(last, best + 6);
  enum class Log { missing, empty, cut, missing_here };  // the checkpoint was left elsewhere
  for (const Log log : {Log::missing, Log::empty, Log::cut, Log::missing_here}) {
    const std::string out = fmt::format("out{}", static_cast<int>(log));
    SCOPED_TRACE(out);
    tiny.must_train(out, settings + "0");
    tiny.lose_result(out);
    remove_checkpoints_after(tiny.path(out), best + 4);
    std::string more;
    if (log == Log::missing_here) {
      fs::create_directories(tiny.path("elsewhere"));
      const fs::path left = checkpoint_path(tiny.path("elsewhere"), best + 4);
      fs::rename(checkpoint_path(tiny.path(out), best + 4), left);
      more = " resume=" + left.string();
    }
    const std::string text = tiny.text(out + "/train_log.jsonl");
    fs::remove(tiny.path(out + "/train_log.jsonl"));
    if (log == Log::empty) tiny.file(out + "/train_log.jsonl", "");
    if (log == Log::cut) {
      tiny.file(out + "/train_log.jsonl", text.substr(0, text.find("\"event\": \"eval\"")));
    }
    tiny.must_train(out, settings + "1" + more);
    EXPECT_TRUE(tiny.text("whole/model.safetensors") == tiny.text(out + "/model.safetensors"));
    EXPECT_EQ(tiny.events(out, "end").at(0)["step"], last);
    EXPECT_EQ(tiny.events(out, "end").at(0)["result_step"], best);
    EXPECT_TRUE(fs::exists(checkpoint_path(tiny.path(out), best)));
    // It is finished, whatever its log lacks.
    const Outcome again = run(tiny.train(out, settings + "1") + " 2>&1");
    EXPECT_EQ(again.exit_code, 0) << again.out;
    EXPECT_NE(again.out.find("nothing to do"), std::string::npos) << again.out;
  }
}

// No lower rate would help one that is 0.
TEST(RunWatchProgram, NothingIsGainedWhereNothingIsToLearn) {
  const TinyRun tiny("rate_of_0");
  const std::string settings =
      " max_steps=2 eval_steps=1 report_samples=0 lr_scheduler_type=constant warmup_steps=0 "
      "eval_data=" +
      tiny.eval_data() + " learning_rate=0";
  for (const std::string method : {"lora", "full", "galore"}) {
    SCOPED_TRACE(method);
    const Outcome outcome =
        run(tiny.train("out_" + method, "method=" + method + settings) + " 2>&1");
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out;
    EXPECT_EQ(outcome.out.find("no evaluation was better"), std::string::npos) << outcome.out;
  }
}

// What lies where its checkpoint would be is not this run's.
TEST(RunWatchProgram, ABestThatWasNotSavedIsNotTaken) {
  const TinyRun tiny("best_not_saved");
  const std::string settings = std::string(
                                   "method=full load_best_model_at_end=true save_total_limit=1 "
                                   "early_stopping_patience=3 report_samples=0 ") +
                               kWorsens + "eval_data=" + tiny.eval_data();
  tiny.must_train("out", settings);
  const auto whole = tiny.events("out", "end").at(0);
  ASSERT_TRUE(whole.contains("result_step"));
  const auto put_in_the_way = [&](int64_t step) {
    const fs::path checkpoint = checkpoint_path(tiny.path("out"), step);
    fs::remove_all(checkpoint);
    fs::create_directories(checkpoint);
    tiny.file("out/" + checkpoint.filename().string() + "/model.safetensors", "theirs");
  };
  const auto train_again = [&] {
    const Outcome outcome = run(tiny.train("out", settings + " overwrite=true") + " 2>&1");
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out;
    EXPECT_NE(outcome.out.find(fmt::format(" at step {}, has no checkpoint: the result is that of "
                                           "another step",
                                           whole["result_step"].get<int64_t>())),
              std::string::npos)
        << outcome.out;
    const auto end = tiny.events("out", "end").at(0);
    EXPECT_EQ(end["step"], whole["step"]);
    return end;
  };
  // The best of the others then.
  std::optional<std::pair<double, int64_t>> second;
  for (const auto& event : tiny.events("out", "eval")) {
    const int64_t step = event["step"];
    if (step == 0 || step == whole["result_step"]) continue;
    const std::pair<double, int64_t> here{event["eval_loss"], step};
    if (!second || here < *second) second = here;
  }
  put_in_the_way(whole["result_step"]);
  const auto end = train_again();
  EXPECT_EQ(end.value("result_step", end["step"].get<int64_t>()), second.value().second);
  // Also of a run that was killed two steps before its end and went on.
  tiny.must_train("out", settings + " save_steps=2 save_total_limit=0 overwrite=true");
  tiny.lose_result("out");
  const int64_t killed = whole["step"].get<int64_t>() - 2;
  remove_checkpoints_after(tiny.path("out"), killed);
  std::string log;
  for (const nlohmann::json& event : tiny.events("out")) {
    if (event["step"] <= killed) log += event.dump() + "\n";
  }
  tiny.file("out/train_log.jsonl", log);
  tiny.must_train("out", settings + " save_steps=2");
  const auto resumed = tiny.events("out", "end").at(0);
  EXPECT_EQ(resumed["step"], end["step"]);
  EXPECT_EQ(resumed.value("result_step", resumed["step"].get<int64_t>()), second.value().second);
  EXPECT_TRUE(fs::exists(checkpoint_path(tiny.path("out"), second.value().second)));
  // Where none could be saved, the last.
  for (int64_t step = 2; step <= whole["step"]; step += 2) put_in_the_way(step);
  EXPECT_FALSE(train_again().contains("result_step"));
}

TEST(RunWatchProgram, EvaluationsOfOtherDataAreNotCompared) {
  const TinyRun tiny("other_held_out");
  const std::string easy_data = " eval_data=" + tiny.eval_data();
  const std::string hard_data = " eval_data=" + tiny.data();
  const std::string settings =
      "method=full learning_rate=3e-3 lr_scheduler_type=constant warmup_steps=0 eval_steps=2 "
      "save_steps=2 load_best_model_at_end=true early_stopping_patience=2 max_steps=";
  tiny.must_train("whole", settings + "16" + hard_data);
  tiny.must_train("out", settings + "8" + easy_data);
  // As if the first text were so easy that no loss of the other is below its own.
  std::string log;
  for (nlohmann::json event : tiny.events("out")) {
    if (event["event"] == "eval") event["eval_loss"] = 0.1;
    log += event.dump() + "\n";
  }
  tiny.file("out/train_log.jsonl", log);
  const auto resume = [&](const std::string& more) {
    const Outcome outcome = run(tiny.train("out", settings + "16" + more) + " 2>&1");
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out;
    return outcome.out;
  };
  const std::string warning = "the held-out data have changed since";
  const std::string said = resume(hard_data);
  EXPECT_NE(said.find(warning), std::string::npos) << said;
  // They are no reason to stop or to go back.
  EXPECT_EQ(tiny.events("out", "eval").size(), 10u);  // 5 of each, the new ones from step 8 on
  EXPECT_TRUE(tiny.text("whole/model.safetensors") == tiny.text("out/model.safetensors"));
  EXPECT_EQ(resume(hard_data).find(warning), std::string::npos);
  // What they have chosen is not what others would choose.
  const Outcome refused = run(tiny.train("out", settings + "16" + easy_data) + " 2>&1");
  EXPECT_EQ(refused.exit_code, 4) << refused.out;
  EXPECT_NE(refused.out.find("the held-out data were "), std::string::npos) << refused.out;
  // Where they choose nothing, the result is the same.
  tiny.must_train("plain", "method=full max_steps=1" + hard_data);
  const Outcome finished =
      run(tiny.train("plain", "method=full max_steps=1" + easy_data) + " 2>&1");
  EXPECT_EQ(finished.exit_code, 0) << finished.out;
  EXPECT_NE(finished.out.find(warning), std::string::npos) << finished.out;
  EXPECT_NE(finished.out.find("nothing to do"), std::string::npos) << finished.out;
}

TEST(RunWatchProgram, GivesUpWhenTheLossStaysHigh) {
  const TinyRun tiny("watchdog");
  const Outcome outcome =
      run(tiny.train("out", "method=full loss_watchdog_threshold=0.1 loss_watchdog_patience=4") +
          kErrorsOnly);
  EXPECT_EQ(outcome.exit_code, 6);
  EXPECT_NE(outcome.out.find("step 4: loss"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("above loss_watchdog_threshold 0.1 for 4 logged steps"),
            std::string::npos)
      << outcome.out;
}

TEST(RunWatchProgram, RefusesToWatchNothing) {
  const TinyRun tiny("watch_nothing");
  const auto said = [&](const std::string& settings) {
    const Outcome outcome = run(tiny.train("out", settings) + kErrorsOnly);
    EXPECT_EQ(outcome.exit_code, 2) << settings;
    return outcome.out;
  };
  EXPECT_NE(said("early_stopping_patience=2").find("set eval_data or val_size"), std::string::npos);
  EXPECT_NE(said("load_best_model_at_end=true val_size=0.1").find("set eval_steps"),
            std::string::npos);
}

TEST(RunWatchProgram, AFileAsksForACheckpoint) {
  const TinyRun tiny("ask_by_file");
  const std::string settings = "method=full max_steps=12";
  tiny.must_train("whole", settings);
  fs::create_directories(tiny.path("out"));
  tiny.file(std::string("out/") + kSaveTrigger, "");
  tiny.must_train("out", settings);
  EXPECT_FALSE(fs::exists(tiny.path("out") / kSaveTrigger));
  ASSERT_EQ(tiny.events("out", "save").size(), 1u);
  EXPECT_EQ(tiny.events("out", "save")[0]["step"], 1);
  EXPECT_TRUE(fs::exists(tiny.path("out/checkpoint-1")));
  EXPECT_TRUE(tiny.text("whole/model.safetensors") == tiny.text("out/model.safetensors"));
}

TEST(RunWatchProgram, ASignalAsksForACheckpoint) {
  const TinyRun tiny("ask_by_signal");
  // Longer than anyone waits: it is ended here.
  Child child(tiny.train("out", "method=full max_steps=1000000 logging_steps=1000000"));
  const auto logged = [&](const std::string& kind) {
    return std::ranges::count_if(read_events(tiny.path("out/train_log.jsonl")),
                                 [&](const auto& event) { return event["event"] == kind; });
  };
  ASSERT_TRUE(child.until([&] { return logged("start") == 1; }));
  child.signal(SIGUSR1);
  EXPECT_TRUE(child.until([&] { return logged("save") == 1; }));
  EXPECT_EQ(child.stop(SIGKILL), -SIGKILL);
  EXPECT_EQ(tiny.events("out", "save").size(), 1u);
}

}  // namespace
}  // namespace jackscrew
