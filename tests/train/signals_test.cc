// Signals at any moment of a run, through the program: nothing breaks, what was promised is saved,
// and the result has the same bits. docs/pains.md has the command for many.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>

#include <array>
#include <random>
#include <thread>
#include <tuple>

#include "formats/checkpoint.h"
#include "tests/support/tiny_run.h"

namespace jackscrew {
namespace {

// Products as deep as those in which oneDNN's code puts the stack pointer into the heap.
constexpr const char* kWideConfig = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 260,
  "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 1,
  "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
  "tie_word_embeddings": false, "bos_token_id": 256, "eos_token_id": 257})";

constexpr int kRequests = 100;
constexpr int kStops = 5;

void expect_same_models(const TinyRun& tiny, const std::string& a, const std::string& b) {
  const auto weights = [&](const std::string& output) {
    const bool adapter = fs::exists(tiny.path(output) / "adapter_model.safetensors");
    return tiny.text(output + (adapter ? "/adapter_model.safetensors" : "/model.safetensors"));
  };
  EXPECT_TRUE(weights(a) == weights(b));
}

class SlowSignals : public ::testing::TestWithParam<const char*> {
 protected:
  SlowSignals() {
    settings_ = std::string(GetParam()) + " model=" + tiny_.file("wide.json", kWideConfig) +
                " eval_data=" + tiny_.eval_data() +
                " max_steps=12 eval_steps=5 sequence_len=128 micro_batch_size=4 learning_rate=1e-3 "
                "report_samples=1 save_total_limit=2 ";
  }

  // Other moments with every repetition.
  void pause() {
    constexpr int64_t kLongest = 20000;
    std::this_thread::sleep_for(std::chrono::microseconds(random_() % kLongest));
  }

  void expect_same_result(const std::string& a, const std::string& b) const {
    expect_same_models(tiny_, a, b);
    EXPECT_EQ(tiny_.losses(a), tiny_.losses(b));
  }

  TinyRun tiny_{"signals"};
  std::string settings_;
  std::mt19937 random_{static_cast<uint32_t>(::testing::UnitTest::GetInstance()->random_seed())};
};

// Whether a run has logged such an event; its last line may be half written.
bool has_logged(const TinyRun& tiny, const std::string& output, const std::string& event) {
  const std::string log = output + "/train_log.jsonl";
  return fs::exists(tiny.path(log)) &&
         tiny.text(log).find("\"event\": \"" + event + '"') != std::string::npos;
}

TEST_P(SlowSignals, RequestsToSaveChangeNothing) {
  tiny_.must_train("whole", settings_);
  Child child(tiny_.train("asked", settings_));
  ASSERT_TRUE(child.waits_for_signals());
  for (int sent = 0; sent < kRequests && child.running(); ++sent) {
    child.signal(SIGUSR1);
    child.signal(sent % 2 == 0 ? SIGWINCH : SIGCHLD);
    pause();
  }
  EXPECT_EQ(child.wait(), 0);
  EXPECT_FALSE(tiny_.events("asked", "save").empty());
  expect_same_result("whole", "asked");
}

TEST_P(SlowSignals, AStopSavesAndTheRunGoesOn) {
  tiny_.must_train("whole", settings_);
  for (int stops = 0; stops < kStops; ++stops) {
    const std::array signals = {SIGINT, SIGTERM, SIGHUP};
    const int signal = signals[static_cast<size_t>(stops) % signals.size()];
    Child child(tiny_.train("stopped", settings_));
    if (!child.waits_for_signals()) {
      ASSERT_TRUE(has_logged(tiny_, "stopped", "end"));  // nothing was left to do
      continue;
    }
    for (auto pauses = random_() % 30; pauses > 0 && child.running(); --pauses) pause();
    const bool twice = stops == kStops - 1;
    child.signal(signal);
    if (twice) {
      pause();
      child.signal(signal);
    }
    const int ended = child.wait();
    EXPECT_TRUE(ended == 130 || ended == 0 || (twice && ended == -signal)) << ended;
    // Stopped while data were read, the first run leaves nothing, and one that had ended its
    // result.
    if (ended != 130 || !fs::exists(tiny_.path("stopped/train_log.jsonl"))) continue;
    if (has_logged(tiny_, "stopped", "end")) continue;
    const int64_t done = tiny_.events("stopped").back()["step"];
    EXPECT_EQ(fs::exists(tiny_.path("stopped/checkpoint-" + std::to_string(done))), done > 0);
  }
  tiny_.must_train("stopped", settings_);
  expect_same_result("whole", "stopped");
}

TEST_P(SlowSignals, TheSecondInterruptEndsTheProcess) {
  int ended = 130;
  // Where the first comes between two steps there is no second: then once more.
  for (int attempt = 0; attempt < 5 && ended == 130; ++attempt) {
    const std::string output = "out" + std::to_string(attempt);
    Child child(tiny_.train(
        output, settings_ + " max_steps=1000000 gradient_accumulation_steps=4000 data_weights=10 "
                            "logging_steps=1 eval_steps=0"));
    // Within a long step that is not the first: before that, one interrupt would do.
    ASSERT_TRUE(child.until([&] { return has_logged(tiny_, output, "step"); }));
    child.signal(SIGINT);
    pause();
    std::this_thread::sleep_for(std::chrono::milliseconds(150));  // later than one request
    ended = child.stop(SIGINT);
  }
  EXPECT_EQ(ended, -SIGINT);
}

// GNU timeout sends one to the process and one to its group.
TEST(SlowSignalsTwice, OneRequestThatComesTwiceIsOne) {
  const TinyRun tiny("signals_timeout");
  Child child(tiny.train("out", "method=full max_steps=1000000 logging_steps=1"),
              tiny.path("said"));
  ASSERT_TRUE(child.until([&] { return has_logged(tiny, "out", "step"); }));
  child.signal_repeatedly(SIGTERM, 3);
  EXPECT_EQ(child.wait(), 130);
  EXPECT_TRUE(fs::exists(tiny.path(
      "out/checkpoint-" + std::to_string(tiny.events("out").back()["step"].get<int64_t>()))));
  EXPECT_NE(tiny.text("said").find("stopping after the current step, with a checkpoint; another "
                                   "SIGTERM quits at once\n"),
            std::string::npos)
      << tiny.text("said");
}

// It ends with the result, and without a checkpoint.
TEST(SlowStops, AStopDuringTheLastStepIsToldOfTheResult) {
  const TinyRun tiny("signals_last_step");
  std::string many;
  for (int i = 0; i < 2048; ++i) many += TinyRun::record("Say", std::to_string(i));
  const std::string settings =
      "method=full max_steps=2 logging_steps=1 report_samples=0 "
      "packing=false micro_batch_size=4 gradient_accumulation_steps=256 "
      "model=" +
      tiny.file("wide.json", kWideConfig) + " data=" + tiny.file("many.jsonl", many);
  bool told = false;
  // Where it comes before the last step has begun, or after it, what is said is another thing: then
  // once more.
  for (int attempt = 0; attempt < 10 && !told; ++attempt) {
    const std::string output = fmt::format("out{}", attempt);
    Child child(tiny.train(output, settings), tiny.path("said"));
    if (!child.until([&] { return has_logged(tiny, output, "step"); })) continue;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));  // a fraction of a step
    child.signal(SIGTERM);
    const int ended = child.wait();
    told = tiny.text("said").find(
               "stopping once the result is written; another SIGTERM quits at "
               "once\n") != std::string::npos;
    if (!told) continue;
    EXPECT_EQ(ended, 0);
    EXPECT_TRUE(fs::exists(tiny.path(output) / "model.safetensors"));
    EXPECT_TRUE(list_checkpoints(tiny.path(output)).empty());
  }
  EXPECT_TRUE(told) << tiny.text("said");
}

// As mpirun, which reads no more of what its ranks print once it was asked to end them.
TEST(SlowStops, AReaderThatStoppedReadingDoesNotKeepARunFromSaving) {
  const TinyRun tiny("signals_reader");
  const fs::path pipe = tiny.path("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const int reader = ::open(pipe.c_str(), O_RDWR | O_NONBLOCK);
  ::fcntl(reader, F_SETPIPE_SZ, 4096);
  Child child(tiny.train("out", "method=full max_steps=1000000 logging_steps=1"), pipe);
  pollfd full = {reader, POLLOUT, 0};
  ASSERT_TRUE(
      child.until([&] { return has_logged(tiny, "out", "step") && ::poll(&full, 1, 0) == 0; }));
  child.signal(SIGINT);
  const auto is_saved = [&] { return !list_checkpoints(tiny.path("out")).empty(); };
  child.until(is_saved);
  EXPECT_TRUE(is_saved());
  // Its error message waits for room, as that of any program does.
  std::array<char, 4096> part{};
  child.until([&] { return ::read(reader, part.data(), part.size()) == 0; });
  EXPECT_EQ(child.wait(), 130);
  ::close(reader);
}

// Not even for the data or the weights: of a large model they take minutes.
TEST(Signals, AStopWhileDataAreReadIsObeyedAtOnce) {
  const TinyRun tiny("signals_loading");
  std::string many;
  for (int i = 0; i < 100000; ++i) many += TinyRun::record("Say a number", std::string(400, '7'));
  Child child(tiny.train("out", "sequence_len=128 data=" + tiny.file("many.jsonl", many)));
  ASSERT_TRUE(child.until([&] { return fs::exists(tiny.path("out")); }));
  EXPECT_EQ(child.stop(SIGINT), 130);
  EXPECT_FALSE(fs::exists(tiny.path("out")));
}

// There is nothing to save before the first step, and so nothing to wait for.
TEST(Signals, AStopBeforeTheFirstStepIsObeyedAtOnce) {
  const TinyRun tiny("signals_early");
  std::string many;
  for (int i = 0; i < 20000; ++i) many += TinyRun::record("Say a number", std::string(60, '7'));
  const std::string settings = "max_steps=2 eval_data=" + tiny.file("many.jsonl", many);
  Child child(tiny.train("out", settings));
  ASSERT_TRUE(child.until([&] { return has_logged(tiny, "out", "booked"); }));
  EXPECT_EQ(child.stop(SIGINT), 130);
  EXPECT_TRUE(tiny.events("out", "eval").empty());
  EXPECT_TRUE(tiny.events("out", "step").empty());
  EXPECT_FALSE(fs::exists(tiny.path("out/checkpoint-1")));
  tiny.must_train("out", "max_steps=2");
}

// In the middle of a run and after its last step. A resumed run makes up for it.
TEST(SlowStops, AStopCutsThemShort) {
  const TinyRun tiny("signals_evaluation");
  std::string many;
  for (int i = 0; i < 1000; ++i) many += TinyRun::record("Say a number", std::string(60, '7'));
  // All of them go to a session in one call, as micro-batches.
  const std::string settings =
      "max_steps=4 eval_steps=2 logging_steps=1 micro_batch_size=32 eval_data=" +
      tiny.file("many.jsonl", many);
  for (const int64_t step : {2, 4}) {
    const size_t evaluations = static_cast<size_t>(step) / 2;  // that are complete
    Child child(tiny.train("out", settings));
    ASSERT_TRUE(child.until([&] {
      const std::string line = fmt::format("\"event\": \"step\", \"step\": {},", step);
      return has_logged(tiny, "out", "step") &&
             tiny.text("out/train_log.jsonl").find(line) != std::string::npos;
    }));
    EXPECT_EQ(child.stop(SIGINT), 130);
    EXPECT_EQ(tiny.events("out", "eval").size(), evaluations);
    EXPECT_TRUE(fs::exists(tiny.path(fmt::format("out/checkpoint-{}", step))));
    EXPECT_FALSE(has_logged(tiny, "out", "end"));
  }
  tiny.must_train("out", settings);
  tiny.must_train("whole", settings);
  const auto losses = [&](const std::string& output) {
    std::vector<std::pair<int64_t, double>> out;
    for (const auto& event : tiny.events(output, "eval")) {
      out.emplace_back(event["step"], event["eval_loss"]);
    }
    return out;
  };
  EXPECT_EQ(losses("out"), losses("whole"));
}

// Of a run whose result is written, the same command gives those that are missing, with the same
// bits: from a checkpoint, as a result may be rounded.
TEST(SlowStops, AnswersAreMadeUpFor) {
  const TinyRun tiny("signals_answers");
  std::string many;
  for (int i = 0; i < 100; ++i) many += TinyRun::record("Say " + std::to_string(i), "It is so.");
  const std::string common = "model=" + tiny.file("wide.json", kWideConfig) +
                             " data=" + tiny.file("many.jsonl", many) +
                             " max_steps=4 report_samples=100 learning_rate=1e-2 ";
  const auto answers = [&](const std::string& output) {
    std::vector<std::tuple<int64_t, int64_t, std::string>> out;
    for (const auto& event : tiny.events(output, "sample")) {
      out.emplace_back(event["step"], event["index"], event["answer"]);
    }
    return out;
  };
  const std::array methods = {std::string("method=full storage=bf16 checkpoint_dtype=bf16"),
                              std::string("method=lora"),
                              std::string("method=rotary steps_per_rotation=2 active_params=50%"),
                              // The result is that of the second step.
                              "method=full load_best_model_at_end=true eval_steps=2 save_steps=2 "
                              "lr_scheduler_type=constant "
                              "warmup_steps=0 learning_rate=0.9 eval_data=" +
                                  tiny.eval_data()};
  for (size_t i = 0; i < methods.size(); ++i) {
    SCOPED_TRACE(methods[i]);
    const std::string settings = common + methods[i];
    const std::string whole = fmt::format("whole{}", i), out = fmt::format("out{}", i);
    tiny.must_train(whole, settings);
    Child child(tiny.train(out, settings), tiny.path("said"));
    ASSERT_TRUE(child.until([&] { return has_logged(tiny, out, "end"); }));
    EXPECT_EQ(child.stop(SIGTERM), 130);
    const std::string said = tiny.text("said");
    EXPECT_EQ(said.find("current step"), std::string::npos) << said;
    EXPECT_EQ(said.find("Ctrl-C"), std::string::npos) << said;
    EXPECT_NE(said.find("the result is complete in "), std::string::npos) << said;
    EXPECT_NE(said.find("hint: run the same command again for the answers\n"), std::string::npos)
        << said;
    ASSERT_LT(answers(out).size(), answers(whole).size());
    expect_same_models(tiny, whole, out);
    // Without its checkpoint it says so, and changes nothing.
    const auto before = contents(tiny.path(out));
    const fs::path checkpoint = tiny.path(out) / (i == 3 ? "checkpoint-2" : "checkpoint-4");
    fs::rename(checkpoint, tiny.path("away"));
    const Outcome without = run(tiny.train(out, settings) + " 2>&1");
    EXPECT_EQ(without.exit_code, 0) << without.out;
    EXPECT_NE(without.out.find(", only given from " + checkpoint.string()), std::string::npos)
        << without.out;
    fs::rename(tiny.path("away"), checkpoint);
    EXPECT_EQ(contents(tiny.path(out)), before);
    tiny.must_train(out, settings);
    EXPECT_EQ(answers(out), answers(whole));
    expect_same_models(tiny, whole, out);
    const Outcome again = run(tiny.train(out, settings) + " 2>&1");
    EXPECT_NE(again.out.find("nothing to do"), std::string::npos) << again.out;
    EXPECT_EQ(answers(out), answers(whole));
  }
}

// The evaluation that a resumed run makes up for may be the best of all, and its checkpoint lie
// elsewhere.
TEST(SlowStops, TheBestEvaluationMayBeTheOneBeforeTheFirstStep) {
  const TinyRun tiny("signals_best");
  const std::string settings =
      "method=full max_steps=4 lr_scheduler_type=constant warmup_steps=0 report_samples=0 ";
  tiny.must_train("first", settings + "save_steps=2 save_total_limit=0 learning_rate=1e-3");
  tiny.must_train("out", settings +
                             "eval_steps=2 load_best_model_at_end=true save_total_limit=1 "
                             "learning_rate=0.9 eval_data=" +
                             tiny.eval_data() +
                             " resume=" + tiny.path("first/checkpoint-2").string());
  const auto evaluations = tiny.events("out", "eval");
  ASSERT_EQ(evaluations.size(), 2u);
  ASSERT_LT(evaluations[0]["eval_loss"], evaluations[1]["eval_loss"]);
  EXPECT_TRUE(fs::exists(tiny.path("out/checkpoint-2")));
  tiny.must_train("two", settings + "max_steps=2 learning_rate=1e-3");
  EXPECT_TRUE(tiny.text("out/model.safetensors") == tiny.text("two/model.safetensors"));
}

std::string case_name(const ::testing::TestParamInfo<const char*>& test) {
  constexpr std::array kNames = {"full", "full_2", "lora", "lora_2", "rotary", "rotary_2"};
  return kNames[test.index];
}

INSTANTIATE_TEST_SUITE_P(SlowMethods, SlowSignals,
                         ::testing::Values("method=full", "method=full threads=2",
                                           "method=lora lora_dropout=0.1", "method=lora threads=2",
                                           "method=rotary steps_per_rotation=4 active_params=50%",
                                           "method=rotary steps_per_rotation=4 active_params=50% "
                                           "threads=2"),
                         case_name);

}  // namespace
}  // namespace jackscrew
