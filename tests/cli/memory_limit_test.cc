// A limit of a control group that does not leave a run enough, and memory of which nothing is
// known, through the program.
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/process_memory.h"
#include "tests/cli/expect_refused.h"
#include "tests/support/memory_group.h"
#include "tests/support/sanitizer.h"
#include "tests/support/tiny_run.h"

namespace jackscrew {
namespace {

TEST(SlowMemoryLimit, RefusesBeforeTheKernelKills) {
  const MemoryGroup group(int64_t{120} << 20);
  if (group.path().empty()) GTEST_SKIP() << "no right to make a control group";
  const TinyRun tiny("memory_limit");
  const std::string large = tiny.train("out", "model=llama-60m method=full max_steps=1");
  for (const char* budget : {"", " device_memory=8GiB"}) {
    expect_refused(group.run_within(large + budget + kErrorsOnly), 3,
                   {"memory limit of 120.0 MiB", group.path().string()});
    EXPECT_FALSE(fs::exists(tiny.path("out/train_log.jsonl")));
  }
  const Outcome small = group.run_within(tiny.train("small", "max_steps=1") + " 2>&1");
  EXPECT_EQ(small.exit_code, 0) << small.out;
  EXPECT_NE(group.run_within("doctor").out.find("memory limit: 120.0 MiB"), std::string::npos);
}

std::string log_of(int64_t steps) {
  std::string log;
  for (int64_t step = 1; step <= steps; ++step) {
    log += fmt::format(R"({{"event": "step", "step": {}, "time": {}.25, "loss": 1.5, )"
                       R"("grad_norm": 1.25, "learning_rate": 1e-05, "epoch": 0.5, "tokens": 64, )"
                       R"("tokens_per_second": 1000.5}})"
                       "\n",
                       step, 1796019232 + step);
  }
  return log;
}

// A limit that leaves a short run enough leaves a long one enough to be repeated and reported.
TEST(SlowMemoryLimit, ALongLogIsNotHeld) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer keeps what was freed";
  const MemoryGroup group(int64_t{120} << 20);
  if (group.path().empty()) GTEST_SKIP() << "no right to make a control group";
  const TinyRun tiny("long_log");
  tiny.must_train("out", "max_steps=1");
  tiny.file("out/train_log.jsonl", log_of(200000) + tiny.text("out/train_log.jsonl"));
  fs::remove(tiny.path("out/report.html"));
  const Outcome again = group.run_within(tiny.train("out", "max_steps=1") + " 2>&1");
  ASSERT_EQ(again.exit_code, 0) << again.out;
  EXPECT_NE(again.out.find("nothing to do"), std::string::npos) << again.out;
  EXPECT_NE(tiny.text("out/report.html").find("200000 of 1"), std::string::npos);
}

// Lists of what is in the data are looked at before they grow beyond the limit.
// The report holds five numbers of each logged step, and charts of them.
TEST(SlowMemoryLimit, ReportsNoMoreStepsThanFit) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer keeps what was freed";
  const TinyRun tiny("long_report");
  fs::create_directory(tiny.path("out"));
  tiny.file("out/train_log.jsonl", log_of(400000));
  const std::string report = "report " + tiny.path("out").string() + kErrorsOnly;
  {
    const MemoryGroup tight(int64_t{24} << 20);
    if (tight.path().empty()) GTEST_SKIP() << "no right to make a control group";
    expect_refused(tight.run_within(report), 3, {"the report of more than", "jackscrew report"});
    EXPECT_FALSE(fs::exists(tiny.path("out/report.html")));
  }
  const MemoryGroup enough(int64_t{64} << 20);
  EXPECT_EQ(enough.run_within(report).exit_code, 0);
}

TEST(SlowMemoryLimit, DoesNotReadMoreRecordsThanFit) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer keeps what was freed";
  const MemoryGroup group(int64_t{64} << 20);
  if (group.path().empty()) GTEST_SKIP() << "no right to make a control group";
  const TinyRun tiny("many_records");
  std::string records;
  for (int record = 0; record < 2'000'000; ++record) records += "{\"text\":\"ab\"}\n";
  tiny.file("many.jsonl", records);
  expect_refused(
      group.run_within(
          tiny.train("out", "max_steps=1 --quiet data=" + tiny.path("many.jsonl").string()) +
          kErrorsOnly),
      3, {"a list of ", "memory limit of 64.0 MiB", group.path().string(), "max_samples=N"});
  EXPECT_FALSE(fs::exists(tiny.path("out/train_log.jsonl")));
}

// Only the beginning of a file is looked at to say what it holds.
TEST(SlowMemoryLimit, HoldsNoFileWithoutRecords) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer keeps what was freed";
  const MemoryGroup group(int64_t{64} << 20);
  if (group.path().empty()) GTEST_SKIP() << "no right to make a control group";
  const TinyRun tiny("no_records");
  std::string blank;
  for (int line = 0; line < 96 << 10; ++line) blank += std::string(1023, ' ') + "\n";
  expect_refused(group.run_within("data stats tokenizer=bytes threads=1 --quiet data=" +
                                  tiny.file("blank.jsonl", blank) + kErrorsOnly),
                 4, {"blank.jsonl has no record", "the file is empty"});
}

// What a run takes beside what is booked counts as well: no limit lets it begin and be killed.
TEST(SlowMemoryLimit, LeavesRoomForTheProgramItself) {
  const TinyRun tiny("memory_room");
  const std::string options = "model=llama-9m method=full max_steps=1";
  const std::string plan =
      run("plan --json " + tiny.settings(options + " threads=2 sequence_len=64")).out;
  const auto peak = nlohmann::json::parse(plan)["device"]["peak"].get<int64_t>();
  bool fits = false;
  for (int64_t more = 4; more <= 84; more += 8) {
    const MemoryGroup group(peak + (more << 20));
    if (group.path().empty()) GTEST_SKIP() << "no right to make a control group";
    const Outcome outcome = group.run_within(
        tiny.train("out", options + " threads=2 sequence_len=64 overwrite=true") + " 2>&1");
    fits = outcome.exit_code == 0;
    EXPECT_TRUE(fits || outcome.exit_code == 3) << more << " MiB: " << outcome.exit_code << "\n"
                                                << outcome.out;
  }
  EXPECT_TRUE(fits);
}

// A configuration whose vocabulary and MLP take most of the memory.
std::string wide_config(const TinyRun& tiny, int vocab, int hidden, int intermediate) {
  return tiny.file("wide.json", fmt::format(R"({{
      "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": {},
      "hidden_size": {}, "intermediate_size": {}, "num_hidden_layers": 1,
      "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
      "tie_word_embeddings": false, "bos_token_id": 256, "eos_token_id": 257}})",
                                            vocab, hidden, intermediate));
}

// Runs a command within limits of `least` MiB and more, until one leaves it enough. Each that does
// not must be refused before it leaves anything at the tiny run's `output`, if it writes any.
void expect_done_or_refused(const TinyRun& tiny, const std::string& command, int64_t least,
                            const std::string& output = "") {
  for (int64_t more = 4; more <= 132; more += 8) {
    const MemoryGroup group((least + more) << 20);
    if (group.path().empty()) GTEST_SKIP() << "no right to make a control group";
    const Outcome outcome = group.run_within(command + " 2>&1");
    if (outcome.exit_code == 0) return;
    EXPECT_EQ(outcome.exit_code, 3) << least + more << " MiB\n" << outcome.out;
    if (output.empty()) continue;
    for (const char* ending : {"", ".jackscrew-part", ".unfinished"}) {
      EXPECT_FALSE(fs::exists(tiny.path(output + ending))) << least + more << " MiB " << ending;
    }
  }
  ADD_FAILURE() << "no limit was enough for " << command;
}

// A run of very many tensors takes memory for each of them beside its values.
TEST(SlowMemoryLimit, CountsWhatEveryTensorTakes) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer takes memory of its own";
  const TinyRun tiny("many_tensors");
  const std::string deep = tiny.file("deep.json", R"({
      "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 260,
      "hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": 1000,
      "num_attention_heads": 1, "num_key_value_heads": 1, "max_position_embeddings": 128,
      "tie_word_embeddings": false, "bos_token_id": 256, "eos_token_id": 257})");
  expect_done_or_refused(
      tiny,
      tiny.train("out", "model=" + deep +
                            " method=lora lora_rank=1 max_steps=1 sequence_len=32 "
                            "report_samples=0 logging_steps=1"),
      70);
}

// A weight makes millions of examples of few records: an epoch of them is what takes most.
TEST(SlowMemoryLimit, CountsDataWithinWhatWasChecked) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer keeps what was freed";
  const TinyRun tiny("memory_stats");
  std::string records;
  for (int record = 0; record < 150'000; ++record) {
    records += fmt::format("{{\"text\":\"{}\"}}\n", record);
  }
  expect_done_or_refused(tiny,
                         "data stats tokenizer=bytes threads=1 --quiet data_weights=20 data=" +
                             tiny.file("many.jsonl", records),
                         60);
}

// Threads that have no room of their own for what they encode wait for one another.
TEST(SlowMemoryLimit, EncodesTextWithinWhatWasChecked) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer keeps what was freed";
  const TinyRun tiny("memory_text");
  std::string words;
  while (std::ssize(words) < int64_t{34} << 20) words += "lifting a jack, and more of them\n";
  expect_done_or_refused(tiny,
                         "data tokenize tokenizer=bytes threads=8 --quiet data=" +
                             tiny.file("long.txt", words) + " >/dev/null",
                         76);
}

// What a word takes is known when it is found.
TEST(SlowMemoryLimit, RefusesALongWord) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer keeps what was freed";
  const MemoryGroup group(int64_t{220} << 20);
  if (group.path().empty()) GTEST_SKIP() << "no right to make a control group";
  const TinyRun tiny("memory_word");
  const std::string word = tiny.file("word.txt", std::string(size_t{16} << 20, 'a'));
  expect_refused(
      group.run_within("data preview tokenizer=bytes threads=1 --quiet data=" + word + kErrorsOnly),
      3, {"a word of 16777216 characters needs ", "memory limit of 220.0 MiB"});
}

// The most that a command had resident at once; no less than this test has, which begins it.
int64_t resident_peak_of(const std::string& arguments) {
  const std::string command = "exec " + std::string(kProgram) + " " + arguments + " >/dev/null";
  const pid_t child = ::fork();
  if (child == 0) {
    ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    ::_exit(127);
  }
  int status = 0;
  rusage usage{};
  EXPECT_EQ(::wait4(child, &status, 0, &usage), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << arguments;
  return int64_t{usage.ru_maxrss} << 10;
}

// The tokens of a long record take much more as text.
TEST(DataMemory, TokensArePrintedWithoutAnotherCopy) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer keeps what was freed";
  const TinyRun tiny("long_record");
  constexpr int64_t kTokens = int64_t{8} << 20;
  std::string words;  // a single one would take more while it is encoded than its text does
  while (std::ssize(words) < kTokens) words += "lifting ";
  const std::string of_data = " tokenizer=bytes threads=1 --quiet data=" +
                              tiny.file("long.jsonl", "{\"text\":\"" + words + "\"}\n");
  // Encodes the same record, and shows its beginning.
  const int64_t encoded = resident_peak_of("data preview" + of_data);
  for (const char* style : {"", " --json"}) {
    EXPECT_LE(resident_peak_of("data tokenize" + of_data + style), encoded + kTokens) << style;
  }
}

// Nor are the tokens of a text held twice to be cut into windows.
TEST(DataMemory, WindowsAreCutWithoutAnotherCopy) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer keeps what was freed";
  const TinyRun tiny("long_text");
  constexpr int64_t kTokens = int64_t{8} << 20;
  std::string words;
  while (std::ssize(words) < kTokens) words += "lifting ";
  // So that what was freed is not resident, whatever its size was.
  ::setenv("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=131072", 1);
  const std::string of_data =
      " tokenizer=bytes threads=1 --quiet data=" + tiny.file("long.txt", words);
  const int64_t encoded = resident_peak_of("data preview" + of_data);
  const int64_t stored = resident_peak_of("data stats" + of_data);
  ::unsetenv("GLIBC_TUNABLES");
  // While encoded, 5.3 bytes a token; then 5, and for the list of all 8 at most as it grows.
  EXPECT_LE(stored, encoded + 9 * kTokens);
}

// The logits of two models, and no copies of them.
TEST(SlowMemoryLimit, ComparesWithinWhatWasChecked) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer keeps what was freed";
  const TinyRun tiny("memory_compare");
  tiny.must_train("base", "max_steps=1 method=full model=" + wide_config(tiny, 128000, 16, 32));
  const std::string text = tiny.file("long.txt", std::string(600, 'a'));
  const std::string compare =
      fmt::format("compare {0} {0} tokenizer=bytes eval_data={1} sequence_len=512 threads=1",
                  tiny.path("base").string(), text);
  const Outcome refused = run(compare + " device_memory=1KiB 2>&1");
  ASSERT_EQ(refused.exit_code, 3) << refused.out;
  const std::string before = "needs ";
  const size_t at = refused.out.find(before);
  ASSERT_NE(at, std::string::npos) << refused.out;
  const double mib = std::stod(refused.out.substr(at + before.size()));
  EXPECT_GE(mib, 2 * 125);  // 256 rows of f32 for either
  expect_done_or_refused(tiny, compare, static_cast<int64_t>(mib));
}

TEST(SlowMemoryLimit, QuantisesWithinWhatWasChecked) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer keeps what was freed";
  const TinyRun tiny("memory_quantise");
  tiny.must_train("base", "max_steps=1 method=full model=" + wide_config(tiny, 260, 32, 4096));
  std::string text;
  for (int i = 0; text.size() < 8000; ++i) text += fmt::format("{} times {}. ", i, i * 7919 % 977);
  const std::string quantise = fmt::format(
      "quantize model={} tokenizer=bytes data={} output_dir={} sequence_len=64 "
      "calibration_sequences=80 group_size=32 bits=4 threads=2 --quiet",
      tiny.path("base").string(), tiny.file("text.txt", text), tiny.path("q").string());
  const Outcome dry = run(quantise + " --dry-run --json");
  ASSERT_EQ(dry.exit_code, 0) << dry.out;
  const auto memory = nlohmann::json::parse(dry.out)["memory"].get<int64_t>();
  EXPECT_GT(memory, int64_t{64} << 20);  // else a limit would stop the program as it starts
  expect_done_or_refused(tiny, quantise, memory >> 20, "q");
}

// Modules that an adapter has as a whole are in memory while they are merged.
TEST(SlowMemoryLimit, MergesWithinWhatWasChecked) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer keeps what was freed";
  const TinyRun tiny("memory_merge");
  tiny.must_train("base", "max_steps=1 method=full model=" + wide_config(tiny, 128000, 64, 32));
  const std::string base = tiny.path("base").string();
  tiny.must_train(
      "adapter",
      "max_steps=1 method=lora modules_to_save=embed_tokens,lm_head init=pretrained model=" + base);
  constexpr int64_t kStarts = 44;  // MiB that let the program get to its adapter
  expect_done_or_refused(
      tiny,
      fmt::format("merge model={} adapter={} output={} storage=bf16 "
                  "tokenizer=bytes threads=1",
                  base, tiny.path("adapter").string(), tiny.path("m.gguf").string()),
      kStarts, "m.gguf");
}

// A panel of a weight, as it is read, as f32 and as it is written.
TEST(SlowMemoryLimit, ConvertsWithinWhatWasChecked) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer keeps what was freed";
  const TinyRun tiny("memory_convert");
  tiny.must_train("base", "max_steps=1 method=full model=" + wide_config(tiny, 128000, 64, 32));
  expect_done_or_refused(tiny,
                         fmt::format("export model={} output={} storage=bf16 tokenizer=bytes "
                                     "threads=1 --quiet",
                                     tiny.path("base").string(), tiny.path("m.gguf").string()),
                         10, "m.gguf");  // less does not hold the program and its vocabulary
}

// A vocabulary takes many times the bytes of its file while that is read.
TEST(SlowMemoryLimit, ReadsATokenizerWithinWhatWasChecked) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer keeps what was freed";
  const TinyRun tiny("memory_tokenizer");
  tiny.must_train("base", "max_steps=1 method=full");
  auto root = nlohmann::json::parse(tiny.text("base/tokenizer.json"));
  auto& model = root["model"];
  std::vector<std::string> words(1);  // each is one before it and a letter
  for (size_t i = 0; words.size() < 50'000; ++i) {
    for (char letter = 'a'; letter <= 'z'; ++letter) {
      words.push_back(words[i] + letter);
      if (i == 0) continue;  // a byte has its token
      model["vocab"][words.back()] = words.size() + 300;
      model["merges"].push_back({words[i], std::string(1, letter)});
    }
  }
  fs::create_directory(tiny.path("large"));
  const fs::path large = fs::path(tiny.file("large/tokenizer.json", root.dump())).parent_path();
  const std::string preview =
      "data preview threads=1 --quiet data=" + tiny.file("text.jsonl", R"({"text": "a jack"})") +
      " tokenizer=";
  expect_done_or_refused(tiny, preview + large.string(), 4);
  // The same in a GGUF file.
  tiny.must_train("wide", "max_steps=1 method=full model=" + wide_config(tiny, 51'000, 16, 32));
  const std::string gguf = tiny.path("large.gguf").string();
  ASSERT_EQ(run("export threads=1 --quiet model=" + tiny.path("wide").string() +
                " tokenizer=" + large.string() + " output=" + gguf)
                .exit_code,
            0);
  expect_done_or_refused(tiny, preview + gguf, 4);
}

// An adapter is written as it is, in parts.
TEST(SlowMemoryLimit, WritesALargeAdapter) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer keeps what was freed";
  const TinyRun tiny("memory_adapter");
  tiny.must_train("base", "max_steps=1 method=full model=" + wide_config(tiny, 260, 32, 4096));
  const std::string base = tiny.path("base").string();
  tiny.must_train("adapter",
                  "max_steps=1 method=lora lora_rank=2048 lora_target=down_proj init=pretrained "
                  "model=" +
                      base);
  const MemoryGroup group(int64_t{40} << 20);  // A alone has 32 MiB
  if (group.path().empty()) GTEST_SKIP() << "no right to make a control group";
  const Outcome outcome = group.run_within(
      fmt::format("export format=gguf_adapter model={} adapter={} output={} tokenizer=bytes "
                  "threads=1 2>&1",
                  base, tiny.path("adapter").string(), tiny.path("a.gguf").string()));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out;
}

// Of one text: as a record that is shown or computed with, as a prompt and as a message.
TEST(SlowMemoryLimit, RefusesALongTextOfOtherCommands) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer keeps what was freed";
  const TinyRun tiny("memory_prompt");
  tiny.must_train("base", "max_steps=1 method=full");
  std::string words;
  while (std::ssize(words) < int64_t{20} << 20) words += "lifting ";
  const std::string text = tiny.file("words.txt", words);
  const std::string record = tiny.file("words.jsonl", "{\"text\":\"" + words + "\"}\n");
  const std::string of_model =
      fmt::format(" model={} tokenizer=bytes threads=1 ", tiny.path("base").string());
  {
    const MemoryGroup group(int64_t{40} << 20);
    if (group.path().empty()) GTEST_SKIP() << "no right to make a control group";
    expect_refused(group.run_within("data preview data=" + record + kErrorsOnly), 3,
                   {"words.jsonl:1: a record of 20.0 MiB needs 80.0 MiB"});
    expect_refused(group.run_within("logits" + of_model + "data=" + record +
                                    " output=" + tiny.path("l.safetensors").string() + kErrorsOnly),
                   3, {"encoding 20.0 MiB of text at a time needs 280.0 MiB"});
    expect_refused(group.run_within("generate" + of_model + "prompt=- <" + text + kErrorsOnly), 3,
                   {" of text at a time needs ", "a shorter prompt takes less"});
  }
  const MemoryGroup group(int64_t{100} << 20);
  expect_refused(
      group.run_within("chat" + of_model + "chat_template=chatml <" + text + kErrorsOnly), 3,
      {" of text at a time needs ", "a shorter message takes less"});
}

TEST(SlowMemoryLimit, WithoutProcItIsUnknown) {
  const auto without_proc = [](const std::string& command) {
    return run_shell("unshare -m sh -c 'mount -t tmpfs none /proc && exec " + command + "' 2>&1");
  };
  if (without_proc("true").exit_code != 0) GTEST_SKIP() << "no right to mount";
  const TinyRun tiny("no_proc");
  const Outcome doctor = without_proc(std::string(kProgram) + " doctor");
  EXPECT_NE(doctor.out.find("\nmemory: unknown\n"), std::string::npos) << doctor.out;
  const Outcome trained =
      without_proc(std::string(kProgram) + " " + tiny.train("out", "max_steps=1"));
  EXPECT_NE(trained.out.find(" allocated, resident size unknown\n"), std::string::npos)
      << trained.out;
}

}  // namespace
}  // namespace jackscrew
