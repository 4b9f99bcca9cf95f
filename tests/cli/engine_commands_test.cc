// generate and plan, through the program.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/text.h"
#include "formats/safetensors.h"
#include "tests/cli/expect_refused.h"
#include "tests/cli/run_program.h"
#include "tests/support/terminal.h"
#include "tests/support/tiny_run.h"

namespace jackscrew {
namespace {

constexpr const char* kTiny = " model=llama-9m init=random tokenizer=bytes ";

TEST(SlowGenerate, JsonAndReproducible) {
  const std::string sampled =
      std::string("generate --json --quiet prompt=Hello max_new_tokens=8 temperature=1 top_k=50") +
      kTiny;
  const auto first = nlohmann::json::parse(run(sampled + "seed=7").out);
  EXPECT_EQ(first["prompt_tokens"], 6);  // a token for each byte, and BOS
  EXPECT_LE(first["tokens"].get<int>(), 8);
  EXPECT_TRUE(first["text"].is_string());
  EXPECT_TRUE(first["tokens_per_second"].is_number());
  EXPECT_TRUE(first["ended"].is_string());
  EXPECT_EQ(first.size(), 5u);
  EXPECT_EQ(nlohmann::json::parse(run(sampled + "seed=7").out)["text"], first["text"]);
  EXPECT_NE(nlohmann::json::parse(run(sampled + "init=random seed=8").out)["text"], first["text"]);
}

TEST(SlowGenerate, TextOnStdoutAndSpeedOnStderr) {
  const std::string command = std::string("generate prompt=Hello max_new_tokens=3") + kTiny;
  const Outcome text = run(command + "2>/dev/null");
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_TRUE(text.out.ends_with('\n'));
  EXPECT_EQ(text.out.find("tok/s"), std::string::npos);
  EXPECT_NE(run(command + kErrorsOnly).out.find("tok/s"), std::string::npos);
  EXPECT_EQ(run(command + "quiet=true" + kErrorsOnly).out, "");
}

TEST(SlowGenerate, ReadsThePromptFromStandardInput) {
  const std::string command =
      std::string("generate --quiet --json max_new_tokens=4 threads=1 seed=7") + kTiny;
  const std::string given = nlohmann::json::parse(run(command + "prompt=Hello").out)["text"];
  const std::string pipe = "printf 'Hello\\n' | " + std::string(kProgram) + " " + command;
  for (const char* more : {"", "prompt=-"}) {
    const Outcome piped = run_shell(pipe + more);
    ASSERT_EQ(piped.exit_code, 0) << more;
    const auto answer = nlohmann::json::parse(piped.out);
    EXPECT_EQ(answer["text"], given);
    EXPECT_EQ(answer["prompt_tokens"], 6);  // a token for each byte, and BOS
  }
}

TEST(Generate, NeedsAPrompt) {
  const std::string command = std::string("generate quiet=true max_new_tokens=1") + kTiny;
  expect_refused(run(command + "</dev/null" + kErrorsOnly), 2, {"standard input is empty"});
  expect_refused(run(command + "<&-" + kErrorsOnly), 2, {"prompt"});
  expect_refused(run(command + "chat_template=chatml prompt=" + kErrorsOnly), 2,
                 {"generate needs a prompt, and prompt= is empty"});
  EXPECT_EQ(run(command + "prompt=").exit_code, 0);  // a base model begins with BOS
  // On a terminal nobody is kept waiting, unless asked for.
  const int terminal = open_terminal();
  expect_refused(run(command + "<" + ::ptsname(terminal) + kErrorsOnly), 2,
                 {"generate needs a prompt", "prompt=TEXT"});
  ::close(terminal);
}

TEST(Generate, Refusals) {
  EXPECT_EQ(run(std::string("generate prompt=Hello") + kErrorsOnly).exit_code, 2);
  const Outcome shape =
      run("generate model=llama-9m tokenizer=bytes prompt=Hello" + std::string(kErrorsOnly));
  EXPECT_EQ(shape.exit_code, 2);
  EXPECT_NE(shape.out.find("without weights"), std::string::npos);
  const Outcome words =
      run("generate model=" + golden_model("gqa_tied") + " prompt=Hello" + kErrorsOnly);
  EXPECT_EQ(words.exit_code, 5);
  EXPECT_NE(words.out.find("no tokenizer"), std::string::npos);
}

// The first token comes with the prompt: of an answer of one there is no rate.
TEST(Generate, SaysNoRateOfASingleToken) {
  const TinyRun tiny("single_token");
  const std::string command = "generate prompt=Hello max_new_tokens=1 init=random threads=1 " +
                              ("tokenizer=bytes model=" + tiny.config());
  const std::string said = run(command + kErrorsOnly).out;
  const size_t answer = said.find("answer ");
  ASSERT_NE(answer, std::string::npos) << said;
  EXPECT_EQ(said.find("tok/s", answer), std::string::npos) << said;
  EXPECT_TRUE(nlohmann::json::parse(run(command + " json=true quiet=true").out)["tokens_per_second"]
                  .is_null());
}

// Two tokens, none of which ends an answer.
std::string endless_tokenizer(const TinyRun& tiny) {
  return tiny.file("tokenizer.json", R"({
      "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
      "decoder": {"type": "ByteLevel"},
      "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}})");
}

TEST(Generate, JsonNamesWhatEndedTheAnswer) {
  const TinyRun tiny("generate_ended");
  const std::string command =
      "generate --json --quiet prompt=a init=random threads=1 model=" + tiny.config() +
      " tokenizer=" + endless_tokenizer(tiny);
  const auto ended = [&](const std::string& more) {
    return nlohmann::json::parse(run(command + more).out)["ended"].get<std::string>();
  };
  EXPECT_EQ(ended(" max_new_tokens=1"), "max_new_tokens");
  EXPECT_EQ(ended(" max_new_tokens=1000"), "context");
}

// A signal that comes before the answer ends the program: then the next one comes later.
TEST(SlowGenerate, JsonHasWhatWasMadeBeforeAnInterrupt) {
  const TinyRun tiny("generate_interrupt");
  auto config = nlohmann::json::parse(tiny.text("config.json"));
  config["max_position_embeddings"] = 1 << 18;
  const std::string command =
      "generate --json --quiet prompt=a max_new_tokens=200000 init=random threads=1 model=" +
      tiny.file("long.json", config.dump()) + " tokenizer=" + endless_tokenizer(tiny);
  Outcome outcome;
  for (double seconds = 0.25; seconds < 60 && outcome.out.empty(); seconds *= 2) {
    outcome = run_shell(fmt::format("timeout --preserve-status -s INT {} {} {} 2>/dev/null",
                                    seconds, kProgram, command));
  }
  EXPECT_EQ(outcome.exit_code, 130);
  ASSERT_FALSE(outcome.out.empty());
  const auto answer = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(answer["ended"], "interrupt");
  EXPECT_EQ(answer["text"].get<std::string>().size(), answer["tokens"].get<size_t>());
  EXPECT_LT(answer["tokens"].get<int64_t>(), 200000);
}

// With a tokenizer whose words begin with spaces, as Llama 2's. A continuation is to be joined to
// its prompt.
TEST(Generate, AnAnswerBeginsWithoutASpaceAndAContinuationWithIt) {
  const TinyRun tiny("first_space");
  auto words = nlohmann::json::parse(
      read_text(fs::path(kTestData) / "text" / "data" / "llama2_tokenizer.json"));
  nlohmann::json vocabulary = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}, {"\u2581", 3}};
  for (int id = 4; id < 260; ++id) vocabulary[fmt::format("\u2581w{}", id)] = id;
  words["model"]["vocab"] = vocabulary;
  words["model"]["merges"] = nlohmann::json::array();
  words["model"]["byte_fallback"] = false;
  words["added_tokens"].erase(4);  // <tool>>
  words["added_tokens"].erase(3);  // <tool>
  const std::string command =
      "generate --json --quiet prompt=w max_new_tokens=3 init=random threads=1 model=" +
      tiny.config() + " tokenizer=" + tiny.file("tokenizer.json", words.dump());
  const auto text = [&](const std::string& more) {
    return nlohmann::json::parse(run(command + more).out)["text"].get<std::string>();
  };
  EXPECT_TRUE(text("").starts_with(" w")) << text("");
  EXPECT_TRUE(text(" chat_template=chatml").starts_with("w")) << text(" chat_template=chatml");
  EXPECT_TRUE(text(" system=w").starts_with("w")) << text(" system=w");
}

// Fewer tokens at a time than where there is room.
TEST(Eval, ScoresInAsMuchMemoryAsOneTextTakes) {
  const TinyRun tiny("narrow_eval");
  const std::string eval =
      "eval json=true quiet=true init=random tokenizer=bytes threads=1 "
      "sequence_len=64 data=" +
      tiny.eval_data() + " model=" + tiny.config();
  const Outcome roomy = run(eval);
  const Outcome narrow = run(eval + " device_memory=1MiB");
  ASSERT_EQ(roomy.exit_code, 0);
  ASSERT_EQ(narrow.exit_code, 0);
  const auto expected = nlohmann::json::parse(roomy.out);
  const auto actual = nlohmann::json::parse(narrow.out);
  EXPECT_NEAR(actual["loss"].get<double>(), expected["loss"].get<double>(), 1e-5);
  EXPECT_EQ(actual["tokens"], expected["tokens"]);
}

TEST(Eval, ShowsBitsPerByteWhereThereAreBytes) {
  const TinyRun tiny("eval_bytes");
  const auto shown = [&](const std::string& answer) {
    const std::string record = R"({"prompt": "a", "completion": ")" + answer + "\"}\n";
    return run("eval quiet=true init=random tokenizer=bytes threads=1 sequence_len=64 model=" +
               tiny.config() + " data=" + tiny.file(answer + "a.jsonl", record))
        .out;
  };
  EXPECT_NE(shown("b").find("  bits/byte "), std::string::npos);
  const std::string none = shown("");
  EXPECT_EQ(none.find("bits/byte"), std::string::npos) << none;
  EXPECT_NE(none.find("  (1 token, 1 record)\n"), std::string::npos) << none;
}

// What a product does in the backward pass alone.
TEST(Eval, WarnsOfOptionsOfAProductThatOnlyTrainingReads) {
  const std::string eval = "eval model=nowhere data=none ";
  const std::string idle = "jackscrew: warning: eval does not use ";
  const std::string eight = run(eval + "product=int8 int8_dw=int8" + kErrorsOnly).out;
  EXPECT_NE(eight.find(idle + "int8_dw\n"), std::string::npos) << eight;
  const std::string four =
      run(eval +
          "product=int4 int4_mode=paper int4_block=32 int4_steps=learned int4_bit_split=7 "
          "int4_sampling=dx int4_cold_steps=3 int4_step_learning_rate=1e-4" +
          kErrorsOnly)
          .out;
  for (const char* name :
       {"int4_bit_split", "int4_sampling", "int4_cold_steps", "int4_step_learning_rate"}) {
    EXPECT_NE(four.find(idle + name + "\n"), std::string::npos) << name << "\n" << four;
  }
  for (const char* name : {"int4_mode", "int4_block", "int4_steps"}) {
    EXPECT_EQ(four.find(idle + name + "\n"), std::string::npos) << name << "\n" << four;
  }
  const std::string plan =
      run(std::string("plan model=nowhere product=int8 int8_dw=int8") + kErrorsOnly).out;
  EXPECT_EQ(plan.find("does not use"), std::string::npos) << plan;
}

// Steps and blocks that a run has found are states of that run.
TEST(Eval, WarnsOfWhatAProductLearnsThatNoModelHas) {
  const TinyRun tiny("unlearned");
  const std::string eval =
      "eval init=random tokenizer=bytes threads=1 sequence_len=64 product=int4 int4_mode=paper "
      "data=" +
      tiny.eval_data() + " model=" + tiny.config() + " ";
  const auto warns = [&](const std::string& more) {
    const Outcome outcome = run(eval + more + kErrorsOnly);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out;
    return outcome.out.find(
               "warning: what product=int4 learns is in no model: it computes as with "
               "int4_steps=dynamic and no int4_block=search\n") != std::string::npos;
  };
  EXPECT_TRUE(warns(""));
  EXPECT_TRUE(warns("int4_steps=dynamic int4_block=search"));
  EXPECT_FALSE(warns("int4_steps=dynamic"));
}

// Who asks for plain text knows that there is no template, or wants none.
TEST(Chat, MissesATemplateOnlyWhereNobodySaysWhich) {
  const TinyRun tiny("chat_plain");
  const auto said = [&](const std::string& more) {
    const Outcome outcome =
        run("chat model=" + tiny.config() + " init=random tokenizer=bytes max_new_tokens=1 " +
            more + "</dev/null" + kErrorsOnly);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out;
    return outcome.out;
  };
  EXPECT_NE(said("").find("has no chat template"), std::string::npos);
  EXPECT_EQ(said("chat_template=plain ").find("chat template"), std::string::npos);
}

// What a terminal drops of a line it drops without a word.
TEST(Chat, DoesNotAnswerAMessageThatATerminalMayHaveCut) {
  const TinyRun tiny("chat_cut");
  const int terminal = open_terminal();
  const std::string name = ::ptsname(terminal);
  const int kept = ::open(name.c_str(), O_RDWR | O_NOCTTY);  // and with it what is typed
  ASSERT_GE(kept, 0);
  const auto said = [&](size_t bytes) {
    const std::string typed = std::string(bytes, 'a') + "\nHi\n/exit\n";
    EXPECT_EQ(::write(terminal, typed.data(), typed.size()), std::ssize(typed));
    const Outcome outcome = run("chat chat_template=plain max_new_tokens=1 model=" + tiny.config() +
                                " init=random tokenizer=bytes threads=1 <" + name + kErrorsOnly);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out;
    EXPECT_NE(outcome.out.find("; answer 1 token"), std::string::npos) << outcome.out;
    return outcome.out;
  };
  const std::string cut =
      "a terminal passes on no more than 4095 bytes of a line, and this message may have been cut: "
      "pipe it in, or shorten it\n> ";
  EXPECT_NE(said(5000).find(cut), std::string::npos);
  EXPECT_NE(said(4095).find(cut), std::string::npos);
  EXPECT_EQ(said(4094).find(cut), std::string::npos);
  ::close(kept);
  ::close(terminal);
}

// The second message would need what ends the first answer: told before anything is loaded.
TEST(Chat, NeedsATokenThatEndsAnswers) {
  const TinyRun tiny("chat_endless");
  const Outcome outcome = run("chat chat_template=plain model=" + tiny.config() + " tokenizer=" +
                              endless_tokenizer(tiny) + " init=random </dev/null" + kErrorsOnly);
  EXPECT_EQ(outcome.exit_code, 5) << outcome.out;
  EXPECT_NE(outcome.out.find("no end-of-text token"), std::string::npos) << outcome.out;
}

TEST(Plan, ExitCodeAndJson) {
  const std::string plan = "plan sequence_len=64 micro_batch_size=2 model=" + golden_model("odd");
  const Outcome table = run(plan);
  EXPECT_EQ(table.exit_code, 0);
  for (const char* word : {"weights", "adapters", "activations", "peak", "what would help",
                           "micro_batch_size=1 gradient_accumulation_steps=2"}) {
    EXPECT_NE(table.out.find(word), std::string::npos) << word;
  }
  const auto planned = nlohmann::json::parse(run(plan + " --json").out);
  EXPECT_EQ(planned["fits"], true);
  for (const char* key : {"device", "host", "disk", "peak_at"}) EXPECT_TRUE(planned.contains(key));
  // How many checkpoints there will be depends on the steps, which the data alone would say.
  const std::string assumed = ", if the run has 10000 steps";
  EXPECT_NE(run(plan + " save_steps=9").out.find(assumed), std::string::npos);
  EXPECT_EQ(run(plan + " save_steps=9 max_steps=90").out.find(assumed), std::string::npos);
  const std::string peak = std::to_string(planned["device"]["peak"].get<int64_t>());
  EXPECT_EQ(run(plan + " device_memory=" + peak + "B").exit_code, 0);
  const Outcome tight = run(plan + " device_memory=10KiB");
  EXPECT_EQ(tight.exit_code, 3);
  EXPECT_NE(tight.out.find("does not fit"), std::string::npos);
  // Only the budget that is too small is named.
  const Outcome tight_host = run(plan +
                                 " method=rotary active_params=50% storage=bf16 master=ram "
                                 "device_memory=1GiB host_memory=1KiB");
  EXPECT_EQ(tight_host.exit_code, 3);
  EXPECT_NE(tight_host.out.find("on the host, host_memory is "), std::string::npos);
  EXPECT_EQ(tight_host.out.find("device_memory is "), std::string::npos) << tight_host.out;
  const Outcome tight_json = run(plan + " device_memory=10KiB --json");
  EXPECT_EQ(tight_json.exit_code, 3);
  EXPECT_EQ(nlohmann::json::parse(tight_json.out)["fits"], false);
}

// What `train` does with what is set for each rank, it does where there is one.
TEST(Plan, OneRankHasADeviceAndABudgetOfItsOwn) {
  const std::string plan = "plan sequence_len=64 model=" + golden_model("odd");
  const auto of_rank = [&](const std::string& more) {
    return run(plan + " rank_device_memory=10KiB" + more);
  };
  EXPECT_EQ(of_rank("").exit_code, 3);
  EXPECT_NE(of_rank("").out.find("does not fit"), std::string::npos);
  EXPECT_NE(of_rank("").out.find(", rank_device_memory is 10.0 KiB"), std::string::npos);
  EXPECT_EQ(nlohmann::json::parse(of_rank(" --json").out)["fits"], false);
  EXPECT_EQ(of_rank(" device_memory=1GiB").exit_code, 3);
  EXPECT_EQ(of_rank(" --fit").exit_code, 3);
  EXPECT_EQ(run(plan + " rank_devices=cpu device=cuda:9").exit_code, 0);
  const Outcome fits = run(plan + " rank_device_memory=1GiB --fit");
  EXPECT_EQ(fits.exit_code, 0);
  EXPECT_NE(fits.out.find("\nrank_device_memory: [1GiB] "), std::string::npos) << fits.out;
}

// Where the device does not fit, the host's saving is no help, be it the larger.
TEST(Plan, AdvisesForTheSideThatDoesNotFit) {
  const std::string plan = "plan method=rotary sequence_len=64 model=" + golden_model("gqa_tied");
  const auto advice = [&](const std::string& budget) {
    const std::string out = run(plan + budget).out;
    const size_t end = out.find("moments=reset");
    EXPECT_NE(end, std::string::npos) << out;
    const size_t begin = out.rfind('\n', end) + 1;
    return out.substr(begin, end - begin);
  };
  EXPECT_NE(advice("").find(" host "), std::string::npos) << advice("");
  EXPECT_NE(advice(" device_memory=10KiB").find(" device "), std::string::npos);
  EXPECT_NE(advice(" host_memory=1KiB").find(" host "), std::string::npos);
}

// Of a CPU's memory a budget for the device is only a part.
TEST(Plan, SaysWhatIsFreeForMasters) {
  const std::string plan = "plan sequence_len=64 model=" + golden_model("gqa_tied");
  const auto says = [&](const std::string& more) {
    return run(plan + more).out.find("\nhost_memory is not set") != std::string::npos;
  };
  EXPECT_TRUE(says(" method=rotary device_memory=1GiB"));
  EXPECT_FALSE(says(" method=rotary device_memory=1GiB host_memory=1GiB"));
  EXPECT_FALSE(says(" method=lora device_memory=1GiB"));
}

TEST(Plan, ReadsRecipesAndShapes) {
  const TemporaryDirectory directory("jackscrew_plan");
  const std::string recipe =
      directory.file("run.yaml", "model: llama-7b\ninit: random\nmethod: full\n");
  const Outcome outcome = run("plan " + recipe + " sequence_len=128");
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_NE(outcome.out.find("6738.4M parameters"), std::string::npos);
  EXPECT_NE(outcome.out.find("1 x 128 tokens"), std::string::npos);
  EXPECT_EQ(run(std::string("plan") + kErrorsOnly).exit_code, 2);
  // Several ranks leave what one leaves.
  const std::string files =
      "plan model=llama-60m init=random method=rotary storage=bf16 "
      "master=mmap save_steps=2 max_steps=4 export=gguf:q8_0";
  const std::string ranks = files + " ranks=2 pipeline_stages=2";
  const std::string said = run(ranks).out;
  EXPECT_NE(said.find("disk, of rank 0"), std::string::npos) << said;
  const auto disk = nlohmann::json::parse(run(files + " --json").out)["disk"];
  const auto first = nlohmann::json::parse(run(ranks + " --json").out)["disk"];
  for (const char* name : {"checkpoints", "result", "exports"}) {
    EXPECT_EQ(first[name], disk[name]) << name;
    EXPECT_NE(said.find(fmt::format("{:<14}{:>12}", name, human_bytes(disk[name].get<int64_t>()))),
              std::string::npos)
        << said;
  }
  EXPECT_LT(first["masters"], disk["masters"]);
  EXPECT_GT(first["masters"], 0);
  EXPECT_NE(said.find(fmt::format("{:<14}{:>12}", "masters",
                                  human_bytes(first["masters"].get<int64_t>()))),
            std::string::npos)
      << said;
}

// No soft prompt stands before its texts, whatever the method of the recipe.
TEST(Scoring, ABareModelHasAllOfAWindow) {
  const TinyRun tiny("bare_model");
  tiny.must_train("base", "method=full max_steps=1");
  const std::string base = tiny.path("base").string();
  const std::string text = " sequence_len=24 eval_data=" +
                           tiny.file("text.jsonl", "{\"text\": \"what was asked of it\"}\n");
  for (const std::string& command :
       {"eval --json model=" + base, "compare --json " + base + " " + base,
        "export --json overwrite=true output=" + tiny.path("m.gguf").string() + " model=" + base}) {
    const auto scored = [&](const std::string& more) {
      const std::string out = run(command + text + more + " 2>/dev/null").out;
      return nlohmann::json::parse(out.substr(0, out.find('\n')))["tokens"];
    };
    EXPECT_EQ(scored(" method=prompt"), scored("")) << command;
  }
  const std::string logits = "logits sequence_len=20 method=prompt model=" + base +
                             " data=" + tiny.eval_data() + " output=" + tiny.path("l").string();
  EXPECT_EQ(run(logits).exit_code, 0);
}

TEST(Scoring, LogitsAreOfWhatAPromptLeavesOfAWindow) {
  const TinyRun tiny("logits_window");
  tiny.must_train("base", "method=full max_steps=1");
  const std::string base = " init=pretrained model=" + tiny.path("base").string();
  tiny.must_train("prompt", "method=prompt prompt_tokens=4 max_steps=1" + base);
  const std::string output = tiny.path("l.safetensors").string();
  ASSERT_EQ(run("logits sequence_len=16 adapter=" + tiny.path("prompt").string() + base +
                " data=" + tiny.file("text.txt", std::string(40, 'a')) + " output=" + output)
                .exit_code,
            0);
  EXPECT_EQ(SafetensorsFile(output).find("ids")->shape, (std::vector<int64_t>{12}));
}

TEST(SlowLogits, ThatAreNotFiniteAreRefused) {
  const TinyRun tiny("logits_finite");
  tiny.must_train("m", "method=full max_steps=1");
  std::string bytes = tiny.text("m/model.safetensors");
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(bytes.data() + bytes.size() - sizeof nan, &nan, sizeof nan);
  tiny.file("m/model.safetensors", bytes);
  const fs::path output = tiny.path("logits.safetensors");
  expect_refused(run("logits model=" + tiny.path("m").string() + " data=" + tiny.data() +
                     " quiet=true output=" + output.string() + kErrorsOnly),
                 6, {"logits of " + tiny.path("m").string() + " are not finite", "hint: "});
  EXPECT_FALSE(fs::exists(output));
}

}  // namespace
}  // namespace jackscrew
